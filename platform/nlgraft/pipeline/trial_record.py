"""What is left of a trial beside its artifacts: one small JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

TrialState = Literal["finished", "failed", "stopped", "killed"]


@dataclass(kw_only=True)
class TrialRecord:
    """How a trial ended.

    Attributes:
        fingerprint: The trial's identity: the fingerprint of its graph.
        config: The resolved config.
        seed: Seed of the trial; None when none of its stages draws random numbers.
        state: ``finished``; ``failed``; ``stopped`` early on request; ``killed`` from outside.
        reason: One line; empty when finished.
        metrics: Last known value by metric name.
        signatures: How a metric was computed, by metric name, where it has a signature.
        curves: ``[step, value, unix_ms]`` points by name.
        stages: One entry per stage of the graph: name, fingerprint, decision, reason, duration_s; where it
            failed or was stopped also ran_because, and traceback where it failed.
        started_at: Unix seconds.
        ended_at: Unix seconds.
        host: Where it ran.
        attempt: 1 for the first run that left a record.
    """

    fingerprint: str
    config: dict[str, Any]
    seed: int | None
    state: TrialState
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    stages: list[dict[str, Any]] = field(default_factory=list)
    started_at: float = 0.0
    ended_at: float = 0.0
    host: str = ""
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        """Turn the record into plain JSON values.

        Returns:
            A dict for `from_json`; numbers that JSON lacks become the text ``NaN`` or ``Infinity``.
        """
        document = asdict(self)
        document["metrics"] = {name: _to_number(value) for name, value in self.metrics.items()}
        document["curves"] = {
            name: [[step, _to_number(value), unix_ms] for step, value, unix_ms in points]
            for name, points in self.curves.items()
        }
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> TrialRecord:
        """Read what `to_json` made; keys of a later version are dropped.

        Args:
            document: The JSON document.

        Returns:
            The record.
        """
        known = {entry.name for entry in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        values["metrics"] = {name: float(value) for name, value in values.get("metrics", {}).items()}
        values["curves"] = {
            name: [[step, float(value), unix_ms] for step, value, unix_ms in points]
            for name, points in values.get("curves", {}).items()
        }
        return cls(**values)


def _to_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
