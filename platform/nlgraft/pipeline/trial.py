"""Run one trial's stage graph, sharing what exists."""

from __future__ import annotations

import errno
import logging
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nlgraft.errors import ContractError, StageBusy, StoreError, TrialFailed
from nlgraft.pipeline.execute import execute_stage
from nlgraft.pipeline.record import TrialRecord, TrialState
from nlgraft.pipeline.results import RecordingReporter, TrialResults, collect_results
from nlgraft.pipeline.stage import Reporter, Stage, StageGraph, TrialStopped
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore, Decision, Verdict

__all__ = [
    "RecordingReporter",
    "TrialRecord",
    "TrialStopped",
    "execute_stage",
    "finished_record",
    "one_line",
    "run_trial",
]

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_NUM_FETCHES = 3
_MAX_REASON_CHARACTERS = 500


def run_trial(
    graph: StageGraph,
    store: ArtifactStore,
    *,
    reporter: Reporter,
    config: dict[str, Any],
    is_waiting: bool,
    distribute: Callable[[Stage], None] | None = None,
    device: str = "cpu",
    seed: int | None = None,
) -> TrialRecord:
    """Run what is missing of a trial and leave its record in the store, however it ends.

    Stages whose artifacts exist are not run, nor looked at when everything that reads them exists. A trial
    that has finished before is answered by its record.

    Args:
        graph: The trial's stages.
        store: Where artifacts and records are.
        reporter: Where progress goes; a `RecordingReporter` is used as it is, so that a caller whose workers
            report elsewhere can feed it. One per trial.
        config: The resolved config, for the record.
        is_waiting: Whether to wait for a stage that another owner computes, or to raise at once.
        distribute: Runs a stage with ``is_distributed`` on a worker group, each worker calling
            `execute_stage`; such a stage runs in this process when this is left out. Raises `TrialStopped`
            when the stage was stopped.
        device: Where stages of this process compute.
        seed: The trial's seed, for the record; by default that of its last stage that has one.

    Returns:
        The record; its state is ``finished``, or ``stopped`` when the reporter asked to stop.

    Raises:
        StageBusy: Another owner computes a stage and ``is_waiting`` is False; no record is written.
        TrialFailed: A stage failed, or none wrote a metric; the record says ``failed``.
    """
    known = finished_record(graph, store)
    if known is not None and store.verify(graph.result).decision is Decision.HIT:
        return known
    recorder = reporter if isinstance(reporter, RecordingReporter) else RecordingReporter(reporter)
    if seed is None:
        seed = next((stage.seed for stage in reversed(graph.stages) if stage.seed is not None), None)
    started_at = time.time()
    run = _StageRunner(store, recorder, is_waiting=is_waiting, distribute=distribute, device=device)

    def leave_record(state: TrialState, reason: str, results: TrialResults) -> TrialRecord:
        previous = store.read_record("trials", graph.fingerprint) or {}
        record = TrialRecord(
            fingerprint=graph.fingerprint,
            config=config,
            seed=seed,
            state=state,
            reason=reason,
            metrics=results.metrics,
            signatures=results.signatures,
            curves=results.curves,
            stages=[run.entry(stage) for stage in graph.stages],
            started_at=started_at,
            ended_at=time.time(),
            host=socket.gethostname(),
            attempt=int(previous.get("attempt", 0)) + 1,
        )
        store.write_record("trials", record.fingerprint, record.to_json())
        return record

    try:
        run.ensure(graph.result)
        results = collect_results(graph, store)
        if not results.metrics:
            raise TrialFailed(graph.result.name, "no result: no stage of the trial wrote a metrics.json")
        return leave_record("finished", "", results)
    except StageBusy:
        raise
    except TrialStopped as stopped:
        return leave_record("stopped", stopped.reason, _known_results(graph, store, recorder))
    except TrialFailed as failed:
        leave_record("failed", str(failed), _known_results(graph, store, recorder))
        raise
    except Exception as error:  # from the store, not from a stage
        failed = TrialFailed(run.current, one_line(error))
        leave_record("failed", str(failed), _known_results(graph, store, recorder))
        raise failed from error
    except BaseException as error:
        leave_record("killed", one_line(error), _known_results(graph, store, recorder))
        raise


def finished_record(graph: StageGraph, store: ArtifactStore) -> TrialRecord | None:
    """Look up whether a trial has finished.

    Args:
        graph: The trial's stages.
        store: Where artifacts and records are.

    Returns:
        Its record when it says finished and the trial's last artifact is there, else None.
    """
    document = store.read_record("trials", graph.fingerprint)
    if document is None or document.get("state") != "finished" or not store.has(graph.result):
        return None
    return TrialRecord.from_json(document)


def one_line(error: BaseException) -> str:
    """Say in one line what went wrong.

    Args:
        error: Any exception.

    Returns:
        Its type and the first line of its message; a full disk is called that.
    """
    text = str(error).strip().split("\n", maxsplit=1)[0][:_MAX_REASON_CHARACTERS]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"disk full at {error.filename or 'an unnamed file'} ({type(error).__name__}: {text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _known_results(graph: StageGraph, store: ArtifactStore, reporter: RecordingReporter) -> TrialResults:
    """What is known of a trial that did not finish; never an error in place of the one that ended it."""
    try:
        return collect_results(graph, store, reporter)
    except (StoreError, ContractError, OSError, FloatingPointError) as error:
        logger.warning("metrics of trial %s cannot be collected: %s", graph.fingerprint[:12], error)
        return TrialResults()


class _StageRunner:
    """Makes sure that stages are stored, and keeps book of what was decided about each."""

    def __init__(
        self,
        store: ArtifactStore,
        reporter: RecordingReporter,
        *,
        is_waiting: bool,
        distribute: Callable[[Stage], None] | None,
        device: str,
    ) -> None:
        self.current = "trial"
        self._store = store
        self._reporter = reporter
        self._is_waiting = is_waiting
        self._distribute = distribute
        self._device = device
        self._entries: dict[str, dict[str, Any]] = {}
        self._stored: set[str] = set()

    def entry(self, stage: Stage) -> dict[str, Any]:
        """What was decided about a stage, for the record."""
        if stage.fingerprint in self._entries:
            return self._entries[stage.fingerprint]
        # Either all that reads it is stored, or the trial ended before its turn came.
        if self._store.has(stage):
            return _entry(stage, Verdict(Decision.HIT, "stored; not read"), 0.0)
        return _entry(stage, Verdict(Decision.MISS, "not run"), 0.0)

    def ensure(self, stage: Stage) -> None:
        """Make a stage's artifact unless it is stored and whole; first what it reads."""
        started = time.monotonic()
        pause_s = _SHORTEST_WAIT_S
        owner = ""
        while stage.fingerprint not in self._stored:
            self.current = stage.name
            verdict = self._store.verify(stage)
            if verdict.decision is Decision.HIT:
                if owner:
                    verdict = Verdict(Decision.WAIT, f"computed by {owner}")
                self._note(stage, verdict, time.monotonic() - started if owner else 0.0)
                return
            for upstream in stage.inputs.values():
                self.ensure(upstream)
            self.current = stage.name
            try:
                lease = self._store.leases.acquire(stage.fingerprint)
            except StageBusy as busy:
                if not self._is_waiting:
                    raise
                if not owner:
                    logger.info("stage %s %s: waits for %s", stage.name, stage.fingerprint[:12], busy.owner)
                owner = busy.owner
                self._wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
                continue
            with lease:
                # Its last owner may have published it between the look above and the lease.
                verdict = self._store.verify(stage)
                if verdict.decision is not Decision.HIT:
                    self._make(stage, verdict)

    def _make(self, stage: Stage, verdict: Verdict) -> None:
        if verdict.decision is Decision.CORRUPT:
            self._store.discard(stage)
        else:
            step = self._store.checkpoints(stage).newest_step()
            if step is None:
                verdict = Verdict(Decision.RUN, verdict.reason)
            else:
                verdict = Verdict(Decision.RESUME, f"from its checkpoint of step {step}; {verdict.reason}")
        logger.info(
            "stage %s %s: %s (%s)", stage.name, stage.fingerprint[:12], verdict.decision, verdict.reason
        )
        started = time.monotonic()
        try:
            self._run(stage, verdict.reason)
        except StageBusy:
            raise
        except TrialStopped as stopped:
            self._note_end(stage, Decision.STOPPED, stopped.reason, verdict, started)
            raise
        except (Exception, SystemExit) as error:
            if hasattr(error, "ray_terminate_msg"):
                raise  # Ray ends this process by SystemExit; the stage did not fail
            if not self._store.has(stage):
                failed = error if isinstance(error, TrialFailed) else TrialFailed(stage.name, one_line(error))
                self._note_end(stage, Decision.FAILED, failed.reason, verdict, started)
                self._entries[stage.fingerprint]["traceback"] = traceback.format_exc()
                raise failed from error
            # Another owner, who took this lease over, was quicker and has cleared up behind itself.
            logger.warning("stage %s failed after it was stored: %s", stage.name, one_line(error))
        self._note(stage, verdict, time.monotonic() - started)

    def _run(self, stage: Stage, reason: str) -> None:
        if stage.is_distributed and self._distribute is not None:
            self._distribute(stage)
            if not self._store.has(stage):
                raise ContractError("its workers ended without an error and without an artifact")
            return
        inputs = {name: self._fetch(upstream) for name, upstream in stage.inputs.items()}
        self.current = stage.name
        execute_stage(
            stage, self._store, reporter=self._reporter, device=self._device, inputs=inputs, reason=reason
        )

    def _fetch(self, stage: Stage) -> Path:
        """Fetch an input, making it anew when its bytes turn out to be damaged."""
        for _ in range(_NUM_FETCHES - 1):
            try:
                return self._store.fetch(stage)
            except ArtifactDamaged as error:
                logger.warning("stage %s is made anew: %s", stage.name, error)
                self._store.discard(stage)
                self._stored.discard(stage.fingerprint)
                self.ensure(stage)
        return self._store.fetch(stage)

    def _wait(self, pause_s: float) -> None:
        reason = self._reporter.should_stop()
        if reason is not None:
            raise TrialStopped(reason)
        time.sleep(pause_s)

    def _note(self, stage: Stage, verdict: Verdict, duration_s: float) -> None:
        self._entries[stage.fingerprint] = _entry(stage, verdict, duration_s)
        self._stored.add(stage.fingerprint)

    def _note_end(self, stage: Stage, decision: Decision, reason: str, ran: Verdict, started: float) -> None:
        entry = _entry(stage, Verdict(decision, reason), time.monotonic() - started)
        self._entries[stage.fingerprint] = {**entry, "ran_because": ran.reason}


def _entry(stage: Stage, verdict: Verdict, duration_s: float) -> dict[str, Any]:
    return {
        "name": stage.name,
        "fingerprint": stage.fingerprint,
        "decision": str(verdict.decision),
        "reason": verdict.reason,
        "duration_s": round(duration_s, 3),
    }
