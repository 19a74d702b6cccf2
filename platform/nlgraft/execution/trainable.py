"""The Tune trainable: runs a batch of trials of a study, reports their progress and their outcomes.

Tune reuses the actor from trial to trial, so a trial costs no process start.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError

from nlgraft.basics.errors import HostFault, StageBusy, TrialFailed
from nlgraft.execution.cluster import WorkerGroup
from nlgraft.execution.cluster_watch import (
    PROCESS_DIED,
    Losses,
    is_any_lost,
    return_freed_memory,
)
from nlgraft.execution.sweep_board import LEFT_OUT, Outcome
from nlgraft.pipeline.stage import KillReason, StageGraph
from nlgraft.pipeline.store import ArtifactStore, StorePlace
from nlgraft.pipeline.trial import THREADS, RecordingReporter, one_line, run_trial

_log = logging.getLogger(__name__)

_REPORT_PAUSE_S = 1.0
_IDLE_POLL_S = 1.0

# Keys of a trial's Tune config and results.
TRIAL_ID = "nlgraft_trial_id"
OUTCOME = "nlgraft_outcome"
REASON = "nlgraft_reason"
REPORT = "nlgraft_report"
STEP = "nlgraft_step"
VALUE = "nlgraft_value"


@dataclass(frozen=True)
class TrialSpec:
    """Everything a worker needs to run a trial; travels by way of the board.

    Attributes:
        config: The resolved config, for the trial's record.
        place: The artifact store.
        batch_id: Tune's id of the batch, under which the board keeps stop requests.
        key: The trial's identity within the sweep, for its reports.
        group: Shape of the worker group; a single worker trains in this process.
        watched_stage: Name of the stage whose reports the trial scheduler judges.
        watched_metric: The metric that it judges, or None without a scheduler.
    """

    graph: StageGraph
    config: Mapping[str, Any]
    place: StorePlace
    batch_id: str
    key: str
    group: WorkerGroup
    watched_stage: str
    watched_metric: str | None


class TuneReporter:
    """Reporter that sends to Tune and reads stop requests from the board.

    ``tune.report`` returns only after the trial scheduler has decided, so the next call of `should_stop` sees
    its request.
    """

    def __init__(self, spec: TrialSpec, board: Any) -> None:
        self._spec = spec
        self._board = board
        self._last_report_s = -_REPORT_PAUSE_S
        self._kill_reason: KillReason | None = None

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Send a report; one without dev metrics is sent at most once a second."""
        watched = self._spec.watched_metric
        is_judged = watched is not None and stage == self._spec.watched_stage and watched in metrics
        has_dev = any(name.startswith("dev/") for name in metrics)
        now_s = time.monotonic()
        if not is_judged and not has_dev and now_s - self._last_report_s < _REPORT_PAUSE_S:
            return
        self._last_report_s = now_s
        report = {
            "key": self._spec.key,
            "stage": stage,
            "step": step,
            "metrics": {name: float(value) for name, value in metrics.items()},
            "unix_ms": int(time.time() * 1000),
        }
        # as text, because Tune flattens nested results
        result: dict[str, Any] = {REPORT: json.dumps(report), STEP: step}
        if is_judged and watched is not None:
            result[VALUE] = float(metrics[watched])
        self.send(result)

    @property
    def is_ended(self) -> bool:
        """True once Tune has ended the trial."""
        return self._kill_reason is not None

    def send(self, result: dict[str, Any]) -> None:
        """Send a result to Tune, unless Tune has ended the trial.

        Tune ends a trial by SystemExit out of its next report: when its driver fails or is shut down. Taken
        for the stage's own, it would fail the trial.
        """
        if self._kill_reason is not None:
            return
        try:
            tune.report(result)
        except SystemExit:
            self._kill_reason = KillReason("the sweep ended before the trial")

    def report_waiting(self, is_waiting_for_workers: bool) -> None:
        """Tell whether the trial's worker group has no worker yet."""
        with suppress(RayError):  # whoever asks for a reason to stop hears of it
            ray.get(self._board.note_waiting.remote(self._spec.batch_id, is_waiting_for_workers))

    def should_stop(self) -> str | None:
        """Read this trial's stop request.

        The board lives in the driver's job. If it is gone, so is the driver: the trial is killed, since it is
        not its own failure.
        """
        if self._kill_reason is not None:
            return self._kill_reason
        if _is_told_to_end.is_set():
            return KillReason("its process was told to end (SIGTERM)")
        try:
            return ray.get(self._board.stop_reason.remote(self._spec.batch_id))
        except RayError as error:
            return _lost_contact(error)


_is_told_to_end = threading.Event()
_trainings: set[str] = set()
"""Fingerprints of the trainings of the trial that this process computes."""


class _SavesBeforeItEnds:
    """Lets a training save its state when its process gets SIGTERM, as on a spot machine; others end at once.

    Trials run in a thread. Tune calls `setup` in the main one, in which handlers have to be set.
    """

    def setup(self, config: dict[str, Any]) -> None:
        end_at_once: Any = signal.getsignal(signal.SIGTERM)

        def note(signum: int, frame: FrameType | None) -> None:
            if _is_told_to_end.is_set() or THREADS.stage not in _trainings:
                end_at_once(signum, frame)
            _is_told_to_end.set()

        signal.signal(signal.SIGTERM, note)
        super().setup(config)  # pyright: ignore[reportAttributeAccessIssue]


def run_tune_trial(config: dict[str, Any], board: Any) -> None:
    """Run a batch of trials of the study as one Tune trial.

    Args:
        config: ``{TRIAL_ID: Tune's id of the batch}``.
        board: Handle of the sweep's `SweepBoard`.
    """
    batch_id = config[TRIAL_ID]
    node = ray.get_runtime_context().get_node_id()
    try:
        begun: tuple[bytes | None, Sequence[str], bool] = ray.get(board.begin.remote(batch_id, node))
        encoded, lost_on, is_left_out = begun
        if encoded is not None and is_left_out:
            _leave_out(board, batch_id, "")
            encoded = None
        while encoded is not None:
            outcome, is_ended = _compute(encoded, board, lost_on)
            if outcome.kind == "killed" and _is_told_to_end.is_set():
                ray.get(board.note_preemption.remote(batch_id))
                os._exit(1)  # Tune goes on with the batch in another process
            if outcome.kind == LEFT_OUT:
                if _leave_out(board, batch_id, outcome.reason):
                    break
                outcome = replace(outcome, kind="killed")
            lost_on = []  # of the first alone: those behind it have lost nothing yet
            return_freed_memory()
            # Told now and not at the end of the batch, at which this process may be lost.
            encoded: bytes | None = ray.get(board.advance.remote(batch_id, outcome))
            if is_ended:
                return
            if outcome.kind == "killed":
                break
    except RayError as error:
        tune.report({OUTCOME: "killed", REASON: _lost_contact(error)})
        return
    tune.report({OUTCOME: "ended"})


# Tune makes this a base of the actor's class, also of the function with its board.
run_tune_trial.__mixins__ = (_SavesBeforeItEnds,)  # pyright: ignore[reportFunctionMemberAccess]


def _leave_out(board: Any, batch_id: str, fault: str) -> bool:
    """Give the trials back, and keep this place from them while its host is left out.

    Args:
        fault: Empty for one that the board knows of.

    Returns:
        False if the board refuses; see `SweepBoard.leave_out`.
    """
    if not ray.get(board.leave_out.remote(batch_id, bool(fault))):
        return False
    tune.report({OUTCOME: LEFT_OUT, REASON: fault})
    while ray.get(board.is_left_out.remote(batch_id)):
        time.sleep(_IDLE_POLL_S)
    return True


def _compute(
    encoded: bytes,
    board: Any,
    lost_on: Sequence[str],
) -> tuple[Outcome, bool]:
    """Run a trial; return how it ended, and whether Tune ended it."""
    try:
        spec: TrialSpec = pickle.loads(encoded)  # from the driver of this sweep, never from the store
    except Exception as error:  # tried again, it would be no more readable
        reason = f"its worker cannot read the trial, is its code on every node? {one_line(error)}"
        return Outcome("lost", reason), False
    reporter = TuneReporter(spec, board)
    return _run(spec, reporter, lost_on), reporter.is_ended


@lru_cache(maxsize=1)
def _open_store(place: StorePlace) -> ArtifactStore:
    """Open the store once for all trials of this process: what it knows of artifacts spares looking again."""
    return place.open()


def _run(
    spec: TrialSpec,
    tune_reporter: TuneReporter,
    lost_on: Sequence[str],
) -> Outcome:
    """Run a trial, unless too many processes were lost over it, on these nodes; return how it ended."""
    resources = spec.group.resources
    losses = Losses(resources.max_failures)
    for node in lost_on:
        losses.add(is_preemption=is_any_lost([node]))
    if losses.reason_to_end is not None:
        return Outcome("lost", f"{PROCESS_DIED}; {losses.reason_to_end}")
    # Recorded here, where worker groups report to: a stage that does not finish writes no curves of its own.
    trainings = {stage.fingerprint for stage in spec.graph.stages if stage.is_training}
    _trainings.clear()
    _trainings.update(trainings)
    reporter = RecordingReporter(tune_reporter)
    reporter.num_preemptions = losses.num_preemptions
    distribute = None
    if resources.max_workers > 1:
        # Imports torch, which the process of a single worker imports when a stage needs it.
        from nlgraft.execution.distributed_stages import run_on_workers

        distribute = partial(
            run_on_workers,
            place=spec.place,
            group=spec.group,
            reporter=reporter,
            losses=losses,
            report_waiting=tune_reporter.report_waiting,
        )
    THREADS.set(resources.cpus_per_worker)
    try:
        record = run_trial(
            spec.graph,
            _open_store(spec.place),
            reporter=reporter,
            config=dict(spec.config),
            # A worker that waited would hold its CPU or GPU; the queue defers the trial instead.
            is_waiting=False,
            distribute=distribute,
            # With several workers these have the GPUs.
            device="cuda" if resources.gpus_per_worker and distribute is None else "cpu",
        )
    except StageBusy as busy:
        return Outcome("busy", busy.owner)
    except HostFault as fault:
        return Outcome(LEFT_OUT, str(fault))
    except TrialFailed as failed:
        # For the worker's log; everybody else reads it in the trial's record.
        _log.warning("%s: %s", spec.key, failed)
        return Outcome("ended")
    if record.state == "killed":
        # A store that failed may hold no record of it.
        return Outcome("killed", record.reason)
    return Outcome("ended")


def _lost_contact(error: RayError) -> KillReason:
    return KillReason(f"lost contact with the driver of the sweep ({type(error).__name__})")
