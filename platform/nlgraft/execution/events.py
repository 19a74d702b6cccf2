"""The events that observers of a sweep receive, and what it asks the process that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.system import REPLICATE_SPLITS


@dataclass(frozen=True)
class SweepStarted:
    """The sweep has compared its plan with the store.

    Attributes:
        num_trials: Trials of the study, search trials included.
        num_reused: Those of them that an earlier run has completed.
        max_concurrent: How many run at once.
        num_resumed: Stages that go on from a checkpoint, those that trials share counted once.
    """

    num_trials: int
    num_reused: int
    max_concurrent: int
    num_resumed: int = 0


@dataclass(frozen=True)
class TrialStarted:
    """A trial was handed to a worker."""

    trial: SweepTrial


@dataclass(frozen=True)
class TrialProgress:
    """A stage of a running trial reported metrics at an optimiser step.

    Attributes:
        num_steps: Optimiser steps of the stage at most; None if that is not known.
        unix_ms: Time of the report, Unix milliseconds.
    """

    trial: SweepTrial
    stage: str
    step: int
    metrics: Mapping[str, float]
    unix_ms: int
    num_steps: int | None = None


@dataclass(frozen=True)
class TrialEnded:
    """A trial has ended in ``record.state``.

    Attributes:
        is_reused: True if an earlier run ended it.
    """

    trial: SweepTrial
    record: TrialRecord
    is_reused: bool = False


@dataclass(frozen=True)
class CellSearched:
    """The search inside a cell is over.

    Attributes:
        params: Values of the best proposal, or None when every proposal failed.
    """

    cell: Cell
    params: Mapping[str, Any] | None


@dataclass(frozen=True)
class LookTaken:
    """The results were tested at a planned look.

    Attributes:
        granted: Seeds that each cell gets now, by the cell's key.
        num_new: Replicates that the sweep runs or reuses for them.
    """

    granted: Mapping[str, int]
    num_new: int


@dataclass(frozen=True)
class Outlook:
    """What is left of the sweep.

    Attributes:
        num_running: Trials that run.
        held_back: How many trials wait for a stage that a running trial computes, by the stage's name.
        left_s: Estimate of the time to the end, in seconds; None while it is unknown.
    """

    num_running: int
    held_back: Mapping[str, int]
    left_s: float | None


@dataclass(frozen=True)
class Notice:
    """A message for people, e.g. which stage is awaited or why the sweep stops."""

    message: str


Event = SweepStarted | TrialStarted | TrialProgress | TrialEnded | CellSearched | LookTaken | Outlook | Notice
Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Driver:
    """The callbacks by which a sweep reports to, and asks, the process that runs it.

    Attributes:
        observe: Receives every event, in order, in the sweep's thread.
        poll: Called often; returns a reason to end the sweep early, or None; raises if another driver has
            taken over.
        grant: Takes the planned look that is due. Returns how many seeds each cell gets now, by the cell's
            key.
        clock: Monotonic seconds; replaced in tests.
        wait_timeout_s: Longest time that no trial may run for want of a place or of a stage that others
            compute; None: without limit.
        splits: Splits on which replicates are scored.
    """

    observe: Observer
    poll: Callable[[], str | None] = lambda: None
    grant: Callable[[], Mapping[str, int]] = dict
    clock: Callable[[], float] = time.monotonic
    splits: tuple[str, ...] = REPLICATE_SPLITS
    wait_timeout_s: float | None = None
