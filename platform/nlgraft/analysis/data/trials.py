"""The trials of a study as the store remembers them, with the statistics that comparisons need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load

from nlgraft.analysis.statistics.comparison import Measured
from nlgraft.analysis.statistics.resampling import Array
from nlgraft.errors import DataError, StoreError
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore, Manifest
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Objective, Study
from nlgraft.study.planning.selection import Proposal, best_proposal, load_proposals
from nlgraft.study.reading.system import REPLICATE_SPLITS, System, load_system, resolve_config

State = Literal["planned", "running", "finished", "stopped", "failed", "killed"]

_AGREEMENT = 1e-6


@dataclass(frozen=True, eq=False)
class TrialResult:
    """One trial of a cell.

    Attributes:
        kind: ``search`` trials were scored on dev only, ``replicate`` trials on dev and test.
        cell: The cell it belongs to.
        seed: Its seed.
        fingerprint: Identity of the trial; empty while the search has not yet said which config it has.
        state: How it stands.
        reason: Why it is not finished, in one line.
        params: Searched values by dotted path.
        number: Number of the proposal; None for replicates.
        record: What is on record; None before the trial has ended once.
        segments: Per-segment statistics by metric name.
    """

    kind: Literal["search", "replicate"]
    cell: Cell
    seed: int
    fingerprint: str
    state: State
    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None
    record: TrialRecord | None = None
    segments: Mapping[str, Array] = field(default_factory=dict)
    _measured: dict[str, Measured] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> dict[str, float]:
        """Values on record by metric name."""
        return {} if self.record is None else self.record.metrics

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config on record."""
        return {} if self.record is None else self.record.config

    def measured(self, metric: str) -> Measured | None:
        """Give one metric with its statistics.

        Args:
            metric: Name of the metric.

        Returns:
            None unless the trial is finished and reported the metric as a finite number.
        """
        value = self.metrics.get(metric, math.nan)
        if self.record is None or self.state != "finished" or not math.isfinite(value):
            return None
        if metric not in self._measured:
            signature = self.record.signatures.get(metric)
            self._measured[metric] = Measured(value, self.segments.get(metric), signature)
        return self._measured[metric]


@dataclass(frozen=True, eq=False)
class CellResult:
    """One cell: its replicates and, where the study searches, its search trials.

    Attributes:
        cell: The cell.
        trials: One replicate for each seed of the study, in the study's order.
        search: Search trials by number.
        params: What the search chose for the replicates; empty without a search or before it is over.
        notes: What is unusual about the cell, as sentences.
    """

    cell: Cell
    trials: tuple[TrialResult, ...]
    search: tuple[TrialResult, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """How the cell stands: the worst of its replicates, ``finished`` only when all are."""
        states = {trial.state for trial in self.trials}
        worst_first: tuple[State, ...] = ("failed", "killed", "stopped", "running", "planned")
        for state in worst_first:
            if state in states:
                return state
        return "finished"

    @property
    def reasons(self) -> list[str]:
        """Why replicates are not finished, each once."""
        texts = [f"seed {trial.seed}: {trial.reason}" for trial in self.trials if trial.reason]
        return list(dict.fromkeys(texts))

    def measured(self, metric: str) -> dict[int, Measured]:
        """Give a metric of all finished replicates.

        Args:
            metric: Name of the metric.

        Returns:
            By seed, in the study's order.
        """
        found = {trial.seed: trial.measured(metric) for trial in self.trials}
        return {seed: measured for seed, measured in found.items() if measured is not None}

    def mean(self, metric: str) -> float | None:
        """Average a metric over the finished replicates; None when there is none."""
        values = [measured.value for measured in self.measured(metric).values()]
        return float(np.mean(values)) if values else None

    def std(self, metric: str) -> float | None:
        """Standard deviation of a metric over seeds (n - 1); None below two seeds."""
        values = [measured.value for measured in self.measured(metric).values()]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def pareto(self, objectives: Sequence[Objective]) -> list[TrialResult]:
        """List the search trials that no other one beats on every objective.

        Args:
            objectives: The study's objectives.

        Returns:
            Finished search trials by number; those without a finite value of every objective are left out.
        """
        signs = [1.0 if objective.direction == "maximize" else -1.0 for objective in objectives]
        scored: list[tuple[TrialResult, Array]] = []
        for trial in self.search:
            values = np.array([trial.metrics.get(objective.metric, math.nan) for objective in objectives])
            if trial.state == "finished" and np.isfinite(values).all():
                scored.append((trial, values * signs))
        return [
            trial
            for trial, values in scored
            if not any((other >= values).all() and (other > values).any() for _, other in scored)
        ]


def load_cell(study: Study, cell: Cell, store: ArtifactStore, busy: set[str]) -> CellResult:
    """Read everything on record of one cell.

    Args:
        study: The study.
        cell: The cell.
        store: Where its trials are.
        busy: Fingerprints of the stages that are being computed now.

    Returns:
        The cell; trials that have not run are ``planned``.
    """
    if study.search is None:
        return CellResult(cell, _replicates(study, cell, {}, store, busy))
    proposals = [p for p in load_proposals(study, cell, store) if p.number < study.search.trials]
    search = tuple(_search_trial(cell, proposal) for proposal in proposals)
    ended = sum(proposal.record is not None for proposal in proposals)
    if ended < study.search.trials:
        reason = f"the search has ended {ended} of {study.search.trials} trials"
        return CellResult(cell, _undecided(study, cell, "planned", reason), search, {}, (reason,))
    best = best_proposal(study.objectives, proposals)
    if best is None:
        reason = f"no search trial finished with a value of {study.objectives[0].metric}"
        return CellResult(cell, _undecided(study, cell, "failed", reason), search, {}, (reason,))
    replicates = _replicates(study, cell, dict(best.params), store, busy)
    return CellResult(cell, replicates, search, best.params)


def load_manifests(trials: Iterable[TrialResult], store: ArtifactStore) -> dict[str, Manifest]:
    """Read the manifests of all stages of some trials.

    Args:
        trials: Trials with a record.
        store: Where their artifacts are.

    Returns:
        By fingerprint; stages whose artifact is gone or damaged are left out.
    """
    manifests: dict[str, Manifest] = {}
    stages = {stage["fingerprint"] for trial in trials if trial.record for stage in trial.record.stages}
    for fingerprint in sorted(stages):
        try:
            manifest = store.manifest(fingerprint)
        except StoreError:
            continue
        if manifest is not None:
            manifests[fingerprint] = manifest
    return manifests


def _search_trial(cell: Cell, proposal: Proposal) -> TrialResult:
    record = proposal.record
    return TrialResult(
        kind="search",
        cell=cell,
        seed=proposal.seed,
        fingerprint=proposal.fingerprint,
        state="planned" if record is None else record.state,
        reason="" if record is None else record.reason,
        params=proposal.params,
        number=proposal.number,
        record=record,
    )


def _undecided(study: Study, cell: Cell, state: State, reason: str) -> tuple[TrialResult, ...]:
    return tuple(TrialResult("replicate", cell, seed, "", state, reason) for seed in study.seeds)


def _replicates(
    study: Study, cell: Cell, params: Mapping[str, Any], store: ArtifactStore, busy: set[str]
) -> tuple[TrialResult, ...]:
    system = load_system(study.system)
    config = resolve_config(study, cell, params)
    trials = []
    for seed in study.seeds:
        graph = system.stage_graph(config, seed=seed, splits=REPLICATE_SPLITS)
        document = store.read_record("trials", graph.fingerprint)
        record = None if document is None else TrialRecord.from_json(document)
        is_running = any(stage.fingerprint in busy for stage in graph.stages)
        state: State = "running" if is_running else "planned"
        is_finished = record is not None and record.state == "finished"
        trials.append(
            TrialResult(
                kind="replicate",
                cell=cell,
                seed=seed,
                fingerprint=graph.fingerprint,
                state=state if record is None else record.state,
                reason="" if record is None else record.reason,
                params=params,
                record=record,
                segments=_segments(graph, store, system, record) if record and is_finished else {},
            )
        )
    return tuple(trials)


def _segments(
    graph: StageGraph, store: ArtifactStore, system: System, record: TrialRecord
) -> dict[str, Array]:
    """Read the statistics of the declared metrics, the stage nearest the result first."""
    found: dict[str, Array] = {}
    splits = sorted({metric.split for metric in system.metrics.values() if metric.split is not None})
    for stage in sorted(graph.stages, key=graph.depth, reverse=True):
        for split in splits:
            try:
                data = store.read_file(stage, f"segments-{split}.safetensors")
            except StoreError:
                break
            for name, rows in load(data).items() if data else ():
                metric = f"{split}/{name}"
                if metric in system.metrics and metric not in found and _agree(name, rows, record, metric):
                    found[metric] = rows.astype(np.float64)
    return found


def _agree(name: str, rows: Array, record: TrialRecord, metric: str) -> bool:
    """Tell whether statistics give the score on record: else they belong to something else."""
    value = record.metrics.get(metric, math.nan)
    try:
        recomputed = float(aggregate(name, rows.astype(np.float64).sum(axis=0)))
    except DataError:
        return False
    return abs(recomputed - value) <= _AGREEMENT * max(1.0, abs(value))
