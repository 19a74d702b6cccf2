"""Leases: which process computes a stage, and which one runs a study.

A lease is one small JSON file that its owner renews. Leases only save work: two owners of one stage would
publish the same artifact, so correctness never rests on them. A lease is taken over at once if its owner was
a process of this host and has ended, else when it has not been renewed for `Leases.expiry_s`. Taking over is
exclusive, since a file is written only if it is unchanged.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from nlgraft.basics.errors import StageBusy, StoreError, StudyLockedError
from nlgraft.basics.wording import duration
from nlgraft.pipeline.fence import Fence, Superseded
from nlgraft.pipeline.local_files import REMOVED
from nlgraft.pipeline.object_files import Files

logger = logging.getLogger(__name__)

EXPIRY_S = 60.0
_POLL_S = 0.1
_NUM_SILENT_POLLS = 20


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The content of a lease file.

    Attributes:
        owner: Free text for people.
        host: Host name of the owning process.
        namespace: Boot and process-number namespace: numbers compare only within one. Empty where unknown.
        pid: Process number, which a later process may get.
        process_started: In kernel ticks since boot. Empty where unknown.
        token: Different for every acquisition.
        acquired_at: Unix seconds by the owner's clock.
        renewed_at: Unix seconds by the owner's clock; ages are judged by the store's clock instead.
        covers: Keys of other records that only this holder may write; see `Leases.lock_study`.
    """

    owner: str
    host: str
    namespace: str
    pid: int
    process_started: str
    token: str
    acquired_at: float
    renewed_at: float
    covers: tuple[str, ...] = ()

    def is_dead(self) -> bool:
        """Return True if the owner ran on this host and has ended; False if it lives or is out of sight."""
        if (self.host, self.namespace) != (socket.gethostname(), _namespace()):
            return False
        try:
            os.kill(self.pid, 0)  # sends nothing, and fails if there is no such process
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # it belongs to another user
        state = _kernel_state(self.pid)
        # A zombie has ended; another start time means that the number was given to a new process.
        return state is not None and (state[0] in ("Z", "X") or state[1] != self.process_started)

    def encode(self) -> bytes:
        """Write the holder as JSON."""
        return json.dumps(asdict(self), indent=1).encode()


_HOLDER = TypeAdapter(LeaseHolder)


@dataclass(frozen=True)
class _LeaseState:
    """The state of a lease file when it was read.

    Attributes:
        data: Its content; None if there is no file.
        holder: The content read; None if it cannot be read.
        silent_s: Seconds since its last renewal.
        is_free: True if the lease may be taken over.
    """

    data: bytes | None
    holder: LeaseHolder | None
    silent_s: float
    is_free: bool

    def describe(self) -> str:
        if self.holder is None:
            return "an owner whose lease cannot be read"
        held_s = max(0.0, time.time() - self.holder.acquired_at)
        return (
            f"{self.holder.owner} (host {self.holder.host}, pid {self.holder.pid}, for {duration(held_s)}, "
            f"last sign of life {duration(self.silent_s)} ago)"
        )


class _Held(Exception):
    """Someone else holds the lease."""


class Lease:
    """A lease that is held; a context manager that releases it.

    Args:
        files: Where the lease file lies.
        key: Key of the lease file.
        holder: The file's content.
        heartbeat_s: Seconds between renewals.

    Attributes:
        is_lost: True once another owner has taken it over because this process was silent for too long.
    """

    def __init__(
        self,
        files: Files,
        key: str,
        holder: LeaseHolder,
        heartbeat_s: float,
    ) -> None:
        self.key = key
        self.holder = holder
        self.is_lost = False
        self._files = files
        self._heartbeat_s = heartbeat_s
        self._renewed_s = time.monotonic()
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key[:40]}", daemon=True)
        self._thread.start()

    @property
    def fence(self) -> Fence:
        """What processes write under that work for this owner; see `nlgraft.pipeline.fence`."""
        return Fence(self.key, self.holder.token)

    def release(self) -> None:
        """Give the lease back; a lost one is left to its new owner. May be called twice."""
        if self._ended.is_set():
            return
        # The thread ends first: a renewal under way would change the content that `delete` expects.
        self._ended.set()
        self._thread.join()
        self._delete()

    def _delete(self) -> None:
        try:
            _free(self._files, self.key, self.holder.encode())
        except StoreError as error:
            logger.warning("lease %s could not be released (%s); it will expire", self.key, error)

    def is_held(self) -> bool:
        """Tell if this process still owns the lease; one that slept may have lost it.

        Costs nothing while the lease is renewed in time, else a renewal.

        Raises:
            StoreError: The lease is overdue and cannot be renewed.
        """
        # One beat may be late on a busy disk; after two, another process may be about to take the lease over.
        if not self.is_lost and time.monotonic() - self._renewed_s > 2 * self._heartbeat_s:
            self._renew()
        return not self.is_lost

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _beat(self) -> None:
        while not self.is_lost and not self._ended.wait(self._heartbeat_s):
            try:
                self._renew()
            except Superseded:  # a stage of a study that another driver runs: let that compute it
                self.is_lost = True
                self._delete()
            except StoreError as error:
                logger.warning("lease %s could not be renewed (%s); trying again", self.key, error)

    def _renew(self) -> None:
        # The thread and `is_held` may renew at once, and each must replace the newest content. The time is
        # taken before the request, so that a slow renewal does not seem fresher than it is.
        with self._renewing:
            now_s = time.monotonic()
            renewed = replace(self.holder, renewed_at=time.time())
            if not self._files.replace(self.key, self.holder.encode(), renewed.encode()):
                current = _parse(self._files.read(self.key))
                if current is None or current.token != self.holder.token:
                    self.is_lost = True
                    logger.warning("lease %s was taken over", self.key)
                    return
                renewed = current  # an earlier renewal arrived although its answer did not
            self.holder, self._renewed_s = renewed, now_s


@dataclass(eq=False)
class Leases:
    """The leases of one store.

    Args:
        files: The store's files.
        clock: The clock that stamps them.
        expiry_s: Seconds without a renewal after which a lease may be taken over.
    """

    _files: Files
    _clock: PlaceClock
    expiry_s: float = EXPIRY_S

    def acquire(self, fingerprint: str, owner: str = "") -> Lease:
        """Take the lease of a stage; a thread renews it until it is released.

        Args:
            fingerprint: The stage's fingerprint.
            owner: The owner in messages to others; the process by default.

        Raises:
            StageBusy: A live owner holds it.
        """
        try:
            return self._take(f"stage-{fingerprint}", owner)
        except _Held as held:
            raise StageBusy(fingerprint, str(held)) from None

    def lock_study(
        self,
        key: str,
        owner: str = "",
        covers: Iterable[str] = (),
    ) -> Lease:
        """Take the lock of a study, which one driver at a time runs on this store.

        Args:
            key: The study's fingerprint or name.
            owner: The owner in messages to others; the process by default.
            covers: Keys of records that studies share but only one driver may write, e.g. searches. Of two
                studies whose keys overlap, one is refused.

        Raises:
            StudyLockedError: A live driver holds it, or one that covers the same; the message has owner, host
                and age.
        """
        keys = set(covers)
        # One start at a time: of two that overlap, each would see the other and be refused.
        with self._wait_to_start(owner) if keys else contextlib.nullcontext():
            try:
                lease = self._take(f"study-{key}", owner, tuple(sorted(keys)))
            except _Held as held:
                raise StudyLockedError(
                    f"the study is being run by {held}. Wait until it ends, or end it first"
                ) from None
            # After taking it: of two drivers that start at once all the same, each sees the other.
            for name in self._files.names("leases") if keys else ():
                if not name.startswith("study-") or f"leases/{name}" == lease.key:
                    continue
                state = self._find(f"leases/{name}")
                if not state.is_free and state.holder is not None and keys & set(state.holder.covers):
                    lease.release()
                    raise StudyLockedError(
                        f"another study that shares a search with this one is being run by "
                        f"{state.describe()}. Wait until it ends, or end it first"
                    )
            return lease

    def is_study_locked(self, key: str) -> bool:
        """Return True if a live driver runs the study, so that `lock_study` would fail."""
        return not self._find(_lease_key(f"study-{key}")).is_free

    def busy(self, kind: Literal["stage", "study"] = "stage") -> set[str]:
        """Return the fingerprints of the stages that live owners compute now, or the keys of studies."""
        names = [name for name in self._files.names("leases") if name.startswith(f"{kind}-")]
        return {
            name.removeprefix(f"{kind}-").removesuffix(".json")
            for name in names
            if not self._find(f"leases/{name}").is_free
        }

    def remove_stale(self) -> None:
        """Remove leases whose owners have ended and that no process has taken over."""
        for name in self._files.names("leases"):
            state = self._find(f"leases/{name}")
            # An unreadable file may belong to another program.
            if state.is_free and state.data not in (None, REMOVED) and state.holder is not None:
                # Only if unchanged: a new owner may have taken it over since it was read.
                _free(self._files, f"leases/{name}", state.data)

    def _wait_to_start(self, owner: str) -> Lease:
        """Take the lease under which drivers lock studies as soon as no process holds it."""
        for number in itertools.count(1):
            try:
                return self._take("start", owner)
            except _Held as held:
                if number == _NUM_SILENT_POLLS:
                    logger.warning("waiting for %s, which is starting", held)
                time.sleep(_POLL_S)
        raise AssertionError

    def _take(
        self,
        name: str,
        owner: str,
        covers: tuple[str, ...] = (),
    ) -> Lease:
        key = _lease_key(name)
        pid, now = os.getpid(), time.time()
        state = _kernel_state(pid)
        holder = LeaseHolder(
            owner=owner or f"process {pid}",
            host=socket.gethostname(),
            namespace=_namespace(),
            pid=pid,
            process_started=state[1] if state else "",
            token=uuid.uuid4().hex,
            acquired_at=now,
            renewed_at=now,
            covers=covers,
        )
        data = holder.encode()
        if not self._files.create(key, data):
            state = self._find(key)
            if not state.is_free:
                raise _Held(state.describe())
            if not self._files.replace(key, state.data, data):  # someone else was quicker
                raise _Held(self._find(key).describe())
            logger.info("lease %s: took over from %s", key, state.describe())
        # Three renewals in a row may fail before anybody takes the lease over.
        return Lease(self._files, key, holder, self.expiry_s / 4)

    def _find(self, key: str) -> _LeaseState:
        data = self._files.read(key)
        holder = _parse(data)
        if data in (None, REMOVED) or (holder is not None and holder.is_dead()):
            return _LeaseState(data, holder, 0.0, is_free=True)
        renewed_at = self._files.modified_at(key)
        if renewed_at is None:  # released since it was read
            return _LeaseState(None, None, 0.0, is_free=True)
        silent_s = max(0.0, self._clock.now() - renewed_at)
        return _LeaseState(data, holder, silent_s, silent_s > self.expiry_s)


def _lease_key(name: str) -> str:
    return f"leases/{name}.json"


def _free(files: Files, key: str, data: bytes) -> None:
    """Free a lease that holds `data`."""
    if key.startswith("leases/study-"):
        files.replace(key, data, REMOVED)
    else:
        # Object stores cannot delete conditionally; two owners of a stage only publish the same artifact.
        files.delete(key, data)


def _parse(data: bytes | None) -> LeaseHolder | None:
    try:
        return None if data is None else _HOLDER.validate_json(data)
    except ValueError:
        return None  # an unreadable lease expires by its age


# What tells one process from another.


def _kernel_state(pid: int) -> tuple[str, str] | None:
    """State letter and start time; None where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may contain blanks and brackets
    return fields[0], fields[19]


@cache
def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


# The clock of the place that stamps files.


_VALID_S = 60.0


class PlaceClock:
    """The clock by which a place stamps its files; it may differ from this host's.

    Ages are differences of stamps of one clock, so hosts with skewed clocks judge alike.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._offset_s = 0.0
        self._read_at = float("-inf")

    def now(self) -> float:
        """Return the place's Unix time, by this host's clock if the place is not writable.

        The place is asked at most once a minute.
        """
        if time.monotonic() - self._read_at > _VALID_S:
            stamp = self._probe()
            # Monotonic in between: the wall clock of this host may be set while the process runs.
            self._read_at = time.monotonic()
            self._offset_s = (time.time() if stamp is None else stamp) - self._read_at
        return time.monotonic() + self._offset_s

    def _probe(self) -> float | None:
        """Write a file and return its stamp; None if the place cannot be written."""
        key = f"leases/.clock-{uuid.uuid4().hex}"
        try:
            self._files.write(key, b"")
        except StoreError:
            return None
        stamp = self._files.modified_at(key)
        self._files.delete(key)
        return stamp
