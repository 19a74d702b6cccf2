"""Rules over several parts of a study that need no system: names, levels, designs, ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.basics.wording import count, visible
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data import paths
from nlgraft.study.data.design import Axes, Cell, axes_of, level_text
from nlgraft.study.data.part import MAX_NAME_LENGTH
from nlgraft.study.data.space import (
    FloatDomain,
    alternatives,
    duplicate_message,
    same,
    space_problems,
    start_problems,
    table_text,
)
from nlgraft.study.data.study import Factor, Search, Sequential, Study
from nlgraft.study.reading.claim_rules import unused_margins
from nlgraft.study.reading.documents import MAX_INT
from nlgraft.study.reading.draft import Draft, describe
from nlgraft.study.reading.overrides import scale_problems
from nlgraft.study.reading.place_rules import place_problems

_NUM_SHOWN = 10
"""Leading characters of a level that MLflow's parallel coordinates show."""
_PROSE = ("description", "source", "reason")
_MAX_ENTRY_PROBLEMS = 20


def study_problems(draft: Draft) -> Iterator[Problem]:
    """Find the problems of a study that need no system to be seen, with their paths in the study file.

    Args:
        draft: The study.
    """
    study = draft.study
    for name, factor in study.factors.items():
        for problem in _factor_problems(factor):
            yield Problem(f"factors.{name}.{problem.path}", problem.message)
    # Two places for the same values would leave open which of them counts.
    if "data" in study.base:
        yield Problem("base.data", "belongs in the study's own field data; move it there")
    yield from _setter_problems(study)
    yield from _design_problems(draft)
    if study.search is not None:
        yield from _search_problems(study.search)
    if study.sequential is not None:
        yield from _look_problems(study.sequential)
    yield from place_problems(study)
    yield from scale_problems(study.scales)


def seed_problems(seeds: Any) -> Iterator[Problem]:
    """Find seeds given twice, even in a list that is wrong otherwise."""
    if isinstance(seeds, list):
        seen: dict[str, int] = {}
        for index, seed in enumerate(seeds):
            first = seen.setdefault(canonical_json(seed), index)
            if first != index:
                yield Problem(
                    f"seeds[{index}]", f"{seed} is the same as seeds[{first}]; write each seed once"
                )


def warnings(study: Study) -> list[str]:
    """List settings that are allowed but probably not intended, one sentence each, beginning with a path."""
    sentences = []
    for name, levels in axes_of(study).levels.items():
        shown: dict[str, str] = {}
        for text in map(level_text, levels):
            other = shown.setdefault(text[:_NUM_SHOWN], text)
            if other != text:
                sentences.append(
                    f"factors.{name}.levels: {other!r} and {text!r} begin with the same {_NUM_SHOWN} "
                    "characters; MLflow's plots show no more"
                )
    if len(study.seeds) == 1:
        sentences.append("seeds: one seed does not show the spread between trainings; give three or more")
    sentences += unused_margins(study)
    for index, column in enumerate(study.published):
        if column.signature is None:
            sentences.append(f"published[{index}]: figures without a signature are not printed beside ours")
    if study.search is not None and not study.search.sampler.is_blind:
        name, num_drawn = study.search.sampler.name, study.search.sampler.num_drawn
        if study.search.trials <= num_drawn:
            sentences.append(
                f"search.sampler: {name} draws its first {num_drawn} trials at random, and a cell has "
                f"{study.search.trials}; lower num_startup_trials, or write random"
            )
        space = study.search.space
        conditional = [path for path, domain in space.items() if space.keys() & (domain.when or {}).keys()]
        if name == "gp" and conditional:
            sentences.append(
                f"search.sampler: gp draws at random what is searched under a condition on searched values, "
                f"{', '.join(conditional)}; tpe models it"
            )
    if study.search is not None and study.search.sampler.name == "grid":
        size = _grid_size(study.search)
        if size is not None and study.search.trials < size:
            sentences.append(
                f"search.trials: {study.search.trials} trials visit a part of the grid's {size} points"
            )
    return sentences


def _factor_problems(factor: Factor) -> Iterator[Problem]:
    if factor.is_named and factor.target is not None:
        yield Problem("target", "named levels carry the paths that they set; remove target, or list values")
    if not factor.is_named and factor.target is None:
        yield Problem("target", "is missing: which path of the config do the levels set?")
    levels = factor.level_values
    if not levels:
        yield Problem("levels", "is empty; give the baseline and at least one other level")
        return
    seen: dict[str, int] = {}
    for index, level in enumerate(levels):
        first = seen.setdefault(table_text(level), index)
        if first != index:
            message = duplicate_message(level, levels[first], "levels", first)
            yield Problem(f"levels[{index}]", message)
        if isinstance(level, str):
            is_name = 0 < len(level) <= MAX_NAME_LENGTH and level.isprintable()
            # Labels of cells, and so the names of MLflow's runs, consist of levels.
            if not is_name:
                reason = (
                    f"must be 1 to {MAX_NAME_LENGTH} printable characters; use named levels for longer values"
                )
                yield Problem(f"levels[{index}]", reason)
    if not any(same(factor.baseline, level) for level in levels):
        texts = [level_text(level) for level in levels]
        alike = [level for level in levels if table_text(level) == table_text(factor.baseline)]
        hint = f"Did you mean {alike[0]!r}?" if alike else nearest(level_text(factor.baseline), texts)
        yield Problem("baseline", f"{factor.baseline!r} is not among the levels. {hint}")


def setters(study: Study) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield what sets values of the config: its kind, its place, and each path after its own place."""
    for name, factor in study.factors.items():
        place = f"factors.{name}"
        levels = factor.levels.items() if isinstance(factor.levels, dict) else ()
        named = [
            (f"{place}.levels.{level}.{path}", path)
            for level, values in levels
            for path, _ in paths.leaves(values)
        ]
        yield "factor", place, [*named, *([(f"{place}.target", factor.target)] if factor.target else [])]
    for name, component in study.components.items():
        place = f"components.{name}"
        yield (
            "component",
            place,
            [(f"{place}.without.{path}", path) for path, _ in paths.leaves(component.without)],
        )
    for path in study.search.space if study.search else ():
        yield "search", f"search.space.{path}", [(f"search.space.{path}", path)]


def _setter_problems(study: Study) -> Iterator[Problem]:
    shared_names = set(study.factors) & set(study.components)
    for name in study.components:
        if name in shared_names:
            yield Problem(f"components.{name}", f"a factor is called {name!r} too; rename one")
    owners = [(kind, place, {path for _, path in named}) for kind, place, named in setters(study)]
    for index, (kind, place, own_paths) in enumerate(owners):
        for other_kind, other, other_paths in owners[:index]:
            # One departure at a time leaves no doubt what a removed component means, nor do two components.
            is_ambiguous = study.design.kind in ("full", "cells") or kind == other_kind != "component"
            if kind != "search" and not is_ambiguous:
                continue
            for path in sorted(own_paths):
                if any(paths.overlap(path, other_path) for other_path in other_paths):
                    verb = "searches" if kind == "search" else "sets"
                    yield Problem(place, f"{verb} {path}, which {other} sets too; one path has one owner")
                    break


def usable_cells(draft: Draft) -> list[Cell]:
    """Build the cells of a study that may be wrong; none where it is not certain which they are."""
    axes = axes_of(draft.study)
    is_read = draft.can_use("factors", "components", "design", "exclude")
    if not is_read or any(True for _ in _entries_problems(axes)):
        return []
    try:
        return axes.cells()
    except StudyError:
        return []


def _design_problems(draft: Draft) -> Iterator[Problem]:
    study = draft.study
    axes = axes_of(study)
    if study.design.kind == "cells" and not study.design.cells:
        yield Problem("design.cells", "is empty; list cells as {factor: level}")
    if study.design.kind != "cells" and study.design.cells:
        yield Problem("design.cells", f"is used by kind cells only, the kind is {study.design.kind}")
    if study.design.kind == "leave_one_out" and not study.components and draft.can_use("components"):
        yield Problem("components", "is empty: leave_one_out needs components to leave out")
    if study.design.kind != "full" and study.design.idle:
        yield Problem("design.idle", f"is used by kind full only, the kind is {study.design.kind}")
    if not draft.can_use("factors", "components"):
        return
    unknown = list(_entries_problems(axes))
    yield from unknown
    # Cells of a wrong design would only repeat its problems.
    if unknown or not draft.can_use("design", "exclude"):
        return
    yield from _exclude_problems(axes)
    try:
        axes.cells()
    except StudyError as error:
        yield from error.problems


def _entries_problems(axes: Axes) -> Iterator[Problem]:
    for place, entries in (("design.cells", axes.design.cells), ("exclude", axes.exclude)):
        entry_problems = (
            Problem(f"{place}[{index}]{problem.path}", problem.message)
            for index, entry in enumerate(entries)
            for problem in _entry_problems(axes, entry)
        )
        yield from itertools.islice(entry_problems, _MAX_ENTRY_PROBLEMS)
        if next(entry_problems, None) is not None:
            yield Problem(place, f"more entries are wrong; these are the first {_MAX_ENTRY_PROBLEMS}")
    for index, idle in enumerate(axes.design.idle):
        place = f"design.idle[{index}]"
        if idle.factor not in axes.levels:
            hint = nearest(idle.factor, list(axes.levels))
            yield Problem(f"{place}.factor", f"there is no factor {idle.factor!r}. {hint}")
        if idle.factor in idle.when:
            yield Problem(f"{place}.when.{idle.factor}", "is the idle factor itself; name another one")
        for name, levels in idle.when.items():
            for level in alternatives(levels):
                for problem in _entry_problems(axes, {name: level}):
                    yield Problem(f"{place}.when{problem.path}", problem.message)


def _entry_problems(axes: Axes, entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not entry:
        yield Problem("", "is empty; name at least one factor and its level")
    for name, level in entry.items():
        if name not in axes.levels:
            yield Problem(f".{name}", f"there is no factor {name!r}. {nearest(name, list(axes.levels))}")
        elif axes.index_of(name, level) is None:
            texts = [level_text(choice) for choice in axes.levels[name]]
            hint = nearest(level_text(level), texts)
            yield Problem(f".{name}", f"{level!r} is not a level of {name}. {hint}")


def _exclude_problems(axes: Axes) -> Iterator[Problem]:
    # Every comparison needs the baseline.
    if axes.is_excluded({}):
        yield Problem("exclude", "drops the baseline, which every other cell is compared with")
    if not axes.exclude or axes.is_vast:
        return
    for index in axes.unused_exclusions:
        yield Problem(f"exclude[{index}]", "matches no cell of the design; remove it")


def _search_problems(search: Search) -> Iterator[Problem]:
    if not search.space:
        # An empty space was refused when it was read.
        return
    for problem in space_problems(search.space):
        yield Problem(f"search.space.{problem.path}", problem.message)
    name = search.sampler.name
    for path, domain in search.space.items():
        if name == "grid" and isinstance(domain, FloatDomain) and domain.step is None:
            yield Problem(f"search.space.{path}", "a grid needs a step here, or a categorical domain")
    if search.sampler.is_blind and search.sampler.num_startup_trials is not None:
        yield Problem("search.sampler.num_startup_trials", f"{name} has none; leave it out, or use tpe")
    for problem in start_problems(search.space, search.start):
        yield Problem(f"search.start{problem.path}", problem.message)
    if search.start and name == "grid":
        yield Problem("search.start", "a grid visits all its points; leave it out, or use another sampler")
    if len(search.start) > search.trials:
        yield Problem("search.start", f"has {len(search.start)} entries for {count(search.trials, 'trial')}")
    size = _grid_size(search) if name == "grid" else None
    if size is not None and search.trials > size:
        yield Problem("search.trials", f"the grid has {size} points; at most {size} trials differ")
    scheduler = search.active_scheduler
    if scheduler is None or scheduler.max_steps is None:
        return
    if scheduler.max_steps <= scheduler.grace_steps:
        message = (
            f"{scheduler.max_steps} is not above grace_steps, {scheduler.grace_steps}: nothing would stop"
        )
        yield Problem("search.trial_scheduler.max_steps", message)


def _grid_size(search: Search) -> int | None:
    size = math.prod(domain.num_values for domain in search.space.values())
    return int(size) if 0 < size < math.inf else None


def _look_problems(planned: Sequential) -> Iterator[Problem]:
    for index, (before, after) in enumerate(itertools.pairwise(planned.looks), start=1):
        if after <= before:
            yield Problem(f"sequential.looks[{index}]", f"{after} is not above {before}; looks ascend")


def value_problems(values: Any, path: str = "") -> Iterator[Problem]:
    """Find integers too large for 64 bits, and text with characters that control a terminal."""
    if isinstance(values, (dict, list)):
        entries = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in entries:
            for text in (key, value if key in _PROSE else ""):
                if isinstance(text, str) and visible(text) != text:
                    message = f"{ascii(text)[:60]} has characters that control a terminal; leave them out"
                    yield Problem(paths.join(path, key), message)
            yield from value_problems(value, paths.join(path, key))
    elif isinstance(values, int) and abs(values) > MAX_INT:
        yield Problem(path, f"{describe(values)} is too large; whole numbers go up to {MAX_INT:,}")
