"""Thread that writes runs to a tracking store, however often the store is unreachable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING

from nlgraft.basics.errors import StudyError
from nlgraft.tracking.entries import RunEntry, RunKey
from nlgraft.tracking.uri import public_text

if TYPE_CHECKING:
    from nlgraft.tracking.backend import MlflowBackend

_log = logging.getLogger("nlgraft.tracking")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_MAX_ATTEMPTS = 3
_LIVE_PAUSE_S = 2.0


class Writer:
    """Keeps the newest content of each run and writes it as soon as the store responds.

    **Coalescing.** Waiting entries of one run are merged, so an outage of an hour costs one write per run
    afterwards, and memory stays bounded. A trial that runs is written at most every two seconds, and first
    when it has run for two seconds: a write takes some 30 ms of the CPU that trains, and a trial that has
    ended by then is written once.

    **Failure.** When a write fails, the store is probed. If it does not respond, everything waits, with
    pauses that double up to half a minute. If it does, the entry is at fault: it moves behind the others, and
    after three attempts it is set aside until there is more to write of its run.

    **Speed.** A server takes some 30 ms for a trial that has ended, most of it spent waiting for its nine
    responses; several such trials are written at a time.

    Args:
        connect: Opens the store.
        active: Returns the runs that are running, so that others found RUNNING can be ended.
        name: Name of the store in messages.
        may_write: Asked before each write; False once another driver writes this study.
        first_pause_s: First pause after a failure.
        live_pause_s: Shortest time between two writes of one running trial, and before the first.
        num_at_once: Most ended trials to write at a time.
    """

    def __init__(
        self,
        connect: Callable[[], MlflowBackend],
        active: Callable[[], set[RunKey]],
        name: str,
        may_write: Callable[[], bool] = lambda: True,
        first_pause_s: float = _FIRST_PAUSE_S,
        live_pause_s: float = _LIVE_PAUSE_S,
        num_at_once: int = 1,
    ) -> None:
        self._connect = connect
        self._active = active
        self._name = name
        self._may_write = may_write
        self._first_pause_s = first_pause_s
        self._live_pause_s = live_pause_s
        self._num_at_once = num_at_once
        self._due_s: dict[RunKey, float] = {}
        self._backend: MlflowBackend | None = None
        self._refusal: StudyError | None = None
        self._changed = threading.Condition()
        self._pending: dict[RunKey, RunEntry] = {}
        self._earlier: list[RunEntry] = []
        self._writing: set[RunKey] = set()
        self._set_aside: dict[RunKey, RunEntry] = {}
        self._attempts: dict[RunKey, int] = {}
        self._num_outages = 0
        self._is_warned = False
        self._is_closing = threading.Event()
        self._has_tried = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nlgraft-tracking", daemon=True)

    def start(self, timeout_s: float) -> None:
        """Start; wait until the store is open or has been found unreachable, for ``timeout_s`` at most.

        Raises:
            StudyError: The store refuses this user, which no waiting changes.
        """
        self._thread.start()
        has_tried = self._has_tried.wait(timeout_s)
        if self._refusal is not None:
            raise self._refusal
        if not has_tried:
            _log.warning("%s is slow to open; the study continues without waiting for it", self._name)

    def put(self, entry: RunEntry) -> None:
        """Queue the content of a run."""
        with self._changed:
            waiting = self._set_aside.pop(entry.key, None) or self._pending.get(entry.key)
            self._pending[entry.key] = waiting.merge(entry) if waiting else entry
            if entry.key.kind == "trial":
                self._due_s.setdefault(entry.key, time.monotonic() + self._live_pause_s)
            self._changed.notify()

    def put_earlier(self, entries: Sequence[RunEntry]) -> None:
        """Queue trials that an earlier run ended: nothing is to be done if the store holds all of them."""
        with self._changed:
            self._earlier += entries
            self._changed.notify()

    def abandon(self) -> None:
        """Stop without writing anything further."""
        with self._changed:
            self._earlier.clear()
            self._pending.clear()
            self._set_aside.clear()
            self._is_closing.set()
            self._changed.notify()

    def close(self, timeout_s: float) -> int:
        """Write what waits, as far as the store responds, and stop.

        The results come first, with the trial whose model is logged: there may be no time for all trials.

        Returns:
            Number of runs that are not written in full.
        """
        self._is_closing.set()
        with self._changed:
            models = {entry.model.fingerprint for entry in self._pending.values() if entry.model}
            order = sorted(
                self._pending, key=lambda key: key.kind == "trial" and key.fingerprint not in models
            )
            self._pending = {key: self._pending[key] for key in order}
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        with self._changed:
            missing = {*self._pending, *self._set_aside, *self._writing}
            missing |= {entry.key for entry in self._earlier}
        if missing:
            _log.warning(
                "%s lacks a part of %d runs. `nlgraft run` of this study adds it from the records in the "
                "artifact store: run it again until this is no longer said",
                self._name,
                len(missing),
            )
        return len(missing)

    def _run(self) -> None:
        # Made before the store is open, since the first entries are to be taken before they get their ends.
        with ThreadPool(self._num_at_once) as pool:
            # Of daemons: a write that hangs keeps no process alive.
            try:
                self._open()
            except StudyError:
                # For `start` to raise.
                return
            except Exception as error:
                # As in _attempt.
                self._pause_for_outage(error)
            self._write_all(pool)

    def _write_all(self, pool: ThreadPool) -> None:
        while True:
            self._sort_out_earlier()
            entries = self._next_entries()
            if not entries and self._earlier:
                continue
            if not entries:
                self._note_held()
                return
            # Read before the write: `close` during it still leaves one attempt at what is new.
            is_last_chance = self._is_closing.is_set()
            if not self._write(entries, pool) and is_last_chance:
                return

    def _note_held(self) -> None:
        """Let the store note which trials it holds, so that the next run sees it at once."""
        try:
            if self._backend is not None and not self._set_aside and self._may_write():
                self._backend.note_held()
        except Exception as error:
            # As in _write; the next run then looks at every trial.
            _log.debug("%s did not note what it holds: %s", self._name, error)

    def _sort_out_earlier(self) -> None:
        """Queue the trials of earlier runs one by one, unless the store is known to hold them all."""
        with self._changed:
            entries = list(self._earlier)
        if not entries:
            return
        try:
            is_held = self._open().holds(entries)
        except Exception as error:
            # As in _write, which will find out if the store is away.
            _log.debug("%s does not tell what it holds: %s", self._name, error)
            is_held = False
        with self._changed:
            # What was put meanwhile comes next; `abandon` may have emptied the list.
            ended = self._earlier[: len(entries)]
            self._earlier = self._earlier[len(entries) :]
        for entry in [] if is_held else ended:
            self.put(entry)

    def _next_entries(self) -> list[RunEntry]:
        """Take the run that has waited longest, or several trials that have ended.

        Nothing when everything is written, or earlier trials came.
        """
        with self._changed:
            while (key := self._first_due()) is None:
                if self._earlier:
                    return []
                if self._is_closing.is_set():
                    return []
                self._changed.wait(self._live_pause_s if self._pending else None)
            # Noted under the lock: `close` counts a run as missing while it is being written.
            num = self._num_at_once if self._backend is not None and self._is_ended_trial(key) else 1
            self._writing = {key, *islice(filter(self._is_ended_trial, self._pending), num - 1)}
            return [self._pending.pop(run_key) for run_key in self._writing]

    def _is_ended_trial(self, key: RunKey) -> bool:
        return key.kind == "trial" and self._pending[key].status not in (None, "RUNNING")

    def _first_due(self) -> RunKey | None:
        """Find the first run that is due: one that has ended, or a live one whose pause is over."""
        now_s = time.monotonic()
        for key, entry in self._pending.items():
            is_live = entry.status in (None, "RUNNING") and not self._is_closing.is_set()
            if not is_live or self._due_s.get(key, now_s) <= now_s:
                return key
        return None

    def _write(self, entries: Sequence[RunEntry], pool: ThreadPool) -> bool:
        """Write runs; on failure requeue them and pause. Returns False if the store is unreachable."""
        failed: dict[RunKey, Exception] = {}
        errors = pool.map(self._attempt, entries)
        with self._changed:
            for entry, error in zip(entries, errors, strict=True):
                if error is not None:
                    failed[entry.key] = error
                    # Events may have queued more of this run while it was being written.
                    newer = self._pending.pop(entry.key, None)
                    self._pending = {entry.key: entry.merge(newer) if newer else entry} | self._pending
                    continue
                self._attempts.pop(entry.key, None)
                if entry.key in self._pending or entry.status in (None, "RUNNING"):
                    self._due_s[entry.key] = time.monotonic() + self._live_pause_s
                else:
                    self._due_s.pop(entry.key, None)
            self._writing = set()
        if failed:
            # The others are tried again.
            return self._handle_failure(*next(iter(failed.items())))
        if self._num_outages:
            self._num_outages = 0
            if self._is_warned:
                self._is_warned = False
                _log.warning("%s responds again", self._name)
        return True

    def _attempt(self, entry: RunEntry) -> Exception | None:
        try:
            if self._may_write():
                self._open().write(entry)
            else:
                self.abandon()
        except Exception as error:
            # Of the network, the disk or a database driver: training must go on.
            return error
        return None

    @property
    def experiment_id(self) -> str | None:
        """MLflow's id of the experiment; None before MLflow has responded."""
        return None if self._backend is None else self._backend.experiment_id

    def _open(self) -> MlflowBackend:
        if self._backend is not None:
            return self._backend
        try:
            backend = self._connect()
            ended = backend.end_orphans(self._active())
            if ended:
                _log.info("%s: ended %d runs that an earlier driver had left running", self._name, ended)
            self._backend = backend
            return backend
        except StudyError as error:
            self._refusal = error
            raise
        finally:
            self._has_tried.set()

    def _handle_failure(self, key: RunKey, error: Exception) -> bool:
        is_reachable = self._backend is not None and self._backend.is_reachable()
        if self._backend is not None:
            # A request that failed for us may have been carried out: look before creating a run again.
            self._backend.forget()
        if not is_reachable:
            self._pause_for_outage(error)
            return False
        with self._changed:
            if key in self._pending:
                # Unless all was abandoned.
                self._retry_later(self._pending.pop(key), error)
        self._is_closing.wait(self._first_pause_s)
        return True

    def _retry_later(self, entry: RunEntry, error: Exception) -> None:
        attempts = self._attempts[entry.key] = self._attempts.get(entry.key, 0) + 1
        if attempts < _MAX_ATTEMPTS:
            self._pending[entry.key] = entry
            return
        self._set_aside[entry.key] = entry
        run = f"{entry.key.kind} run {entry.name or entry.key.fingerprint[:12]}"
        _log.warning("%s rejects the %s: %s", self._name, run, public_text(str(error)))

    def _pause_for_outage(self, error: Exception) -> None:
        self._num_outages += 1
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s does not respond; training continues, and missing entries are written later: %s",
                self._name,
                public_text(str(error)),
            )
        pause_s = min(_LONGEST_PAUSE_S, self._first_pause_s * 2 ** (self._num_outages - 1))
        # Rather than sleep, so that `close` ends the pause.
        self._is_closing.wait(pause_s)
