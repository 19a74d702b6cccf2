"""The trial queue as a searcher of Tune: Tune asks for a config, the queue decides which trial is next."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune import Callback
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    TrialScheduler,
)
from ray.tune.search import Searcher

from nlgraft.execution.cluster_watch import PROCESS_DIED
from nlgraft.execution.sweep_board import LEFT_OUT, DriverBoard, Outcome
from nlgraft.execution.trainable import OUTCOME, REASON, REPORT, STEP, TRIAL_ID, VALUE
from nlgraft.execution.trial_queue import BATCH_S, TrialQueue
from nlgraft.pipeline.stage import KillReason
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import trial_record
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import TrialScheduler as TrialSchedulerSpec

_LATE_S = 4 * BATCH_S


class BriefResults(Callback):
    """Keeps of each result only the keys from which the end of a trial is read.

    Tune keeps the last result of every trial that it ran, and statistics of each number in its results: some
    15 kB per trial.
    """

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Remove the other keys; Tune lets callbacks change a result in place."""
        for name in result.keys() - {OUTCOME, REASON}:
            del result[name]


@dataclass
class _Batch:
    """Trials under one Tune id, and the monotonic second at which they were handed out."""

    trials: list[SweepTrial]
    since_s: float


class TuneSearcher(Searcher):
    """Hands Tune the trials of a queue, and the queue their results.

    A Tune trial is a batch: several trials if they are short, else one. Tune's own state is never restored: a
    new searcher over a new queue finds in the store what is left to do.

    Args:
        store: Where trials leave their records.
        board: Where trials are handed out, asked to stop and heard of.
        check: Raises if the sweep cannot go on: a signal arrived, the cluster is lost. Is told whether there
            was an error of Ray.
        max_batches: How many batches Tune is handed before it is told that the search is over.
    """

    def __init__(
        self,
        queue: TrialQueue,
        store: ArtifactStore,
        board: DriverBoard,
        check: Callable[[bool], None],
        max_batches: int,
    ) -> None:
        super().__init__()
        self._queue = queue
        self._store = store
        self._board = board
        self._check = check
        self._num_left = max_batches
        self._is_stopping = False
        self._batches: dict[str, _Batch] = {}
        self._failure: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    @property
    def num_batches(self) -> int:
        """Number of batches that were handed out and have not ended."""
        return len(self._batches)

    @property
    def is_spent(self) -> bool:
        """True once Tune was handed as many batches as it may be."""
        return self._num_left == 0

    def trial_of(self, batch_id: str) -> SweepTrial | None:
        """Return the first trial under a Tune id, or None if it has ended."""
        batch = self._batches.get(batch_id)
        if batch is not None and batch.trials:
            return batch.trials[0]
        return None

    def suggest(self, trial_id: str) -> Any:
        """Hand out the next trials; None makes Tune ask again later."""
        if self._failure is not None:
            raise self._failure
        self._check(False)
        trial = None
        if self.is_spent:
            self._queue.check_budget()  # or nobody would, until the last trials have ended
        else:
            trial = self._queue.take()
        if self._queue.stop_reason is not None and not self._is_stopping:
            self._is_stopping = True
            for running_id in self._batches:
                self._withdraw(running_id)
                self._board.request_stop(running_id, KillReason(self._queue.stop_reason))
        if trial is None:
            self._share_late_batches()
            # A spent searcher ends with what it has handed out; a new one over the same queue goes on.
            is_over = not self._batches if self.is_spent else self._queue.is_done
            if not is_over:
                return None
            for idle_id in self._batches:  # at places that are left out
                self._board.request_stop(idle_id, "no trial is left")
            return Searcher.FINISHED
        self._num_left -= 1
        trials = [trial, *self._queue.take_following(trial)]
        self._batches[trial_id] = _Batch(trials, time.monotonic())
        self._board.assign(trial_id, trials)
        # Tune keeps several copies of each config, so the trials are on the board alone.
        return {TRIAL_ID: trial_id}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report to the queue."""
        batch = self._batches.get(trial_id)
        if batch is not None and result.get(OUTCOME) == LEFT_OUT:
            self._give_back(trial_id, batch, result[REASON])
            return
        if batch is None or REPORT not in result:
            return
        report = json.loads(result[REPORT])
        key = report.pop("key")
        for trial in batch.trials:
            if trial.key == key:
                self._queue.progress(trial, **report)
                if VALUE in result:
                    self._queue.intermediate(trial, result[VALUE], result[STEP])

    def on_trial_complete(
        self,
        trial_id: str,
        result: dict[str, Any] | None = None,
        error: bool = False,
    ) -> None:
        """Pass the end of a batch to the queue; of a trial that began and did not end, the process has died.

        Tune takes an error that is raised here for the trial's own, so that the next `suggest` raises it.
        """
        try:
            if error:
                self._check(True)
            batch = self._batches.pop(trial_id, None)
            if batch is not None:
                last_result = {} if error or result is None else result
                self._end(batch.trials, self._board.outcomes(trial_id), last_result)
        except Exception as failure:
            self._failure = self._failure or failure

    def _end(
        self,
        trials: Sequence[SweepTrial],
        outcomes: Sequence[Outcome],
        result: dict[str, Any],
    ) -> None:
        for trial, outcome in zip(trials, outcomes, strict=False):
            self._end_one(trial, outcome)
        unended = trials[len(outcomes) :]
        if not unended:
            return
        if result.get(OUTCOME) == "killed":  # it lost contact, so nothing knows how far it came
            for trial in unended:
                self._queue.kill(trial, str(result[REASON]))
            return
        if result.get(OUTCOME) != "ended":  # Tune heard nothing of its end, so the process died in the first
            self._queue.end(unended[0], self._queue.lost(unended[0], PROCESS_DIED))
            unended = unended[1:]
        for trial in reversed(unended):  # each goes to the front of the queue
            self._queue.give_back(trial)

    def _end_one(self, trial: SweepTrial, outcome: Outcome) -> None:
        match outcome.kind:
            case "busy":
                self._queue.defer(trial, outcome.reason)
            case "killed":
                self._queue.kill(trial, outcome.reason)
            case "lost":
                self._queue.end(trial, self._queue.lost(trial, outcome.reason))
            case _:
                record = trial_record(self._store, trial.fingerprint)
                self._queue.end(trial, record or self._queue.lost(trial, PROCESS_DIED))

    def _share_late_batches(self) -> None:
        """Take back what has not begun of batches that turned out long while a worker is idle."""
        if self._queue.num_idle == 0:
            return
        late_s = time.monotonic() - _LATE_S
        for batch_id, batch in self._batches.items():
            if len(batch.trials) > 1 and batch.since_s < late_s:
                self._withdraw(batch_id)

    def _withdraw(self, batch_id: str) -> None:
        batch = self._batches[batch_id]
        if len(batch.trials) == 1:
            return
        num_kept = self._board.withdraw(batch_id)
        for trial in reversed(batch.trials[num_kept:]):
            self._queue.give_back(trial)
        del batch.trials[num_kept:]
        batch.since_s = math.inf  # what has begun cannot be shared, however late it is

    def _give_back(
        self,
        batch_id: str,
        batch: _Batch,
        fault: str,
    ) -> None:
        """Take back all that has not ended of a batch whose host is left out."""
        num_ended = self._board.withdraw(batch_id)
        for trial in reversed(batch.trials[num_ended:]):
            self._queue.give_back(trial, fault if trial is batch.trials[num_ended] else "")
        del batch.trials[num_ended:]

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store is the source of truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the store is the source of truth."""


_NO_LAST_RUNG = 10**9  # steps; a trial ends by its own step limit, rungs go on as far as it gets


def scheduler_for(spec: TrialSchedulerSpec, mode: str) -> TrialScheduler:
    """Build Tune's scheduler for the trials of one cell; it compares ``VALUE`` at equal ``STEP``.

    Args:
        mode: ``max`` or ``min``.
    """
    return ASHAScheduler(
        time_attr=STEP,
        metric=VALUE,
        mode=mode,
        max_t=spec.max_steps or _NO_LAST_RUNG,
        grace_period=spec.grace_steps,
        reduction_factor=spec.reduction_factor,
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
        self._inner: dict[str | None, TrialScheduler] = {None: FIFOScheduler()}
        self._requested: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its scheduler for a restore that is never used."""
        return {}

    def _scheduler(self, trial: Trial) -> TrialScheduler:
        group = self._group_of(trial)
        if group not in self._inner:
            self._inner[group] = self._new_scheduler()
        return self._inner[group]

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Announce a trial to the scheduler of its cell."""
        self._scheduler(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(
        self,
        tune_controller: TuneController,
        trial: Trial,
        result: dict,
    ) -> str:
        """Let the cell's scheduler decide; never let Tune end the trial itself."""
        if VALUE not in result or trial.trial_id in self._requested:
            return TrialScheduler.CONTINUE
        decision = self._scheduler(trial).on_trial_result(tune_controller, trial, result)
        if decision == TrialScheduler.STOP:
            # Once: results go on coming until the loop reads the request.
            self._requested.add(trial.trial_id)
            self._request_stop(trial, f"stopped by the trial scheduler at step {result[STEP]}")
        return TrialScheduler.CONTINUE

    def on_trial_complete(
        self,
        tune_controller: TuneController,
        trial: Trial,
        result: dict,
    ) -> None:
        """Tell the cell's scheduler that a trial has ended."""
        if VALUE in result:
            self._scheduler(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Tell the cell's scheduler that a trial's process was lost."""
        self._scheduler(trial).on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        """Tell the cell's scheduler that a trial was withdrawn."""
        self._scheduler(trial).on_trial_remove(tune_controller, trial)
