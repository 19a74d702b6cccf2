"""Rules about factors without effect: cells with different levels must differ in a stage of their trials."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from nlgraft.basics.errors import NlgraftError, Problem
from nlgraft.basics.wording import grouped
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell, axes_of, conditions_text, level_text
from nlgraft.study.data.space import alternatives, corner, same
from nlgraft.study.data.study import Overrides, Study
from nlgraft.study.data.system import REPLICATE_SPLITS
from nlgraft.study.reading.draft import Draft
from nlgraft.study.reading.resolving import Resolver, nested_config
from nlgraft.study.reading.system_import import system_of


def idle_problems(study: Study) -> Iterator[Problem]:
    """Find levels that change no stage, and factors that are declared idle but are not.

    Stage graphs need the corpora and checkpoints of the study. Where one is missing nothing is found, and
    planning the study reports it.

    Args:
        study: A study in which nothing else is wrong with the cells.
    """
    try:
        yield from _Twins(study).problems()
    except NlgraftError:
        return


class _Twins:
    """Finds cells that run the same trials, by their stage graphs at the first seed.

    With a search, two cells are the same when their graphs are equal at both ends of the space and with every
    single domain at each of its ends or choices.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._axes = axes_of(study)
        self._system = system_of(study)
        self._resolver = Resolver(self._system, study.base, study.data, directory=study.directory)

    def problems(self) -> Iterator[Problem]:
        """Find factors that are declared idle and are not, then factors that are idle and not declared."""
        yield from self._wrong_declarations()
        for names, pairs in grouped(self._twins()).items():
            is_component = names[-1] in self._axes.components
            place = f"components.{names[-1]}" if is_component else f"factors.{names[-1]}.levels"
            yield Problem(place, self._explain(names, pairs))

    def _twins(self) -> Iterator[tuple[tuple[str, ...], tuple[Cell, Cell]]]:
        """Yield cells that run the trials of an earlier one, after the factors in which both differ."""
        cells = grouped((self._identity(cell), cell) for cell in self._axes.cells())
        cells.pop((), None)
        for group in cells.values():
            for index, cell in enumerate(group[1:], 1):
                # Named after the twin that differs in the fewest factors: those are the ones without effect.
                differences = [(self._differing(cell, other), other) for other in group[:index]]
                names, twin = min(differences, key=lambda pair: len(pair[0]))
                yield names, (twin, cell)

    def _wrong_declarations(self) -> Iterator[Problem]:
        for index, idle in enumerate(self._study.design.idle):
            for idle_levels in itertools.product(*map(alternatives, idle.when.values())):
                where = dict(zip(idle.when, idle_levels, strict=True))
                levels = self._axes.levels[idle.factor]
                cells = [self._axes.cell({**where, idle.factor: level}) for level in levels]
                if self._are_apart(cells):
                    message = f"{idle.factor} has an effect where {conditions_text(where)}; remove the entry"
                    yield Problem(f"design.idle[{index}]", message)

    def _identity(self, cell: Cell) -> tuple[str, ...]:
        """Fingerprints of a cell's trials; none where its config is refused."""
        fingerprints = []
        for params in self._probes(cell):
            config = self._config(cell, params)
            if config is None:
                return ()
            graph = self._system.stage_graph(config, seed=self._study.seeds[0], splits=REPLICATE_SPLITS)
            fingerprints.append(graph.fingerprint)
        return tuple(fingerprints)

    def _config(self, cell: Cell, params: Mapping[str, Any]) -> BaseModel | None:
        return self._resolver.faults(cell, params)[0]

    def _probes(self, cell: Cell) -> list[dict[str, Any]]:
        config = self._config(cell, {})
        if self._study.search is None or config is None:
            return [{}]
        space = self._study.search.space
        values = config.model_dump(mode="json")
        # One domain at a time: all combinations of a space are too many to build.
        low_corners = [
            corner(space, values, 0, {path: value})
            for path, domain in space.items()
            for value in domain.probes().values()
        ]
        return [*low_corners, corner(space, values, -1)]

    def _explain(self, names: Sequence[str], pairs: Sequence[tuple[Cell, Cell]]) -> str:
        twin, cell = pairs[0]
        same_cells = [twin, *(other for first, other in pairs if first is twin)]
        labels = [repr(same_cell.label) for same_cell in same_cells]
        cells = f"cells {', '.join(labels[:-1])} and {labels[-1]}"
        num_others = len({same_cell.label for pair in pairs for same_cell in pair}) - len(labels)
        overridden = {**twin.overrides, **cell.overrides}
        changed = [path for path in overridden if not _agree(twin, cell, path)]
        if self._config(twin, {}) == self._config(cell, {}):
            return f"{cells} have the same config; keep one"
        where = ""
        remedies = ["keep one of them"]
        if conditions := self._conditions(names, pairs):
            where = f" where {conditions_text(conditions)}"
            if len(names) == 1 and self._study.design.kind == "full":
                when = ", ".join(f"{k}: [{', '.join(map(level_text, v))}]" for k, v in conditions.items())
                remedies.insert(0, f"declare design.idle: [{{factor: {names[0]}, when: {{{when}}}}}]")
        elif read_when := [each for path in changed for each in self._system.conditions(path)]:
            listed = [{path: [*values] for path, values in condition.items()} for condition in read_when]
            where = f" unless {' or '.join(map(conditions_text, listed))}"
            remedies.insert(0, "change that")
        others = f" (and so do {num_others} others)" if num_others else ""
        verb = "has" if len(changed) == 1 else "have"
        return (
            f"{cells} run the same trials{others}: {' and '.join(changed)} {verb} no effect{where}; "
            f"{', or '.join(remedies)}"
        )

    def _conditions(self, names: Sequence[str], pairs: Sequence[tuple[Cell, Cell]]) -> dict[str, list[Any]]:
        """The levels of another factor without which the twins would differ."""
        # The factor is idle only under this level if another level of it sets the twins apart.
        for name, levels in self._axes.levels.items():
            needed = []
            for twin, cell in pairs if name not in names else ():
                moved = [
                    [self._axes.cell({**same_cell.levels, name: level}) for same_cell in (twin, cell)]
                    for level in levels
                ]
                if any(map(self._are_apart, moved)) and cell.levels[name] not in needed:
                    needed.append(cell.levels[name])
            if needed:
                return {name: needed}
        return {}

    def _are_apart(self, cells: Sequence[Cell]) -> bool:
        # Cells whose config is refused have the identity (): they differ from none.
        return len({self._identity(cell) for cell in cells} - {()}) > 1

    @staticmethod
    def _differing(first: Cell, second: Cell) -> tuple[str, ...]:
        levels = first.levels.items()
        return tuple(name for name, level in levels if not same(level, second.levels[name]))


def _agree(first: Cell, second: Cell, path: str) -> bool:
    both = path in first.overrides and path in second.overrides
    return both and same(first.overrides[path], second.overrides[path])


# Rules about values of ``base`` and ``data`` that no trial reads, since a factor or the search replaces them.


def shadow_problems(
    draft: Draft,
    cells: Sequence[Cell],
    overrides: Overrides,
) -> Iterator[Problem]:
    """Find values that factors replace in every cell, and overrides of searched values.

    Such a value looks like a setting of the study and changes none of its trials; as an override, it would
    make a variant that runs the cells of the study itself. The file may repeat the baseline's value, so that
    ``base`` reads as the reference configuration, and give a value to what is searched, for a run without
    the search.

    Args:
        draft: The study.
        cells: Its cells, the baseline first; none where it is not certain which they are.
        overrides: The overrides that it was read with.
    """
    if not draft.can_use("base", "data", "factors", "components", "design", "exclude", "search"):
        return
    study = draft.study
    try:
        reference = nested_config(study.base, study.data, cells[0].overrides, {}) if cells else {}
    except ValueError:
        # A path leads through a value without parts; reported with the cell that has it.
        return
    set_values = [(f"base.{path}", path, value) for path, value in paths.leaves(study.base)]
    data = paths.leaves({"data": study.data})
    set_values += [(path, path, value) for path, value in data]
    for place, path, value in set_values:
        domain = _domain(study, path)
        owners = _owners(study, cells, path)
        if domain and not overrides.values.keys().isdisjoint(paths.ancestors(place)):
            yield Problem(
                place, f"no trial reads this value: {domain} is searched; override the domain instead"
            )
        elif owners:
            baseline_value = paths.get(reference, path)
            if baseline_value is paths.MISSING or not same(value, baseline_value):
                yield Problem(place, _explain(study, path, value, baseline_value, owners))


def _domain(study: Study, path: str) -> str | None:
    """The domain that proposes a value in every trial; None where there is none or it has a condition."""
    space = study.search.space if study.search else {}
    for target, domain in space.items():
        if paths.contains(target, path) and not domain.when:
            return f"search.space.{target}"
    return None


def _owners(
    study: Study,
    cells: Sequence[Cell],
    path: str,
) -> list[str]:
    """What replaces a value, the baseline's factor first; nothing where some cell reads it."""
    names = [f"factors.{name}" for name in study.factors]
    names += [f"components.{name}" for name in study.components]
    owners: dict[str, None] = {}
    for cell in cells:
        origins = [origin for target, origin in cell.origins.items() if paths.contains(target, path)]
        # One cell that reads the value is enough for it to have an effect.
        if not origins:
            return []
        owners |= dict.fromkeys(name for name in names for o in origins if o.startswith(f"{name}."))
    return list(owners)


def _explain(
    study: Study,
    path: str,
    value: Any,
    baseline_value: Any,
    owners: Sequence[str],
) -> str:
    # The first owner is a factor, since the baseline leaves no component out.
    name = owners[0].removeprefix("factors.")
    factor = study.factors[name]
    has_level = factor.target == path and any(same(level, value) for level in factor.level_values)
    level = level_text(value if has_level else factor.baseline)
    verb = "sets" if len(owners) == 1 else "set"
    there = "its default" if baseline_value is paths.MISSING else level_text(baseline_value)
    return (
        f"no cell reads this value: {' and '.join(owners)} {verb} {path} in each (baseline: {there}). Leave "
        f"it out; change {owners[0]}.levels or .baseline, or run chosen levels: --only {name}={level}"
    )
