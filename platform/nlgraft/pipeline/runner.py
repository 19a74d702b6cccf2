"""Bring a trial's stages into the store: reuse, wait for, resume or run each, and record why."""

from __future__ import annotations

import errno
import logging
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import ContractError, HostFault, StageBusy, StoreError, TrialFailed
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.execute import RecordingReporter, execute_stage
from nlgraft.pipeline.integrity import host_fault
from nlgraft.pipeline.stage import KillReason, Stage, TrialStopped, Worker
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore, Decision, Verdict

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_NUM_FETCHES = 3
_MAX_REASON_CHARACTERS = 500
_DEVICE_FAULTS = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)


def one_line(error: BaseException, place: str = "an unnamed file") -> str:
    """Describe an error by its type and the first line of its message, without credentials.

    Args:
        error: Any exception; one about a full disk is called that.
        place: Where it was writing, in case that the error does not say.
    """
    text = without_credentials(str(error).strip().split("\n", maxsplit=1)[0])[:_MAX_REASON_CHARACTERS]
    if _is_disk_full(error):
        full = getattr(error, "filename", None) or place
        return f"disk full at {full}; free space there ({type(error).__name__}: {text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_store_fault(error: BaseException) -> bool:
    """Return True if an error is a fault of the place that a trial writes to, not of the trial."""
    if isinstance(error, StoreError):
        return True
    is_device = isinstance(error, OSError) and error.errno in _DEVICE_FAULTS
    return is_device or _is_disk_full(error)


def fault_of_host(error: BaseException, store: ArtifactStore) -> HostFault | None:
    """Reword an error of the disk on which this host keeps what it fetches and writes; None for others.

    A local store has no such disk but its own.
    """
    if isinstance(error, HostFault):
        return error
    cause = error.__cause__ if isinstance(error, StoreError) else error
    is_device = isinstance(cause, OSError) and cause.errno in _DEVICE_FAULTS
    if store.is_local or cause is None or not (is_device or _is_disk_full(cause)):
        return None
    return host_fault(cause, store.scratch_root)


def _is_disk_full(error: BaseException) -> bool:
    # Libraries wrap it in errors of their own, so the text counts as well.
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full or os.strerror(errno.ENOSPC) in str(error)


class StageRunner:
    """Runs the stages that are not stored, and records each cache decision.

    Args:
        store: The artifact store.
        reporter: Receives progress, and may ask to stop.
        is_waiting: If true, wait for a stage that another owner computes; else raise `StageBusy`.
        distribute: Runs a distributed stage on a worker group; None: in this process.
        device: Where stages of this process compute.

    Attributes:
        current: Name of the current stage, for messages.
    """

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
        """Return the decision about a stage of the trial as `TrialRecord.stages` has it."""
        if stage.fingerprint in self._entries:
            return self._entries[stage.fingerprint]
        # Either all that reads it is stored, or the trial ended before its turn came.
        if self._store.has(stage):
            return _entry(stage, Verdict(Decision.HIT, "stored; not read"), 0.0)
        return _entry(stage, Verdict(Decision.MISS, "not run"), 0.0)

    def ensure(self, stage: Stage) -> None:
        """Make a stage's artifact unless it is stored and whole; first the artifacts that it reads.

        Raises:
            StageBusy: Another owner computes it and this runner does not wait.
            TrialFailed: It, or a stage that it reads, failed.
            TrialStopped: The reporter asked to stop.
        """
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
            # Inputs before the lease: a stage whose inputs are still missing is held by nobody.
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
                if verdict.decision is not Decision.MISS or self._store.has(stage):
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
                raise  # Ray ends its processes by SystemExit; the stage did not fail
            if is_store_fault(error):
                if fault := fault_of_host(error, self._store):
                    raise fault from error
                reason = KillReason(one_line(error, self._store.name))
                self._note_end(stage, Decision.STOPPED, reason, verdict, started)
                raise TrialStopped(reason) from error
            if not self._store.has(stage):
                failed = error if isinstance(error, TrialFailed) else self._failure(stage, error)
                self._note_end(stage, Decision.FAILED, failed.reason, verdict, started)
                self._entries[stage.fingerprint]["traceback"] = traceback.format_exc()
                raise failed from error
            # Another owner took this lease over, was quicker and has cleared the checkpoints.
            logger.warning("stage %s failed after it was stored: %s", stage.name, one_line(error))
        self._note(stage, verdict, time.monotonic() - started)

    def _failure(self, stage: Stage, error: BaseException) -> TrialFailed:
        return TrialFailed(stage.name, one_line(error, self._store.name))

    def _run(self, stage: Stage, reason: str) -> None:
        if stage.is_distributed and self._distribute is not None:
            self._distribute(stage)
            if not self._store.has(stage):
                raise ContractError("its workers ended without an error and without an artifact")
            return
        inputs = {name: self._fetch(upstream) for name, upstream in stage.inputs.items()}
        self.current = stage.name
        worker = Worker(device=self._device)
        execute_stage(
            stage, self._store, reporter=self._reporter, worker=worker, inputs=inputs, reason=reason
        )

    def _fetch(self, stage: Stage) -> Path:
        """Fetch an input; one whose bytes are damaged is made again first."""
        for _ in range(_NUM_FETCHES - 1):
            try:
                return self._store.fetch(stage)
            except ArtifactDamaged as error:
                logger.warning("stage %s is made again: %s", stage.name, error)
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
