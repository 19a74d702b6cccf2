"""Cache decisions about stages, and their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Decision(StrEnum):
    """State in which an artifact was found, or the way in which it was made."""

    HIT = "hit"
    """Its artifact is stored and whole."""
    MISS = "miss"
    """It has no artifact."""
    CORRUPT = "corrupt"
    """Its artifact is damaged and is made again."""
    RUN = "run"
    """It runs."""
    RESUME = "resume"
    """It resumes from a checkpoint."""
    WAIT = "wait"
    """Another owner computed it while this one waited."""
    FAILED = "failed"
    """It ran and raised an error."""
    STOPPED = "stopped"
    """It ran and ended early on request."""


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
    """

    mean_duration_s: float
    mean_bytes: float
    count: int
