"""Local directories that are written before they are published."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import uuid
import weakref
from functools import cached_property
from pathlib import Path

from nlgraft.pipeline.integrity import remove_tree, store_errors


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
