"""Fencing tokens: a process whose driver has lost the lock of its study writes nothing more.

A process that was stopped (SIGSTOP, a suspended machine) may wake at any line, also behind a look at the
lock. So each write compares: what a key holds is read first, then the lock is looked at, and the key is
written only if it still holds what was read. A write that was held up between these is refused by what
another driver wrote in its place; if that has written nothing there yet, it will replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from nlgraft.basics.errors import StoreError
from nlgraft.pipeline.object_files import Files

_NUM_TRIES = 100
_READING = frozenset({"read", "names", "existing", "sizes", "modified_at", "damage", "fetch"})


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


@dataclass(eq=False)
class Guarded:
    """Stands for an object: each of its methods is called after a check, but for those that only read.

    Args:
        inner: The object.
        check: Raises if it must not be written.
        is_reading: Tells if a method, given by its name, only reads.
    """

    _inner: Any
    _check: Callable[[], object]
    _is_reading: Callable[[str], bool]

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if self._is_reading(name) or not callable(attribute):
            return attribute

        def write(*arguments: Any, **options: Any) -> Any:
            self._check()
            return attribute(*arguments, **options)

        return write


def fenced(files: Files, fence: Fence) -> Files:
    """Return files that are written only while a lock is held; reading goes on."""

    def check() -> None:
        if not fence.is_held(files):
            raise Superseded

    return cast(Files, _FencedFiles(files, check, _READING.__contains__))


class _FencedFiles(Guarded):
    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there when the lock was looked at."""
        for _ in range(_NUM_TRIES):
            before = self._inner.read(key)
            # It looks at the lock, which has to come after `before` was read.
            if self.replace(key, before, data):
                return
        raise StoreError(f"{self._inner.name}: {key} is being written by others all the time")

    def delete(self, key: str, expected: bytes | None = None) -> None:
        """Delete a key; one that holds what this process wrote there also without the lock."""
        if expected is None:  # otherwise a superseded process could not even take back its leases
            self._check()
        self._inner.delete(key, expected)
