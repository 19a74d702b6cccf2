"""Leases: who computes a stage now, who runs a study now.

A lease is one small JSON file that its owner renews. Leases only save work: two owners of one stage would
publish the same artifact, so correctness never rests on them. A lease is taken over at once when its owner
was a process of this host and is gone, else when it has not been renewed for `Leases.expiry_s`. On a local
store taking over is exclusive; on an object store (no exclusive creation) it is best effort.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from dataclasses import asdict, dataclass

from nlgraft.errors import ContractError, StageBusy, StoreError, StudyLockedError
from nlgraft.pipeline.files import Files
from nlgraft.pipeline.process import ProcessIdentity, is_dead, this_process

logger = logging.getLogger(__name__)

EXPIRY_S = 60.0
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*")


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """What a lease file says.

    Attributes:
        owner: Free text for people.
        host: Host name of the owning process.
        namespace: See `ProcessIdentity`.
        pid: Process number.
        process_started: See `ProcessIdentity`.
        token: Different for every acquisition.
        acquired_at: Unix seconds by the owner's clock.
        renewed_at: Unix seconds by the owner's clock; ages are judged by the store's clock instead.
    """

    owner: str
    host: str
    namespace: str
    pid: int
    process_started: str
    token: str
    acquired_at: float
    renewed_at: float

    def is_dead(self) -> bool:
        """Tell whether the owner has certainly ended."""
        return is_dead(ProcessIdentity(self.host, self.namespace, self.pid, self.process_started))


class _Held(Exception):
    """Someone else holds the lease."""

    def __init__(self, holder: LeaseHolder | None, silent_s: float) -> None:
        self.holder = holder
        self.silent_s = silent_s
        super().__init__(self.describe())

    def describe(self) -> str:
        if self.holder is None:
            return "an owner that is only just writing its lease"
        held_s = max(0.0, time.time() - self.holder.acquired_at)
        return (
            f"{self.holder.owner} (host {self.holder.host}, pid {self.holder.pid}, for {format_age(held_s)}, "
            f"last sign of life {format_age(self.silent_s)} ago)"
        )


class Lease:
    """A lease that is held; a context manager that releases it.

    Args:
        files: Where the lease file lies.
        key: Key of the lease file.
        holder: What was written into it.
        heartbeat_s: How often it is renewed.

    Attributes:
        is_lost: True once another owner has taken it over (this process was silent for too long).
    """

    def __init__(self, files: Files, key: str, holder: LeaseHolder, heartbeat_s: float) -> None:
        self.key = key
        self.holder = holder
        self.is_lost = False
        self._files = files
        self._heartbeat_s = heartbeat_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key[:40]}", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lease back; a lost one is left to its new owner. May be called twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        try:
            with self._files.guard():
                if self._is_ours():
                    self._files.delete(self.key)
        except (OSError, StoreError) as error:
            logger.warning("lease %s could not be released (%s); it will expire", self.key, error)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_ours(self) -> bool:
        current = _parse(self._files.read(self.key))
        return current is not None and current.token == self.holder.token

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            try:
                with self._files.guard():
                    if not self._is_ours():
                        self.is_lost = True
                        logger.warning(
                            "lease %s was taken over; this process goes on, its work is spare", self.key
                        )
                        return
                    renewed = LeaseHolder(**{**asdict(self.holder), "renewed_at": time.time()})
                    self._files.write(self.key, _encode(renewed))
            except (OSError, StoreError) as error:
                logger.warning("lease %s could not be renewed (%s); trying again", self.key, error)


class Leases:
    """The leases of one store.

    Args:
        files: The store's files.
        expiry_s: Silence after which a lease may be taken over.
    """

    def __init__(self, files: Files, *, expiry_s: float = EXPIRY_S) -> None:
        self.expiry_s = expiry_s
        self._files = files

    def acquire(self, fingerprint: str, owner: str = "") -> Lease:
        """Take the lease of a stage.

        Args:
            fingerprint: The stage's fingerprint.
            owner: Who asks, for the messages others see; the process by default.

        Returns:
            The lease, renewed by a thread until it is released.

        Raises:
            StageBusy: A live owner holds it.
        """
        try:
            return self._take(f"stage-{fingerprint}", owner)
        except _Held as held:
            raise StageBusy(fingerprint, held.describe()) from None

    def lock_study(self, key: str, owner: str = "") -> Lease:
        """Take the lock of a study: one driver at a time runs it on this store.

        Args:
            key: The study's fingerprint or name.
            owner: Who asks, for the messages others see.

        Returns:
            The lock, renewed by a thread until it is released.

        Raises:
            StudyLockedError: A live driver holds it; the message has owner, host and age.
        """
        try:
            return self._take(f"study-{key}", owner)
        except _Held as held:
            raise StudyLockedError(
                f"study {key[:40]} is being run by {held.describe()}. Wait until it ends, or end it first"
            ) from None

    def is_study_locked(self, key: str) -> bool:
        """Tell whether a live driver runs a study.

        Args:
            key: As in `lock_study`.

        Returns:
            True when a lock exists that nobody could take over now.
        """
        path = _lease_key(f"study-{key}")
        return self._files.modified_at(path) is not None and not self._judge(path)[2]

    def busy(self) -> set[str]:
        """List the stages that live owners compute now.

        Returns:
            Their fingerprints.
        """
        names = [name for name in self._files.names("leases") if name.startswith("stage-")]
        return {
            name.removeprefix("stage-").removesuffix(".json")
            for name in names
            if not self._judge(f"leases/{name}")[2]
        }

    def remove_stale(self) -> int:
        """Remove leases whose owners are gone and that nobody came to take over.

        Returns:
            How many were removed.
        """
        removed = 0
        for name in self._files.names("leases"):
            key = f"leases/{name}"
            with self._files.guard():
                if name.endswith(".json") and self._judge(key)[2]:
                    self._files.delete(key)
                    removed += 1
        return removed

    def _take(self, name: str, owner: str) -> Lease:
        key = _lease_key(name)
        process = this_process()
        now = time.time()
        holder = LeaseHolder(
            owner=owner or f"process {process.pid}",
            host=process.host,
            namespace=process.namespace,
            pid=process.pid,
            process_started=process.started,
            token=uuid.uuid4().hex,
            acquired_at=now,
            renewed_at=now,
        )
        if not self._files.create(key, _encode(holder)):
            self._take_over(key, holder)
        return Lease(self._files, key, holder, self.expiry_s / 4)

    def _take_over(self, key: str, holder: LeaseHolder) -> None:
        current, silent_s, is_stale = self._judge(key)
        if not is_stale:
            raise _Held(current, silent_s)
        try:
            with self._files.guard():
                # Someone else may have been quicker between the first look and the guard.
                current, silent_s, is_stale = self._judge(key)
                if not is_stale:
                    raise _Held(current, silent_s)
                if self._files.modified_at(key) is None and not self._files.create(key, _encode(holder)):
                    raise _Held(_parse(self._files.read(key)), 0.0)
                self._files.write(key, _encode(holder))
                written = _parse(self._files.read(key))
        except TimeoutError:
            raise _Held(current, silent_s) from None
        if written is None or written.token != holder.token:
            raise _Held(written, 0.0)
        logger.info("lease %s: took over from %s", key, current.owner if current else "an unreadable lease")

    def _judge(self, key: str) -> tuple[LeaseHolder | None, float, bool]:
        """Holder, seconds since its last sign of life, and whether it may be taken over."""
        holder = _parse(self._files.read(key))
        if holder is not None and holder.is_dead():
            return holder, 0.0, True
        renewed_at = self._files.modified_at(key)
        if renewed_at is None:
            return None, 0.0, True
        silent_s = max(0.0, self._files.clock() - renewed_at)
        return holder, silent_s, silent_s > self.expiry_s


def format_age(seconds: float) -> str:
    """Write a duration for people.

    Args:
        seconds: The duration.

    Returns:
        ``"12 s"``, ``"3 min 5 s"`` or ``"2 h 4 min"``.
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _lease_key(name: str) -> str:
    if not _KEY.fullmatch(name):
        raise ContractError(f"lease {name!r}: use letters, digits and '_', '.', '=', '+', '-' only")
    return f"leases/{name}.json"


def _encode(holder: LeaseHolder) -> bytes:
    return json.dumps(asdict(holder), indent=1).encode()


def _parse(data: bytes | None) -> LeaseHolder | None:
    if data is None:
        return None
    try:
        return LeaseHolder(**json.loads(data))
    except (ValueError, TypeError):
        return None  # only just being written, or garbage: its age decides
