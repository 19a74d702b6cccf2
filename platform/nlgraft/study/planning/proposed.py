"""Proposals as studies: a study's baseline alone, with overrides, and two configs compared as two cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue

from nlgraft.basics.errors import Problem, StudyError
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data import paths
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import NOT_IN_VARIANT, Study
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.reading import documents
from nlgraft.study.reading.reader import read_study
from nlgraft.study.reading.resolving import nested_config, resolve_cell

PROPOSAL = "proposal"
"""Name of the factor whose baseline is the kept config."""

_KEPT = "kept"
_FIRST_SEED = 3_000_000_000
_SEEDS_PER_BLOCK = 100
_MEASURING = ("data", "score")
"""Fields of a system's config that determine on which data, and by which metrics, output is scored."""

StudyT = TypeVar("StudyT", bound=Study)


def seeds_of(number: int, num_seeds: int) -> list[int]:
    """Return the seeds of a comparison with a kept proposal, far from those that people choose."""
    start = _FIRST_SEED + _SEEDS_PER_BLOCK * number
    return list(range(start, start + num_seeds))


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those that select a study (scales, storage ...) and those that are proposed."""
    chosen = [text for text in overrides if _is_choice(text)]
    return chosen, [text for text in overrides if text not in chosen]


def _is_choice(text: str) -> bool:
    field = text.partition("=")[0].partition(".")[0]
    return text.startswith("@") or field in NOT_IN_VARIANT


def baseline_of(study: StudyT) -> StudyT:
    """Reduce a study to its baseline.

    Raises:
        StudyError: It has seeds that belong to streams.
    """
    if reserved := [seed for seed in study.seeds if seed >= _FIRST_SEED]:
        message = f"seed {reserved[0]} belongs to streams of proposals; choose seeds below {_FIRST_SEED}"
        raise StudyError([Problem("seeds", message)], study.name)
    return _read(study, _baseline_document(study), [])


def with_overrides(study: StudyT, overrides: Mapping[str, JsonValue]) -> StudyT:
    """Put values into a study that has one cell, by path in the study file."""
    values = study.to_dict()
    for path, value in overrides.items():
        paths.put(values, path, value)
    return _read(study, values, [])


def with_changes(study: StudyT, changes: Sequence[str]) -> tuple[StudyT, dict[str, JsonValue]]:
    """Put ``key=value`` texts into a study that has one cell.

    Returns:
        The study, and the values by path in the study file.

    Raises:
        StudyError: Lists all problems: nothing is proposed, data or metrics are changed, or the study's own.
    """
    if not changes:
        raise StudyError([Problem("", "a proposal is one or more key=value")], study.name)
    changed = _read(study, study.to_dict(), changes)
    values = dict(changed._overrides.values)
    problems = [
        Problem(path, "what is measured stays the same in a stream; change it in the study, for a new one")
        for path in values
        if (parts := paths.split(path))[0] != "base" or parts[1] in _MEASURING
    ]
    if problems:
        raise StudyError(problems, study.name)
    return changed, values


def merge_overrides(first: Mapping[str, JsonValue], second: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Put overrides on top of others; a later one replaces what lies inside it."""
    remaining = {
        path: value
        for path, value in first.items()
        if not any(later in paths.ancestors(path) for later in second)
    }
    return {**remaining, **second}


def trial_graph(study: Study, seed: int) -> StageGraph:
    """Build the stage graph of a trial of a study that has one cell, scored on dev alone."""
    return resolve_cell(study, cells(study)[0]).graph(seed, SEARCH_SPLITS)


def data_key(study: Study) -> str:
    """Digest of the corpus that a study with one cell is scored on, or of its settings where none is read."""
    graph = trial_graph(study, 0)
    for stage in sorted(graph.stages, key=graph.depth, reverse=True):
        if (corpus := stage.inputs.get("corpus")) is not None:
            return corpus.fingerprint
    return fingerprint(study.data)


def comparison_study(
    kept: StudyT,
    proposal: Study,
    name: str,
    seeds: Sequence[int],
    first: int,
) -> StudyT:
    """Build the study that compares a proposal with the kept config.

    Args:
        kept: The kept config, a study that has one cell.
        proposal: The proposed config, likewise.
        name: Name of the proposal's level.
        seeds: All seeds that the comparison may use.
        first: Number of seeds before the first look; all of them without looks.
    """
    arms = {_KEPT: kept.base, name: proposal.base}
    # Whole sections: a proposal may replace one, and a level can set values but remove none.
    shared = {
        key: value for key, value in kept.base.items() if proposal.base.get(key, paths.MISSING) == value
    }
    levels = {
        arm: {key: value for key, value in base.items() if key not in shared} for arm, base in arms.items()
    }
    values = kept.to_dict() | {
        "name": f"{kept.name}-stream",
        "base": shared,
        "factors": {PROPOSAL: {"levels": levels, "baseline": _KEPT}},
        "seeds": list(seeds),
    }
    if first < len(seeds):
        values["sequential"] = {"looks": [first, len(seeds)]}
    return _read(kept, values, [])


def check_comparable(kept: Study, proposal: Study) -> list[str]:
    """Check that two configs can be compared seed by seed.

    Returns:
        Names of the stages that both have in common and that are trained once for all seeds.

    Raises:
        StudyError: They make the same trials, or a stage that is trained once differs.
    """
    (proposal_trial, proposal_once), (kept_trial, kept_once) = (
        _trained_once(study) for study in (proposal, kept)
    )
    if proposal_trial == kept_trial:
        raise StudyError([Problem("", "it makes the same trials as what is kept")], proposal.name)
    differing = {(proposal_once | kept_once)[key] for key in proposal_once.keys() ^ kept_once.keys()}
    if differing:
        message = (
            f"{', '.join(sorted(differing))} is trained once for all seeds and differs between the two, so "
            "that no number of seeds decides; train it for every seed (is_per_seed: true)"
        )
        raise StudyError([Problem("", message)], proposal.name)
    return sorted(set(proposal_once.values()))


def _trained_once(study: Study) -> tuple[str, dict[str, str]]:
    """Return the fingerprint of a trial, and names by fingerprint of the random stages that seeds share."""
    first, second = (trial_graph(study, seed) for seed in (1, 2))
    second_fingerprints = {stage.fingerprint for stage in second.stages}
    # A stage with a seed that is in both graphs is random, but its seed is not the trial's.
    shared = {
        stage.fingerprint: stage.name
        for stage in first.stages
        if stage.seed is not None and stage.fingerprint in second_fingerprints
    }
    return first.fingerprint, shared


def _baseline_document(study: Study) -> dict[str, Any]:
    """Values of a study that holds another one's baseline alone."""
    config = nested_config(study.base, study.data, cells(study)[0].overrides, {})
    data = config.pop("data")
    values = study.to_dict()
    places = ("resources", "budget", "storage", "tracking")
    return {
        **{
            name: values[name]
            for name in ("schema_version", "name", "description", "system", "seeds", *places)
        },
        "analysis": {"alpha": study.analysis.alpha},
        "data": data,
        "base": config,
        "objective": study.objective.model_dump(mode="json"),
    }


def _read(study: StudyT, values: dict[str, Any], changes: Sequence[str]) -> StudyT:
    directory = Path(study.directory) if study.directory is not None else Path.cwd()
    return read_study(documents.from_values(values), changes, {}, study.name, type(study), directory)
