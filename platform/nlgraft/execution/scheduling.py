"""Cooperative early stopping: Tune's schedulers decide, and the training loop ends itself.

Tune stops a trial by ending its thread or actor. A trial that owns a worker group would leave the group's
placement group behind, so a STOP decision here becomes a request that the loop reads at its next report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from nlgraft.study.data.study import TrialScheduler as TrialSchedulerSpec

NUM_HYPERBAND_BRACKETS = 3
_NO_LAST_RUNG = 10**9  # steps; a trial ends by its own step limit, rungs go on as far as it gets


def scheduler_for(spec: TrialSchedulerSpec, mode: str) -> TrialScheduler:
    """Build Tune's scheduler for the trials of one cell; it compares ``VALUE`` at equal ``STEP``.

    ``hyperband`` is asynchronous HyperBand: the synchronous one pauses trials, which then keep their workers.

    Args:
        mode: ``max`` or ``min``.
    """
    if spec.name == "median":
        return MedianStoppingRule(
            time_attr=STEP, metric=VALUE, mode=mode, grace_period=spec.grace_steps, min_time_slice=0
        )
    kind = ASHAScheduler if spec.name == "asha" else AsyncHyperBandScheduler
    brackets = 1 if spec.name == "asha" else NUM_HYPERBAND_BRACKETS
    return kind(
        time_attr=STEP,
        metric=VALUE,
        mode=mode,
        max_t=spec.max_steps or _NO_LAST_RUNG,
        grace_period=spec.grace_steps,
        reduction_factor=spec.reduction_factor,
        brackets=brackets,
        # A trial at max_t is complete; stopped there, it would count as pruned.
        stop_last_trials=False,
    )


class CooperativeScheduler(FIFOScheduler):
    """One inner scheduler per cell, whose STOP becomes a request to the trial.

    Every cell is tuned by the same rule and compared with itself only: a rung shared between cells would stop
    the trials of a weak cell early and so break the equal budget.

    Args:
        group_of: The cell of a Tune trial, or None for a trial that is never stopped early.
        new_scheduler: Builds the inner scheduler of a cell.
        request_stop: Asks a running trial to end itself; returns once the trial can see the request.
    """

    def __init__(
        self,
        group_of: Callable[[Trial], str | None],
        new_scheduler: Callable[[], TrialScheduler],
        request_stop: Callable[[Trial, str], None],
    ) -> None:
        super().__init__()
        self._group_of = group_of
        self._new_scheduler = new_scheduler
        self._request_stop = request_stop
        self._inner: dict[str, TrialScheduler] = {}
        self._requested: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its scheduler for a restore that is never used."""
        return {}

    def _scheduler(self, trial: Trial) -> TrialScheduler | None:
        group = self._group_of(trial)
        if group is None:
            return None
        if group not in self._inner:
            self._inner[group] = self._new_scheduler()
        return self._inner[group]

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Announce a trial to the scheduler of its cell."""
        inner = self._scheduler(trial)
        if inner is not None:
            inner.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: dict) -> str:
        """Let the cell's scheduler decide; never let Tune end the trial itself."""
        inner = self._scheduler(trial)
        if inner is None or VALUE not in result or trial.trial_id in self._requested:
            return TrialScheduler.CONTINUE
        decision = inner.on_trial_result(tune_controller, trial, result)
        if decision == TrialScheduler.STOP:
            # Once: results go on coming until the loop reads the request.
            self._requested.add(trial.trial_id)
            self._request_stop(trial, f"stopped by the trial scheduler at step {result[STEP]}")
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: dict) -> None:
        """Tell the cell's scheduler that a trial has ended."""
        inner = self._scheduler(trial)
        if inner is not None and VALUE in result:
            inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Tell the cell's scheduler that a trial's process was lost."""
        inner = self._scheduler(trial)
        if inner is not None:
            inner.on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        """Tell the cell's scheduler that a trial was withdrawn."""
        inner = self._scheduler(trial)
        if inner is not None:
            inner.on_trial_remove(tune_controller, trial)


# Keys of a trial's Tune config and results.


TRIAL_ID = "nlgraft_trial_id"

OUTCOME = "nlgraft_outcome"
REASON = "nlgraft_reason"
REPORT = "nlgraft_report"
STEP = "nlgraft_step"
VALUE = "nlgraft_value"
