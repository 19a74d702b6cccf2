"""The bridge between Tune and the work queue: Tune asks for a trial, the queue knows which."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from nlgraft.execution.events import Unit
from nlgraft.execution.scheduling import STEP, VALUE
from nlgraft.execution.trial_queue import WorkQueue
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord

OUTCOME = "nlgraft_outcome"
OWNER = "nlgraft_owner"
STAGE = "nlgraft_stage"
METRICS = "nlgraft_metrics"
UNIX_MS = "nlgraft_unix_ms"


class WorkSearcher(Searcher):
    """Hands Tune the trials of a work queue and the queue their results.

    Tune's state is never restored: a fresh searcher over a fresh queue finds in the store what is left to do.

    Args:
        queue: The work queue.
        store: Where trials leave their records.
        order_for: Turns a trial, and Tune's id for it, into the config that a worker understands.
        ask_to_stop: Asks the trial behind one of Tune's ids to end itself, with the reason.
    """

    def __init__(
        self,
        queue: WorkQueue,
        store: ArtifactStore,
        order_for: Callable[[Unit, str], dict[str, Any]],
        ask_to_stop: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._ask_to_stop = ask_to_stop
        self._is_stopping = False
        self._queue = queue
        self._store = store
        self._order_for = order_for
        self._units: dict[str, Unit] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Give Tune nothing to put into the pickle that its own restore would read."""
        return {}

    def unit_of(self, trial_id: str) -> Unit | None:
        """The trial behind one of Tune's, or None when it is over."""
        return self._units.get(trial_id)

    def suggest(self, trial_id: str) -> Any:
        """Hand out the next trial; None asks Tune to come again."""
        unit = self._queue.take()
        if self._queue.stop_reason is not None and not self._is_stopping:
            self._is_stopping = True
            for running_id in self._units:
                self._ask_to_stop(running_id, self._queue.stop_reason)
        if unit is None:
            return Searcher.FINISHED if self._queue.is_done else None
        self._units[trial_id] = unit
        return self._order_for(unit, trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a report on to the queue."""
        unit = self._units.get(trial_id)
        if unit is None or STAGE not in result:
            return
        self._queue.progress(unit, result[STAGE], result[STEP], json.loads(result[METRICS]), result[UNIX_MS])
        if VALUE in result:
            self._queue.intermediate(unit, result[VALUE], result[STEP])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take the end of a trial: its record lies in the store, unless its process died."""
        unit = self._units.pop(trial_id, None)
        if unit is None:
            return
        outcome = (result or {}).get(OUTCOME)
        if not error and outcome == "busy":
            self._queue.defer(unit, str((result or {})[OWNER]))
            return
        document = self._store.read_record("trials", unit.fingerprint) if outcome == "ended" else None
        if document is None:
            reason = (
                "the worker process died: out of memory, a crash in native code, or the trial left Python"
            )
            self._queue.end(unit, self._queue.lost(unit, reason))
        else:
            self._queue.end(unit, TrialRecord.from_json(document))

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the store is the truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the store is the truth."""
