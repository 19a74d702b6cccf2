"""The record of a trial beside its artifacts: one small JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from nlgraft.pipeline.credentials import without_credentials

TrialState = Literal["finished", "failed", "stopped", "killed"]
_TEXTS = ("reason", "ran_because", "traceback")


@dataclass(kw_only=True)
class TrialRecord:
    """How a trial ended. Its reasons and tracebacks hold no credentials.

    Attributes:
        fingerprint: The trial's identity: the fingerprint of its graph.
        config: The resolved config.
        seed: Seed of the trial; None if none of its stages draws random numbers.
        state: ``finished``; ``failed``; ``stopped`` early on request; ``killed`` from outside.
        reason: One line; empty if finished.
        metrics: Last known value by metric name.
        signatures: How a metric was computed, by metric name, where it has a signature.
        curves: ``[step, value, unix_ms]`` points by name.
        stages: One entry per stage of the graph: name, fingerprint, decision, reason, duration_s; if it
            failed or was stopped also ran_because, and traceback if it failed.
        started_at: Unix seconds.
        ended_at: Unix seconds.
        host: Where it ran.
        attempt: 1 for the first run that left a record.
        num_preemptions: How often this attempt lost a node, e.g. a spot machine, and went on.
    """

    fingerprint: str
    config: dict[str, Any] = field(repr=False)
    seed: int | None
    state: TrialState
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict, repr=False)
    curves: dict[str, list[list[int | float]]] = field(default_factory=dict, repr=False)
    stages: list[dict[str, Any]] = field(default_factory=list, repr=False)
    started_at: float = 0.0
    ended_at: float = 0.0
    host: str = ""
    attempt: int = 1
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        # Masked at the source: drivers and workers create records, reports and MLflow show them.
        self.reason = without_credentials(self.reason)
        self.stages = [
            {name: without_credentials(value) if name in _TEXTS else value for name, value in stage.items()}
            for stage in self.stages
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN and infinities become text, e.g. ``Infinity``."""
        document = asdict(self)
        document["metrics"] = {name: _to_number(value) for name, value in self.metrics.items()}
        document["curves"] = {
            name: [[step, _to_number(value), unix_ms] for step, value, unix_ms in points]
            for name, points in self.curves.items()
        }
        return document


TRIAL_RECORD = TypeAdapter(TrialRecord)
"""Reads what `TrialRecord.to_json` gives; keys of a later version are dropped."""


def _to_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
