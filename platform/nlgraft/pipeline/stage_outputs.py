"""Results in a trial's artifacts: ``metrics.json`` and ``curves.json`` of its stages.

Any stage may write them. ``metrics.json``: ``{"test/bleu": {"value": 31.2, "signature": "...", "n": 500}}``;
``curves.json``: ``{"train/loss": [[step, value, unix_ms], ...]}``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.stage import Reporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore

METRICS = "metrics.json"
CURVES = "curves.json"

Curve = list[list[float]]
_Value = TypeVar("_Value")


class RecordingReporter:
    """A reporter that keeps the curves it passes on.

    A stage that does not finish leaves no artifact, only what it reported.

    Args:
        inner: Receives everything as well.

    Attributes:
        curves: ``[step, value, unix_ms]`` points by name, by stage name.
        num_preemptions: How often a node of the trial was lost; set by whoever runs it.
    """

    def __init__(self, inner: Reporter) -> None:
        self.curves: dict[str, dict[str, Curve]] = {}
        self.num_preemptions = 0
        self._inner = inner

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics and pass them on."""
        unix_ms = int(time.time() * 1000)
        curves = self.curves.setdefault(stage, {})
        for name, value in metrics.items():
            curves.setdefault(name, []).append([step, float(value), unix_ms])
        self._inner.report(stage, step, metrics)

    def should_stop(self) -> str | None:
        """Ask the inner reporter."""
        return self._inner.should_stop()


@dataclass
class TrialResults:
    """Metrics, their signatures where they have one, and curves of all stages of a trial, by name."""

    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)


def check_results(directory: Path) -> None:
    """Refuse malformed or non-finite metrics and malformed curves in a stage's output.

    Raises:
        ContractError: A file is not of the form given at the top of this module.
        FloatingPointError: A metric is NaN or infinite.
    """
    if (directory / METRICS).exists():
        _parse_metrics((directory / METRICS).read_bytes())
    if (directory / CURVES).exists():
        _parse_curves((directory / CURVES).read_bytes())


def collect_results(
    graph: StageGraph, store: ArtifactStore, reporter: RecordingReporter | None = None
) -> TrialResults:
    """Merge the metrics and curves of all stages of a graph.

    Names stay as the stages wrote them. Where several stages wrote one name, the deepest stage keeps it and
    the others' are prefixed ``<stage name>/``, so a finetuning's ``train/loss`` is ``train/loss`` and its
    upstream's is ``upstream/train/loss``.

    Args:
        graph: The trial's graph.
        store: The artifact store.
        reporter: Reports of the stages without an artifact; the last value of each curve counts as a metric.
    """
    stages = sorted(graph.stages, key=graph.depth, reverse=True)
    metrics: list[tuple[Stage, dict[str, dict[str, Any]]]] = []
    curves: list[tuple[Stage, dict[str, Curve]]] = []
    for stage in stages:
        if store.has(stage):
            metrics.append((stage, _parse_metrics(store.read_file(stage, METRICS))))
            curves.append((stage, _parse_curves(store.read_file(stage, CURVES))))
        elif reporter is not None:
            reported = reporter.curves.get(stage.name, {})
            curves.append((stage, reported))
            metrics.append((stage, {name: {"value": points[-1][1]} for name, points in reported.items()}))
    merged = _merge(metrics)
    return TrialResults(
        metrics={name: float(entry["value"]) for name, entry in merged.items()},
        signatures={name: entry["signature"] for name, entry in merged.items() if entry.get("signature")},
        curves=_merge(curves),
    )


def _merge(by_stage: Iterable[tuple[Stage, Mapping[str, _Value]]]) -> dict[str, _Value]:
    merged: dict[str, _Value] = {}
    for stage, values in by_stage:
        for name, value in values.items():
            candidates = (name, f"{stage.name}/{name}", f"{stage.name}-{stage.fingerprint[:8]}/{name}")
            key = next(key for key in candidates if key not in merged)
            merged[key] = value
    return dict(sorted(merged.items()))


def _parse_metrics(data: bytes | None) -> dict[str, dict[str, Any]]:
    document = _parse_object(data, METRICS)
    for name, entry in document.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ContractError(f"{METRICS}: {name!r} is {entry!r}; write {{'value': a number, ...}}")
        if not math.isfinite(value):
            raise FloatingPointError(f"metric {name} is {value}")
    return document


def _parse_curves(data: bytes | None) -> dict[str, Curve]:
    document = _parse_object(data, CURVES)
    for name, points in document.items():
        is_curve = isinstance(points, list) and all(
            isinstance(point, list)
            and len(point) == 3
            and all(isinstance(part, int | float) for part in point)
            for point in points
        )
        if not is_curve:
            raise ContractError(f"{CURVES}: {name!r} is not a list of [step, value, unix_ms]")
    return document


def _parse_object(data: bytes | None, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data or b"{}")
    except ValueError as error:
        raise ContractError(f"{name}: is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ContractError(f"{name}: holds a {type(document).__name__}, not an object")
    return document
