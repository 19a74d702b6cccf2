"""What is decided about a stage, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Decision(StrEnum):
    """What is done about a stage, or what its artifact is found to be."""

    HIT = "hit"
    """Its artifact is stored and whole."""
    MISS = "miss"
    """It has no artifact."""
    CORRUPT = "corrupt"
    """Its artifact is damaged and is made anew."""
    RUN = "run"
    """It runs."""
    RESUME = "resume"
    """It runs on from a checkpoint."""
    WAIT = "wait"
    """Another owner computed it while this one waited."""
    FAILED = "failed"
    """It ran and raised."""
    STOPPED = "stopped"
    """It ran and ended early on request."""


@dataclass(frozen=True)
class Verdict:
    """A decision and why.

    Attributes:
        decision: What.
        reason: Why, in one line.
    """

    decision: Decision
    reason: str


@dataclass(frozen=True)
class StageCost:
    """What stages of one name have cost so far.

    Attributes:
        mean_duration_s: Mean time to make an artifact.
        mean_bytes: Mean size of an artifact.
        count: Over how many artifacts.
    """

    mean_duration_s: float
    mean_bytes: float
    count: int
