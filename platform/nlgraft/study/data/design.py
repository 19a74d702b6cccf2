"""From factors, components and a design to cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.pipeline.fingerprint import canonical_json, fingerprint
from nlgraft.study.data import paths
from nlgraft.study.data.space import alternatives, holds, same
from nlgraft.study.data.study import Component, Design, Factor, Study

MAX_CELLS = 1000
"""Largest number of cells of a design; more are taken for a mistake."""
_MAX_COMBINATIONS = 10_000

FULL, WITHOUT = "full", "without"
"""The two levels of a component."""


@dataclass(frozen=True)
class Cell:
    """One combination of levels.

    Attributes:
        levels: Level by factor; a component is ``full`` or ``without``.
        overrides: Values that the cell sets in the system's config, by dotted path.
        is_baseline: True when every factor is at its baseline and every component present.
        label: ``baseline``, ``generator=att``, ``without segment_embedding``, or several joined by ``, ``.
        origins: Place of each override in the study file, by dotted path.
        changed: Paths of the overrides that come from levels off their baseline.
    """

    levels: Mapping[str, Any]
    overrides: Mapping[str, Any]
    is_baseline: bool
    label: str
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    changed: Sequence[str] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> str:
        """Fingerprint of the overrides: the identity of the cell."""
        return fingerprint(self.overrides)


@dataclass(frozen=True)
class Axes:
    """The parts of a study that make cells.

    Attributes:
        factors: Factors by name.
        components: Components by name.
        design: Which combinations become cells.
        exclude: Combinations of levels to drop.
    """

    factors: Mapping[str, Factor]
    components: Mapping[str, Component]
    design: Design
    exclude: Sequence[Mapping[str, Any]]

    @cached_property
    def baseline(self) -> dict[str, Any]:
        """The reference level of every factor and component."""
        levels = {name: factor.baseline for name, factor in self.factors.items()}
        return levels | dict.fromkeys(self.components, FULL)

    @cached_property
    def levels(self) -> dict[str, list[Any]]:
        """All levels of every factor and component."""
        # A component is a factor with two levels, which makes one design of both.
        levels = {name: factor.level_values for name, factor in self.factors.items()}
        return levels | {name: [FULL, WITHOUT] for name in self.components}

    def index_of(self, name: str, level: Any) -> int | None:
        """Find the position of a level of a factor or component; None if it has no such level."""
        return self._indices[name].get(canonical_json(level))

    def cell(self, levels: Mapping[str, Any]) -> Cell:
        """Build the cell of a combination; factors and components not named stay at their baseline."""
        baseline = self.baseline
        levels = baseline | dict(levels)
        changed_factors = [name for name in levels if not same(levels[name], baseline[name])]
        overrides: dict[str, Any] = {}
        origins: dict[str, str] = {}
        changed: list[str] = []
        # Components come last: what is removed stays removed whatever level a factor has.
        for name in (*self.factors, *self.components):
            for path, (value, origin) in self._settings(name, levels[name]).items():
                overrides[path] = value
                origins[path] = origin
                if name in changed_factors:
                    changed.append(path)
        label = ", ".join(self.departure(name, levels[name]) for name in changed_factors)
        return Cell(levels, overrides, not changed_factors, label or "baseline", origins, changed)

    def departure(self, name: str, level: Any) -> str:
        """Write a level off its baseline as in a label: ``generator=att``, ``without segment_embedding``."""
        return f"{WITHOUT} {name}" if name in self.components else f"{name}={level_text(level)}"

    def _settings(self, name: str, level: Any) -> dict[str, tuple[Any, str]]:
        """Values that a level sets, by path, each with the place in the study where it stands."""
        if name in self.components:
            values = self.components[name].without if level == WITHOUT else {}
            return {
                path: (value, f"components.{name}.without.{path}") for path, value in paths.leaves(values)
            }
        factor = self.factors[name]
        where = f"factors.{name}.levels"
        if isinstance(factor.levels, dict):
            values = factor.levels.get(level, {}) if isinstance(level, str) else {}
            return {path: (value, f"{where}.{level}.{path}") for path, value in paths.leaves(values)}
        if factor.target is None:
            return {}
        index = self.index_of(name, level)
        origin = f"factors.{name}.baseline" if index is None else f"{where}[{index}]"
        return {factor.target: (level, origin)}

    @cached_property
    def _indices(self) -> dict[str, dict[str, int]]:
        """The index of each level, by factor or component and the level's JSON."""
        return {
            name: {canonical_json(level): index for index, level in enumerate(levels)}
            for name, levels in self.levels.items()
        }

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the combinations of the design, excluded ones included.

        Only levels off their baseline are given, all levels for ``full``. Repetitions are possible.
        """
        levels, baseline = self.levels, self.baseline
        yield {}
        if self.design.kind == "cells":
            yield from (dict(cell) for cell in self.design.cells)
        elif self.design.kind == "full":
            for combination in itertools.product(*levels.values()):
                yield dict(zip(levels, combination, strict=True))
        else:
            for name, choices in levels.items():
                yield from ({name: level} for level in choices if not same(level, baseline[name]))

    @property
    def num_combinations(self) -> int:
        """Number of combinations of the design, before anything is excluded."""
        if self.design.kind == "cells":
            return 1 + len(self.design.cells)
        sizes = [len(choices) for choices in self.levels.values()]
        if self.design.kind == "full":
            return math.prod(sizes)
        return 1 + sum(size - 1 for size in sizes)

    @property
    def is_vast(self) -> bool:
        """True when there are too many combinations to examine each."""
        return self.num_combinations > _MAX_COMBINATIONS

    def is_excluded(self, levels: Mapping[str, Any]) -> bool:
        """Return True when an entry of ``exclude`` matches a combination; levels left out are baselines.

        An entry matches if the combination has all its levels, types included; an empty one never does.
        """
        levels = self.baseline | dict(levels)
        # Looked up by digest: a design may have ten thousand combinations and as many exclusions.
        return any(_projection(levels, names) in entries for names, entries in self._excluded.items())

    @cached_property
    def _excluded(self) -> dict[tuple[str, ...], dict[str, list[int]]]:
        """Indices of the entries of ``exclude`` by the factors that they name, then by their levels' JSON."""
        indices = {}
        for index, entry in enumerate(self.exclude):
            if entry and entry.keys() <= self.levels.keys():
                names = tuple(sorted(entry))
                by_levels = indices.setdefault(names, {})
                by_levels.setdefault(_projection(entry, names), []).append(index)
        return indices

    @property
    def unused_exclusions(self) -> list[int]:
        """Indices of the entries of ``exclude`` that match no combination of the design."""
        matched: set[int] = set()
        for combination in self.combinations():
            levels = self.baseline | combination
            for names, entries in self._excluded.items():
                matched.update(entries.get(_projection(levels, names), ()))
        return [index for index in range(len(self.exclude)) if index not in matched]

    def canonical_levels(self, levels: Mapping[str, Any]) -> dict[str, Any]:
        """Complete a combination, with every factor at its baseline that is declared idle there."""
        levels = self.baseline | dict(levels)
        idle = [entry.factor for entry in self.design.idle if holds(entry.when, levels)]
        return levels | {name: self.baseline[name] for name in idle}

    @property
    def num_merged(self) -> int:
        """Number of combinations that are the cell of another one, because a factor is declared idle."""
        # As JSON, in which 1, 1.0 and true are different levels; in Python they are equal.
        combinations = [
            self.baseline | levels for levels in self.combinations() if not self.is_excluded(levels)
        ]
        settled = {canonical_json(self.canonical_levels(levels)) for levels in combinations}
        return len(set(map(canonical_json, combinations))) - len(settled)

    def cells(self) -> list[Cell]:
        """Build the cells: the baseline first, then the others in file order, each combination once.

        Raises:
            StudyError: There are more than `MAX_CELLS`; the message gives the number.
        """
        # Counted first: a product of many factors must be refused without being built.
        count = self.num_combinations
        if count <= MAX_CELLS or ((self.exclude or self.design.idle) and not self.is_vast):
            combinations = [levels for levels in self.combinations() if not self.is_excluded(levels)]
            settled = {canonical_json(levels): levels for levels in map(self.canonical_levels, combinations)}
            count = len(settled)
            if count <= MAX_CELLS:
                return [self.cell(levels) for levels in settled.values()]
        message = (
            f"the design has {count:,} cells, at most {MAX_CELLS:,} are allowed; "
            "use kind one_factor or cells, fewer levels, or exclude combinations"
        )
        raise StudyError([Problem("design", message)])


def _projection(levels: Mapping[str, Any], names: Sequence[str]) -> str:
    """Encode the levels of some factors as text, equal only for equal levels, types included."""
    return canonical_json([levels[name] for name in names])


def level_text(level: Any) -> str:
    """Write a level as in labels and on the command line: text as it is, everything else as JSON."""
    return level if isinstance(level, str) else canonical_json(level)


def conditions_text(levels: Mapping[str, Any]) -> str:
    """Write a condition on factors as text: ``method is avg_eg or mean and sides is both``."""
    return " and ".join(
        f"{name} is {' or '.join(map(level_text, alternatives(level)))}" for name, level in levels.items()
    )


def cells(study: Study) -> list[Cell]:
    """List the cells of a study: the baseline first, then the others in file order.

    Raises:
        StudyError: The design is too large.
    """
    return axes_of(study).cells()


def axes_of(study: Study) -> Axes:
    """Return the parts of a study that make its cells."""
    return Axes(study.factors, study.components, study.design, study.exclude)


def gain_cells(study: Study, design_cells: Sequence[Cell]) -> dict[str, list[tuple[str, Cell, Cell]]]:
    """Pair the cells whose difference is the gain of a level, at each level of ``analysis.gains_over``.

    Args:
        study: The study.
        design_cells: Its cells.

    Returns:
        By the gaining level (``arm=src_elmo``): each level of the factor with the cell that has both and the
        cell that has the gaining factor's baseline instead. Further factors are at their baseline, pairs
        without one of their cells are left out, and so are levels with fewer than two pairs.
    """
    axes, over = axes_of(study), study.analysis.gains_over
    by_levels = {canonical_json(cell.levels): cell for cell in design_cells}
    gains = {}
    for name, choices in axes.levels.items():
        for level in choices:
            if over is None or name == over or same(level, axes.baseline[name]):
                continue
            pairs = []
            for context in axes.levels[over]:
                reference = {**axes.baseline, over: context}
                with_level = by_levels.get(canonical_json({**reference, name: level}))
                without_level = by_levels.get(canonical_json(reference))
                if with_level is not None and without_level is not None:
                    pairs.append((level_text(context), with_level, without_level))
            # Checked last, since a pair may lack a cell that the design excludes.
            # A gain at one level alone shows no trend.
            if len(pairs) > 1:
                gains[axes.departure(name, level)] = pairs
    return gains


def idle_note(study: Study) -> str | None:
    """Return a sentence on the combinations merged by ``design.idle``; None where there are none."""
    if not study.design.idle:
        return None
    reasons = "; ".join(
        f"{entry.factor} has no effect where {conditions_text(entry.when)}" for entry in study.design.idle
    )
    return f"{axes_of(study).num_merged} combinations of levels equal others and run once: {reasons}"


def find_cell(study: Study, text: str) -> Cell:
    """Find the cell that a text names.

    Args:
        study: The study.
        text: A label, ``baseline``, ``full``, ``without x``, ``factor=level`` (several joined by commas, the
            other factors at their baseline), or a level that only one factor has.

    Raises:
        StudyError: The text names no cell, or more than one; the message gives the nearest label.
    """
    axes = axes_of(study)
    cell = name_cell(axes, axes.cells(), text)
    if isinstance(cell, str):
        raise StudyError([Problem("cell", cell)], study.name)
    return cell


def select_cells(study: Study, conditions: Sequence[str]) -> list[Cell]:
    """Select the cells that meet every condition, in design order.

    Args:
        study: The study.
        conditions: ``factor=level``, with any level of the other factors, or a name as for `find_cell`.

    Raises:
        StudyError: A condition names no level or cell, or no cell meets all of them.
    """
    axes = axes_of(study)
    chosen = axes.cells()
    for text in conditions:
        levels = _parse_levels(axes, text) if "=" in text else None
        if isinstance(levels, str):
            raise StudyError([Problem("cell", levels)], study.name)
        if levels is None:
            named = find_cell(study, text)
            chosen = [cell for cell in chosen if cell.key == named.key]
        else:
            # A cell stands for all levels of a factor that is idle in it.
            chosen = [
                cell for cell in chosen if same(axes.canonical_levels({**cell.levels, **levels}), cell.levels)
            ]
    if not chosen:
        message = (
            f"no cell meets {' and '.join(conditions)}. Cells: {', '.join(c.label for c in cells(study))}"
        )
        raise StudyError([Problem("cell", message)], study.name)
    return chosen


def name_cell(
    axes: Axes,
    design_cells: Sequence[Cell],
    text: str,
) -> Cell | str:
    """Find the cell that a text names, as `find_cell` does, or return the message why there is none."""
    text = text.strip()
    by_label = {cell.label: cell for cell in design_cells}
    if text in by_label:
        return by_label[text]
    if text == "baseline" or (text == FULL and axes.components):
        named_levels: dict[str, Any] | str = {}
    elif "=" in text or text.startswith(f"{WITHOUT} "):
        named_levels = _parse_levels(axes, text)
    else:
        owners = []
        for name in axes.factors:
            owners += [(name, level) for level in axes.levels[name] if level_text(level) == text]
        if len(owners) > 1:
            options = " or ".join(f"{name}={text}" for name, _ in owners)
            return f"{text!r} is a level of several factors; write {options}"
        named_levels = (
            dict(owners) if owners else f"there is no cell {text!r}. {nearest(text, list(by_label))}"
        )
    if isinstance(named_levels, str):
        return named_levels
    levels = axes.canonical_levels(named_levels)
    for cell in design_cells:
        if same(cell.levels, levels):
            return cell
    return f"{text!r} is not among the cells of this design. {nearest(text, list(by_label))}"


def label_finder(axes: Axes, design_cells: Sequence[Cell]) -> Callable[[str], str | None]:
    """Return a function that gives the label of the cell that a text names, None for no cell."""

    @cache
    def find(text: str) -> str | None:
        cell = name_cell(axes, design_cells, text)
        return cell.label if isinstance(cell, Cell) else None

    return find


def _parse_levels(axes: Axes, text: str) -> dict[str, Any] | str:
    levels: dict[str, Any] = {}
    for condition in text.split(","):
        name, _, level = condition.strip().partition("=")
        if name.startswith(f"{WITHOUT} ") and not level:
            name, level = name.removeprefix(f"{WITHOUT} ").strip(), WITHOUT
            if name not in axes.components:
                return f"there is no component {name!r}. {nearest(name, list(axes.components))}"
        if name not in axes.levels:
            return f"there is no factor {name!r}. {nearest(name, list(axes.levels))}"
        texts = {level_text(choice): choice for choice in axes.levels[name]}
        if level not in texts:
            return f"factor {name!r} has no level {level!r}. {nearest(level, list(texts))}"
        levels[name] = texts[level]
    return levels
