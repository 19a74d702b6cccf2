"""Rules about values of ``base`` and ``data`` that no trial reads: a factor or the search sets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nlgraft.basics.errors import Problem
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell, level_text
from nlgraft.study.data.space import same
from nlgraft.study.data.study import Overrides, Study
from nlgraft.study.reading.draft import Draft
from nlgraft.study.reading.resolving import nested_config


def shadow_problems(draft: Draft, cells: Sequence[Cell], overrides: Overrides) -> Iterator[Problem]:
    """Find values that factors set otherwise in every cell, and overrides of what the search proposes.

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
    except ValueError:  # a path through a value without parts; reported with the cell that has it
        return
    given = [(f"base.{path}", path, value) for path, value in paths.leaves(study.base)]
    given += [(path, path, value) for path, value in paths.leaves({"data": study.data})]
    for place, path, value in given:
        domain, owners = _domain(study, path), _owners(study, cells, path)
        if domain and not overrides.values.keys().isdisjoint(paths.ancestors(place)):
            yield Problem(
                place, f"no trial reads this value: {domain} is searched; override the domain instead"
            )
        elif owners and ((wanted := paths.get(reference, path)) is paths.MISSING or not same(value, wanted)):
            yield Problem(place, _explain(study, path, value, wanted, owners))


def _domain(study: Study, path: str) -> str | None:
    """The domain that proposes a value in every trial; None where there is none or it has a condition."""
    space = study.search.space if study.search else {}
    found = (target for target, domain in space.items() if _covers(target, path) and not domain.when)
    return next((f"search.space.{target}" for target in found), None)


def _owners(study: Study, cells: Sequence[Cell], path: str) -> list[str]:
    """What replaces a value, the baseline's factor first; nothing where some cell reads it."""
    names = [f"factors.{name}" for name in study.factors] + [
        f"components.{name}" for name in study.components
    ]
    found: dict[str, None] = {}
    for cell in cells:
        origins = [origin for target, origin in cell.origins.items() if _covers(target, path)]
        if not origins:
            return []
        found |= dict.fromkeys(name for name in names for o in origins if o.startswith(f"{name}."))
    return list(found)


def _covers(target: str, path: str) -> bool:
    """Return True when setting a target replaces the whole value at a path."""
    try:
        outer, inner = paths.split(target), paths.split(path)
    except ValueError:  # no path at all; reported with the config's own paths
        return False
    return inner[: len(outer)] == outer


def _explain(study: Study, path: str, value: Any, wanted: Any, owners: Sequence[str]) -> str:
    name = owners[0].removeprefix("factors.")  # a factor's: the baseline leaves no component out
    factor = study.factors[name]
    has_level = factor.target == path and any(same(level, value) for level in factor.level_values)
    level = level_text(value if has_level else factor.baseline)
    verb = "sets" if len(owners) == 1 else "set"
    there = "its default" if wanted is paths.MISSING else level_text(wanted)
    return (
        f"no cell reads this value: {' and '.join(owners)} {verb} {path} in each (baseline: {there}). Leave "
        f"it out; change {owners[0]}.levels or .baseline, or run chosen levels: --only {name}={level}"
    )
