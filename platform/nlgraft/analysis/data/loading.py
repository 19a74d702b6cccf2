"""Read the cells of a study from its store: trials, their statistics, and what they were scored on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from safetensors.numpy import load

from nlgraft.analysis.data.ledger import Segments, scored_lines
from nlgraft.analysis.data.trials import Array, CellResult, State, Texts, TrialResult, by_document
from nlgraft.basics.errors import DataError, StoreError
from nlgraft.evaluation.artifact import parse_lines
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore, Manifest
from nlgraft.pipeline.trial import TrialRecord, trial_record
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import AREA, CURVE, REPLICATE_SPLITS, STEPS, TEST_MEAN, System, on_split
from nlgraft.study.planning.selection import best_proposal, load_proposals
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.study.reading.system_import import system_of
from nlgraft.text.corpora import stream_file
from nlgraft.text.corpus_config import further_tests

_AGREEMENT = 1e-6


def load_cell(
    study: Study,
    cell: Cell,
    store: ArtifactStore,
    busy: Collection[str] = (),
    granted: int = 0,
    splits: tuple[str, ...] = REPLICATE_SPLITS,
) -> CellResult:
    """Read everything on record of one cell; trials that have not run are ``planned``.

    Args:
        study: The study.
        cell: The cell.
        store: The store of its trials.
        busy: Fingerprints of the stages that are being computed now.
        granted: Seeds that a look has granted to it, if more than the study's.
        splits: Splits on which its replicates are scored.
    """
    seeds = study.look_seeds[: max(granted, len(study.seeds))]
    if study.search is None:
        return CellResult(cell, _replicates(study, cell, {}, store, busy, seeds, splits))
    proposals = load_proposals(study, cell, store)
    search = tuple(
        TrialResult(
            *("search", cell, proposal.seed, proposal.fingerprint, *_ended(proposal.record, "planned")),
            params=proposal.params,
            number=proposal.number,
            record=proposal.record,
        )
        for proposal in proposals
    )
    ended = sum(proposal.has_ended for proposal in proposals)
    best = best_proposal(study.objective, proposals)
    # Replicates are of the best of all trials, which is not known before the last one ends.
    if ended < study.search.trials:
        state, reason = "planned", f"{ended} of {study.search.trials} search trials have ended"
    elif best is None:
        state, reason = "failed", f"no search trial finished with a value of {study.objective.metric}"
    else:
        replicates = _replicates(study, cell, dict(best.params), store, busy, seeds, splits)
        return CellResult(cell, replicates, search, best.params)
    not_chosen = (TrialResult("replicate", cell, seed, "", state, reason) for seed in study.seeds)
    return CellResult(cell, tuple(not_chosen), search)


def load_manifests(trials: Iterable[TrialResult], store: ArtifactStore) -> dict[str, Manifest]:
    """Read the manifests of all stages of some trials, by fingerprint; lost or damaged ones are left out."""
    manifests = {}
    stages = {stage["fingerprint"] for trial in trials for stage in trial.stages}
    for fingerprint in sorted(stages):
        try:
            manifest = store.manifest(fingerprint)
        except StoreError:
            continue
        if manifest is not None:
            manifests[fingerprint] = manifest
    return manifests


def _ended(record: TrialRecord | None, otherwise: State) -> tuple[State, str]:
    return (otherwise, "") if record is None else (record.state, record.reason)


def _replicates(
    study: Study,
    cell: Cell,
    params: Mapping[str, object],
    store: ArtifactStore,
    busy: Collection[str],
    seeds: Sequence[int],
    splits: tuple[str, ...],
) -> tuple[TrialResult, ...]:
    system = system_of(study)
    resolved = resolve_cell(study, cell, params)
    trials = []
    for seed in seeds:
        graph = resolved.graph(seed, splits)
        record = trial_record(store, graph.fingerprint)
        is_running = any(stage.fingerprint in busy for stage in graph.stages)
        state, reason = _ended(record, "running" if is_running else "planned")
        finished = record if state == "finished" else None
        files = _TrialFiles(graph, store)
        trials.append(
            TrialResult(
                *("replicate", cell, seed, graph.fingerprint, state, reason),
                params=params,
                record=record,
                derived=_test_means(finished, system) if finished else {},
                segments=files.segments(system, finished) if finished else {},
                num_documents=len(set(files.stream("test", "document") or ())) if finished else 0,
                read_texts=files.texts,
                read_stream=files.stream,
                seeded={stage.fingerprint: stage.name for stage in graph.stages if stage.seed is not None},
            )
        )
    return tuple(trials)


def _test_means(record: TrialRecord, system: System) -> dict[str, float]:
    """Average the metrics that the trial has on all test sets of the study."""
    splits = ("test", *further_tests(record.config.get("data")))
    means = {}
    for name, metric in system.metrics.items():
        if metric.split == "test" and (mean := on_split(name, TEST_MEAN)) in system.metrics:
            values = [record.metrics.get(on_split(name, split), math.nan) for split in splits]
            means[mean] = sum(values) / len(values)
    return means


@dataclass(frozen=True)
class _TrialFiles:
    """What the store holds of the stages of a trial; damaged files count as missing."""

    graph: StageGraph
    store: ArtifactStore

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages, the one nearest the result first."""
        return sorted(self.graph.stages, key=self.graph.depth, reverse=True)

    def read(self, stage: Stage, name: str) -> bytes | None:
        """Read a file of a stage; None if there is none."""
        try:
            return self.store.read_file(stage, name)
        except StoreError:
            return None

    def segments(self, system: System, record: TrialRecord) -> dict[str, Array]:
        """Read the statistics of the declared metrics."""
        segments = {}
        splits = sorted({name.partition("/")[0] for name, metric in system.metrics.items() if metric.split})
        for stage, split in itertools.product(self.stages, splits):
            data = self.read(stage, f"segments-{split}.safetensors")
            for name, rows in load(data).items() if data else ():
                metric = f"{split}/{name}"
                value = record.metrics.get(metric, math.nan)
                if metric in system.metrics and metric not in segments and _agree(name, rows, value):
                    segments[metric] = by_document(rows.astype(np.float64), self.stream(split, "document"))
        return segments

    def texts(self, split: str) -> Texts | None:
        """Read hypotheses and references."""
        for stage in self.stages:
            files = [self.read(stage, f"{side}-{split}.txt") for side in ("hypotheses", "references")]
            hypotheses, references = (parse_lines(data or b"") for data in files)
            if hypotheses and len(hypotheses) == len(references):
                return hypotheses, references
        return None

    def stream(self, split: str, role: str) -> list[str] | None:
        """Read a role of the corpus that the result was scored on; None if it has no such role.

        Without a corpus the result itself may name the items that it scores.
        """
        corpora = (stage.inputs["corpus"] for stage in self.stages if "corpus" in stage.inputs)
        data = self.read(next(corpora, self.graph.result), f"{split}/{stream_file(role)}")
        return None if data is None else parse_lines(data)


def _agree(name: str, rows: Array, value: float) -> bool:
    """True if statistics reproduce the score on record; otherwise they belong to another text or version."""
    try:
        recomputed = float(aggregate(name, rows.astype(np.float64).sum(axis=0)))
    except DataError:
        return False
    return abs(recomputed - value) <= _AGREEMENT * max(1.0, abs(value))


def with_early_learning(cells: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Add the metrics of early learning to the finished replicates that have a curve of dev loss."""
    curves = {
        (cell.label, trial.seed): np.array(sorted(points.items()), dtype=float)
        for cell in cells
        for trial in cell.finished
        if len(points := trial.curve(CURVE)) > 1
    }
    if not curves:
        return tuple(cells)
    # Areas are over the steps that all curves have; a mean over unlike steps would compare unlike parts.
    first = max(curve[0, 0] for curve in curves.values())
    last = min(curve[-1, 0] for curve in curves.values())
    early: dict[tuple[str, int], dict[str, float]] = {}
    for (label, seed), curve in curves.items():
        early[label, seed] = {AREA: mean_height(curve, first, last)} if first < last else {}
        if (goal := curves.get((cells[0].label, seed))) is not None:
            early[label, seed][STEPS] = steps_to(curve, float(goal[:, 1].min()))
    return tuple(
        replace(
            cell,
            trials=tuple(
                replace(trial, derived={**trial.derived, **early.get((cell.label, trial.seed), {})})
                for trial in cell.trials
            ),
        )
        for cell in cells
    )


def mean_height(curve: Array, first: float, last: float) -> float:
    """Average a curve, linear between its points of shape (n, 2), from one step to another."""
    inner = curve[(curve[:, 0] > first) & (curve[:, 0] < last), 0]
    steps = np.concatenate(([first], inner, [last]))
    return float(np.trapezoid(np.interp(steps, curve[:, 0], curve[:, 1]), steps) / (last - first))


def steps_to(curve: Array, goal: float) -> float:
    """Find the step at which a curve first is as low as ``goal``; its last step if it never is."""
    low = np.flatnonzero(curve[:, 1] <= goal)
    if len(low) == 0:
        return float(curve[-1, 0])
    index = int(low[0])
    if index == 0:
        return float(curve[0, 0])
    (before, high), (after, value) = curve[index - 1], curve[index]
    return float(before + (after - before) * (high - goal) / (high - value))


def scored_segments(
    trials: Sequence[TrialResult],
    splits: Sequence[str],
    data: Mapping[str, Any],
) -> Segments:
    """Describe the lines that trials were scored on.

    Args:
        trials: Finished trials; the first one that has the lines stored tells them.
        splits: Names of the split, the likeliest first.
        data: The study's data, whose texts are named where no trial has its lines stored.
    """
    for split in splits:
        for trial in trials:
            sources, target, labels, items = (
                trial.read_stream(split, role) or [] for role in ("source 0", "target", "label", "item")
            )
            references = target or labels or (trial.read_texts(split) or ([], []))[1] or sources or items
            if references:
                return Segments.of(scored_lines(sources, references))
    # Numbers among the settings, such as that of training lines, make no other segments.
    named = sorted(f"{path} {value}" for path, value in dotted(data) if isinstance(value, str))
    return Segments.of(["\n".join([splits[-1], *named])])
