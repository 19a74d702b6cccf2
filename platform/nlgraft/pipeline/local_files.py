"""The file operations of a store, in a local directory; `object_files` has the same for objects.

Keys are relative POSIX paths below the store's root. **Atomicity**: whoever reads a key reads all of one
write. **Failure**: `StoreError` when the place is out of reach or refuses; a missing key is no failure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from nlgraft.basics.errors import StoreError
from nlgraft.pipeline.integrity import (
    ArtifactDamaged,
    FileEntry,
    find_damage,
    remember_verified,
    remove_tree,
    store_errors,
)

logger = logging.getLogger(__name__)

REMOVED = b"null"
"""Stands in place of a document that must go only if it is unchanged: not every place deletes so."""

_PATIENCE_S = 2.0
_POLL_S = 0.01


class LocalFiles:
    """Files in a local or network-mounted directory, which is made when the first key is written.

    Attributes:
        name: The place in messages, without credentials.
        scratch: Local directories whose files `put_directory` takes over.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self.scratch = Scratch(root / "tmp")

    @store_errors("read")
    def read(self, key: str) -> bytes | None:
        """Read a key; None if it is missing."""
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):  # a file in place of its folder: missing, too
            return None

    @store_errors("write")
    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there."""
        with self._written(key, data) as scratch:
            scratch.replace(self.root / key)

    @store_errors("write")
    def create(self, key: str, data: bytes) -> bool:
        """Write a key only if it is missing; True for the one caller whose data it holds."""
        with self._written(key, data) as scratch:
            try:
                os.link(scratch, self.root / key)  # fails where the name is taken
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise
                raise StoreError(
                    f"{self.name}: its file system has no hard links, which exclusive writing needs. Keep "
                    "the store on a local disk, on NFS or in an object store (storage.path, --storage)"
                ) from error
        return True

    @store_errors("write")
    def replace(
        self,
        key: str,
        old: bytes | None,
        new: bytes,
    ) -> bool:
        """Write a key only if it holds `old`, or with None is missing.

        True for the one caller whose data it then holds.
        """
        if old is None:
            return self.create(key, new)
        return self._exchange(key, old, new)

    @store_errors("delete")
    def delete(self, key: str, expected: bytes | None = None) -> None:
        """Delete a key, or with `expected` only if it holds that; a missing key is fine."""
        if expected is not None:
            self._exchange(key, expected, None)
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self.root / key).unlink()

    def _exchange(
        self,
        key: str,
        old: bytes,
        new: bytes | None,
    ) -> bool:
        """Replace a key that holds `old`, or remove it.

        No call of a file system compares and renames at once. So the file moves out of a claim, a folder
        beside the key that one process has at a time, or into it. A claim that stands for too long is
        removed; its process, stopped or slow, finds nothing to move when it goes on.
        """
        path, patience_s = self.root / key, _PATIENCE_S
        claim = path.with_name(f".{path.name}.claim")
        while self.read(key) == old:
            token = uuid.uuid4().hex
            draft = path.with_name(f".{token}")
            claimant = f"process {os.getpid()} of host {socket.gethostname()}, {token}"
            data = claim / claimant / ".data"
            (draft / claimant).mkdir(parents=True)
            try:
                if new is not None:
                    (draft / claimant / ".data").write_bytes(new)
                _enter(draft, claim, patience_s)
                if self.read(key) == old:
                    source, target = (path, data) if new is None else (data, path)
                    source.rename(target)
                    return True
            except FileNotFoundError:  # the claim was removed: let others wait for less time than this one
                patience_s *= 2
            finally:
                with contextlib.suppress(OSError):  # another process's claim stays
                    (claim / claimant).rename(draft)
                    claim.rmdir()
                remove_tree(draft)
        return False

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key; nothing there is fine."""
        remove_tree(self.root / key)

    @store_errors("list")
    def names(self, key: str) -> list[str]:
        """List the names directly below a key, newest first; hidden ones left out."""
        stamped: list[tuple[float, str]] = []
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.root / key) as entries,
        ):
            for entry in entries:
                if not entry.name.startswith("."):
                    # Another process may delete a file between its listing and the look at it.
                    with contextlib.suppress(FileNotFoundError):
                        stamped.append((-entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(stamped)]

    @store_errors("read")
    def existing(self, keys: Iterable[str]) -> set[str]:
        """Select the keys that exist."""
        return {key for key in keys if (self.root / key).exists()}

    @store_errors("list")
    def sizes(self, key: str) -> dict[str, int]:
        """List the bytes of every file below a key, by its key; hidden ones left out.

        Files that share their bytes, by hard links, have equal parts of them.
        """
        num_bytes = {}
        for folder, _, names in os.walk(self.root / key, onerror=_raise_unless_gone):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if not name.startswith(".") and path.is_file():
                        status = path.stat()
                        share = status.st_size // status.st_nlink
                        num_bytes[path.relative_to(self.root).as_posix()] = share
        return num_bytes

    @store_errors("read")
    def modified_at(self, key: str) -> float | None:
        """Return the Unix time of the last write by the file system's clock; None if the key is missing."""
        try:
            return (self.root / key).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    @store_errors("write")
    def put_directory(
        self,
        source: Path,
        key: str,
        entries: Mapping[str, FileEntry],
    ) -> Path:
        """Move files of a local directory below a key that nobody else writes to.

        Returns:
            A local directory with the files.
        """
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        # Atomic, because the scratch lies on the same file system.
        source.rename(target)
        remember_verified(target, entries)
        return target

    @store_errors("read")
    def damage(
        self,
        key: str,
        entries: Mapping[str, FileEntry],
        *,
        is_afresh: bool = False,
    ) -> str | None:
        """Compare sizes and checksums; those that this process has compared are read again if `is_afresh`."""
        return find_damage(self.root / key, entries, is_afresh=is_afresh)

    def fetch(self, key: str, entries: Mapping[str, FileEntry]) -> Path:
        """Return the stored directory itself, checksums compared; read only."""
        damage = self.damage(key, entries)
        if damage is not None:
            raise ArtifactDamaged(f"{self.root / key}: {damage}")
        return self.root / key

    @contextlib.contextmanager
    def _written(self, key: str, data: bytes) -> Iterator[Path]:
        """A hidden file beside the key that holds the data; removed unless it was renamed."""
        path = self.root / key
        # Beside the key, because links and renames stay within a file system; hidden, so never listed.
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.write_bytes(data)
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)


def _enter(draft: Path, claim: Path, patience_s: float) -> None:
    """Make a folder the claim on a key; one that stands for too long in its way is removed."""
    claimants: list[str] = []
    began_s = time.monotonic()
    while True:
        try:
            draft.rename(claim)  # refused while the claim holds anything
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in claim.iterdir()]
            if names != claimants:
                claimants, began_s = names, time.monotonic()
            elif time.monotonic() - began_s > patience_s:
                logger.warning("%s: goes on after %g s without %s", claim, patience_s, ", ".join(names))
                remove_tree(claim.rename(f"{draft}.broken"))
        time.sleep(_POLL_S)


def _raise_unless_gone(error: OSError) -> None:
    """Leave a folder out of a listing that is missing, or that another process has just removed."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


# Local directories that are written before they are published.


class Scratch:
    """Directories below one root, each held by the process that made it.

    A process holds its directories by a locked file beside them. The kernel ends the lock with the process,
    and shows it to every namespace and container of the host, where process numbers do not compare.

    Args:
        root: On the file system to which finished directories are renamed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @store_errors("write")
    def new(self, fingerprint: str) -> Path:
        """Make an empty directory; the fingerprint in its name is for people."""
        path = self.root / f"{fingerprint[:16]},{uuid.uuid4().hex[:8]},{self._holder}"
        path.mkdir(parents=True)
        return path

    @contextlib.contextmanager
    def held(self, fingerprint: str) -> Iterator[Path]:
        """Make a directory as `new` does, for this context; one of a killed process is removed later."""
        path = self.new(fingerprint)
        try:
            yield path
        finally:
            remove_tree(path)

    @store_errors("write")
    def own(self, directory: Path, fingerprint: str) -> Path:
        """Return a directory made by `new` as it is, and a copy of any other."""
        if directory.parent == self.root:
            return directory
        path = self.new(fingerprint)
        shutil.copytree(directory, path, dirs_exist_ok=True)
        return path

    def remove_abandoned(self) -> None:
        """Remove the directories of processes of this host that have ended."""
        for lock in self.root.glob(f".*,{socket.gethostname()}.lock"):
            # Without a lock, held or unknown to the file system, nothing is removed.
            with contextlib.suppress(OSError), lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in self.root.glob(f"*,{lock.stem[1:]}"):
                    remove_tree(path)
                lock.unlink()

    @cached_property
    def _holder(self) -> str:
        """Suffix of the names of this process's directories; the file of that name is locked."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.remove_abandoned()
        name = f"{uuid.uuid4().hex[:16]},{socket.gethostname()}"
        draft = self.root / f".{name}"
        descriptor = os.open(draft, os.O_CREAT | os.O_RDWR, 0o666)
        weakref.finalize(self, os.close, descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed once it is locked, so that no process ever sees it unlocked.
        draft.rename(draft.with_name(f".{name}.lock"))
        return name
