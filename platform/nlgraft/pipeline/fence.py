"""Fencing tokens: a process whose driver has lost the lock of its study writes nothing more.

A process that was stopped (SIGSTOP, a suspended machine) may wake at any line, also behind a look at the
lock. So each write compares: what a key holds is read first, then the lock is looked at, and the key is
written only if it still holds what was read. A write that was held up between these is refused by what
another driver wrote in its place; if that has written nothing there yet, it will replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from nlgraft.errors import StoreError
from nlgraft.pipeline.integrity import FileEntry
from nlgraft.pipeline.local_files import Files

_NUM_TRIES = 100


@dataclass(frozen=True)
class Fence:
    """One acquisition of a study's lock, under which processes write.

    Attributes:
        key: The lock's file below the store's root.
        token: Token of the acquisition.
    """

    key: str
    token: str

    def is_held(self, files: Files) -> bool:
        """Read the lock and tell if nobody has taken it over.

        Raises:
            StoreError: The store cannot be asked.
        """
        try:
            return _Token.model_validate_json(files.read(self.key) or b"").token == self.token
        except ValidationError:
            return False


class _Token(BaseModel):
    token: str


class Superseded(StoreError):
    """Another driver has taken the study over."""

    def __init__(self) -> None:
        super().__init__(
            "another driver has taken the study over, because this one was suspended or cut off from its "
            "store for too long; this process writes nothing more"
        )


def fenced(files: Files, fence: Fence) -> Files:
    """Return files that are written only while a lock is held; reading goes on."""
    return cast(Files, _FencedFiles(files, fence))


class _FencedFiles:
    """Files behind a fence; whatever is not defined here goes to the files themselves."""

    def __init__(self, files: Files, fence: Fence) -> None:
        self._files = files
        self._fence = fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def check(self) -> None:
        """Raise `Superseded` if the lock is not held any more."""
        if not self._fence.is_held(self._files):
            raise Superseded

    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there when the lock was looked at."""
        for _ in range(_NUM_TRIES):
            before = self._files.read(key)
            self.check()
            if before is None:
                is_written = self._files.create(key, data)
            else:
                is_written = self._files.replace(key, before, data)
            if is_written:
                return
        raise StoreError(f"{self._files.name}: {key} is being written by others all the time")

    def create(self, key: str, data: bytes) -> bool:
        """Write a key only if it is missing."""
        self.check()
        return self._files.create(key, data)

    def replace(self, key: str, old: bytes, new: bytes) -> bool:
        """Write a key only if it holds `old`."""
        self.check()
        return self._files.replace(key, old, new)

    def delete(self, key: str, expected: bytes | None = None) -> None:
        """Delete a key; one that holds what this process wrote there also without the lock."""
        if expected is None:
            self.check()
        self._files.delete(key, expected)

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key."""
        self.check()
        self._files.delete_tree(key)

    def put_directory(self, source: Path, key: str, entries: Mapping[str, FileEntry]) -> Path:
        """Move files of a local directory below a key."""
        self.check()
        return self._files.put_directory(source, key, entries)
