"""The trial queue as a searcher of Tune: Tune asks for a config, the queue decides which trial is next."""

from __future__ import annotations

import json
from typing import Any, Protocol

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from nlgraft.execution.events import SweepTrial
from nlgraft.execution.report_keys import METRICS, OUTCOME, OWNER, REASON, STAGE, STEP, UNIX_MS, VALUE
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import KillReason
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import trial_record

_PROCESS_DIED = "the worker process died: out of memory, a crash in native code, or the trial left Python"


class BriefResults(Callback):
    """Keeps of each result only the keys from which the end of a trial is read.

    Tune keeps the last result of every trial that it ran, and statistics of each number in its results: some
    15 kB per trial.
    """

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Remove the other keys; Tune lets callbacks change a result in place."""
        for name in result.keys() - {OUTCOME, OWNER, REASON}:
            del result[name]


class TrialRunner(Protocol):
    """Runs the trials that a searcher hands out."""

    def config_for(self, trial: SweepTrial, trial_id: str) -> dict[str, Any]:
        """Build the Tune config of a trial under Tune's id for it."""
        ...

    def forget(self, trial_id: str) -> None:
        """Free what `config_for` has set up."""
        ...

    def request_stop(self, trial_id: str, reason: str) -> None:
        """Ask the trial under a Tune id to end itself."""
        ...

    def check(self, *, is_suspect: bool = False) -> None:
        """Raise if the sweep cannot go on: a signal arrived, the cluster is lost.

        Args:
            is_suspect: There was an error of Ray.
        """
        ...


class TuneSearcher(Searcher):
    """Hands Tune the trials of a queue, and the queue their results.

    Tune's own state is never restored: a new searcher over a new queue finds in the store what is left to do.

    Args:
        store: Where trials leave their records.
        runner: Prepares and stops trials.
        max_trials: How many trials Tune is handed before it is told that the search is over.
    """

    def __init__(
        self,
        queue: TrialQueue,
        store: ArtifactStore,
        runner: TrialRunner,
        max_trials: int,
    ) -> None:
        super().__init__()
        self._queue = queue
        self._store = store
        self._runner = runner
        self._num_left = max_trials
        self._is_stopping = False
        self._trials: dict[str, SweepTrial] = {}
        self._failure: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    @property
    def is_spent(self) -> bool:
        """True once Tune was handed as many trials as it may be."""
        return self._num_left == 0

    def trial_of(self, trial_id: str) -> SweepTrial | None:
        """Return the running trial under a Tune id, or None if it has ended."""
        return self._trials.get(trial_id)

    def suggest(self, trial_id: str) -> Any:
        """Hand out the next trial; None makes Tune ask again later."""
        if self._failure is not None:
            raise self._failure
        self._runner.check()
        trial = None
        if self.is_spent:
            self._queue.check_budget()  # or nobody would, until the last trials have ended
        else:
            trial = self._queue.take()
        if self._queue.stop_reason is not None and not self._is_stopping:
            self._is_stopping = True
            for running_id in self._trials:
                self._runner.request_stop(running_id, KillReason(self._queue.stop_reason))
        if trial is None:
            is_over = not self._trials if self.is_spent else self._queue.is_done
            return Searcher.FINISHED if is_over else None
        self._num_left -= 1
        self._trials[trial_id] = trial
        return self._runner.config_for(trial, trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report to the queue."""
        trial = self._trials.get(trial_id)
        if trial is None or STAGE not in result:
            return
        self._queue.progress(trial, result[STAGE], result[STEP], json.loads(result[METRICS]), result[UNIX_MS])
        if VALUE in result:
            self._queue.intermediate(trial, result[VALUE], result[STEP])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass the end of a trial to the queue; without a record in the store, its process has died.

        Tune takes an error that is raised here for the trial's own, so that the next `suggest` raises it.
        """
        try:
            if error:
                self._runner.check(is_suspect=True)
            trial = self._trials.pop(trial_id, None)
            if trial is not None:
                self._runner.forget(trial_id)
                self._end(trial, {} if error or result is None else result)
        except Exception as failure:
            self._failure = self._failure or failure

    def _end(self, trial: SweepTrial, result: dict[str, Any]) -> None:
        outcome = result.get(OUTCOME)
        if outcome == "busy":
            self._queue.defer(trial, str(result[OWNER]))
            return
        if outcome == "killed":
            self._queue.kill(trial, str(result[REASON]))
            return
        record = trial_record(self._store, trial.fingerprint) if outcome == "ended" else None
        self._queue.end(trial, record or self._queue.lost(trial, _PROCESS_DIED))

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store is the source of truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the store is the source of truth."""
