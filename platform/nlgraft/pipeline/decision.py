"""Cache decisions about stages, and their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Decision(StrEnum):
    """How a stage came by its artifact, or why it has none."""

    HIT = "hit"
    """Cache hit: the artifact is stored and intact."""
    MISS = "miss"
    """Cache miss: there is no artifact."""
    CORRUPT = "corrupt"
    """The stored artifact is damaged and is computed again."""
    RUN = "run"
    """The stage runs from its start."""
    RESUME = "resume"
    """The stage resumes from a checkpoint."""
    WAIT = "wait"
    """Another process computed the artifact while this one waited."""
    FAILED = "failed"
    """The stage ran and raised an error."""
    STOPPED = "stopped"
    """The stage ran and ended early on request."""


@dataclass(frozen=True)
class Verdict:
    """A decision and its reason in one line."""

    decision: Decision
    reason: str


@dataclass(frozen=True)
class StageCost:
    """Cost so far of the stages of one name.

    Attributes:
        mean_duration_s: Mean time to make an artifact.
        mean_bytes: Mean size of an artifact.
        count: Number of artifacts in the means.
        by_workers: Mean time by number of workers, of artifacts that know theirs.
    """

    mean_duration_s: float
    mean_bytes: float
    count: int
    by_workers: Mapping[int, float] = field(default_factory=dict)
