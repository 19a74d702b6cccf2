"""A proposal and what is kept, seed by seed, as their trials are on record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from nlgraft.analysis.data.stream import Arm
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, trial_record
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.study.reading.system_import import load_system

_ARMS: tuple[Arm, Arm] = ("kept", "proposal")


@dataclass(frozen=True)
class Pairs:
    """Trials of two configs with the same seeds.

    Attributes:
        gains: Proposal minus what is kept by seed, where both have a value; positive is better.
        failed: Reasons by arm and seed of the trials that failed.
        diverged: Arms and seeds whose value is not finite.
        open: Seeds with a trial that has not ended.
        why_not: Reason why the values cannot be compared; empty if they can.
    """

    gains: Mapping[int, float]
    failed: Mapping[tuple[Arm, int], str] = field(default_factory=dict)
    diverged: frozenset[tuple[Arm, int]] = frozenset()
    open: frozenset[int] = frozenset()
    why_not: str = ""


def read_pairs(pair: Study, store: ArtifactStore, num_seeds: int) -> Pairs:
    """Read the first seeds of a study of two cells, on its objective."""
    objective = pair.objective
    sign = 1.0 if objective.direction == "maximize" else -1.0
    records = _records(pair, store, num_seeds)
    values: dict[tuple[Arm, int], float] = {}
    failed: dict[tuple[Arm, int], str] = {}
    diverged = set()
    unended = set()
    for (arm, seed), record in records.items():
        if record is None or record.state not in ("finished", "failed"):
            unended.add(seed)
        elif record.state == "failed":
            failed[arm, seed] = record.reason
        elif math.isfinite(value := record.metrics.get(objective.metric, math.nan)):
            values[arm, seed] = value
        else:
            diverged.add((arm, seed))
    gains = {
        seed: sign * (values["proposal", seed] - values["kept", seed])
        for seed in pair.seeds[:num_seeds]
        if ("proposal", seed) in values and ("kept", seed) in values
    }
    why_not = _why_not(pair, [(records["kept", seed], records["proposal", seed]) for seed in gains])
    return Pairs(gains, failed, frozenset(diverged), frozenset(unended), why_not)


def _records(pair: Study, store: ArtifactStore, num: int) -> dict[tuple[Arm, int], TrialRecord | None]:
    records = {}
    for arm, cell in zip(_ARMS, cells(pair), strict=True):
        resolved = resolve_cell(pair, cell)
        for seed in pair.seeds[:num]:
            records[arm, seed] = trial_record(store, resolved.graph(seed, SEARCH_SPLITS).fingerprint)
    return records


def _why_not(pair: Study, records: list[tuple[TrialRecord | None, TrialRecord | None]]) -> str:
    """Say why values of the two arms cannot be compared."""
    name = pair.objective.metric
    counted_by = load_system(pair.system).metrics[name].counted_by
    for kept, proposal in records:
        assert kept is not None
        assert proposal is not None
        if kept.signatures.get(name) != proposal.signatures.get(name):
            return f"{name} is computed in another way: {proposal.signatures.get(name)}"
        if counted_by and kept.metrics.get(counted_by) != proposal.metrics.get(counted_by):
            return f"{name} averages over units of another vocabulary; take a metric per character"
    return ""
