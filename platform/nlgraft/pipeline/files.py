"""The few file operations a store rests on, and their local form.

Keys are relative POSIX paths below the store's root.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from nlgraft.pipeline.integrity import remove_tree

_GUARD_TIMEOUT_S = 10.0
_CLOCK_VALID_S = 60.0


class Files(Protocol):
    """Named bytes below one root.

    **Atomicity**: a key read by anyone holds all of one write. **Failure**: `NlgraftError`'s StoreError or
    OSError when the place is out of reach; a missing key is no failure.
    """

    def read(self, key: str) -> bytes | None:
        """Read a key; None when it is missing."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a key only when it is missing; True when this call made it."""
        ...

    def delete(self, key: str) -> None:
        """Delete a key; a missing one is fine."""
        ...

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key; nothing there is fine."""
        ...

    def names(self, key: str) -> list[str]:
        """Names directly below a key, newest first where times are known at no cost; hidden ones left out."""
        ...

    def existing(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that exist."""
        ...

    def walk(self, key: str) -> list[str]:
        """All keys below a key, sorted; hidden ones left out."""
        ...

    def total_bytes(self, key: str) -> int:
        """Bytes of all files below a key."""
        ...

    def modified_at(self, key: str) -> float | None:
        """When a key was last written, by the place's own clock; None when it is missing."""
        ...

    def clock(self) -> float:
        """What the place's own clock says now, in Unix seconds."""
        ...

    def guard(self) -> AbstractContextManager[object]:
        """Keep other processes out for a moment where the place can do that, best effort elsewhere."""
        ...


class PlaceClock:
    """The clock of the place that stamps files, which may differ from this host's.

    Ages of leases are differences of stamps of one clock, so hosts with skewed clocks judge alike.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._read_at = float("-inf")

    def now(self, files: Files) -> float:
        """Read the clock, by writing a probe at most once a minute.

        Args:
            files: The place.

        Returns:
            Unix seconds.
        """
        if time.monotonic() - self._read_at > _CLOCK_VALID_S:
            key = f"leases/.clock-{uuid.uuid4().hex}"
            files.write(key, b"")
            stamp = files.modified_at(key)
            files.delete(key)
            self._read_at = time.monotonic()
            self._offset_s = (time.time() if stamp is None else stamp) - self._read_at
        return time.monotonic() + self._offset_s


class LocalFiles:
    """Files in a local (or network-mounted) directory.

    Args:
        root: The directory; made when the first key is written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._clock = PlaceClock()

    def read(self, key: str) -> bytes | None:
        """Read a key; None when it is missing."""
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there."""
        path = self.root / key
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.write_bytes(data)
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise

    def create(self, key: str, data: bytes) -> bool:
        """Write a key only when it is missing; True when this call made it."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as stream:
                stream.write(data)
        except FileExistsError:
            return False
        return True

    def delete(self, key: str) -> None:
        """Delete a key; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self.root / key).unlink()

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key; nothing there is fine."""
        remove_tree(self.root / key)

    def names(self, key: str) -> list[str]:
        """Names directly below a key, newest first; hidden ones left out."""
        stamped: list[tuple[float, str]] = []
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.root / key) as entries,
        ):
            for entry in entries:
                if not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        stamped.append((-entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(stamped)]

    def existing(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that exist."""
        return {key for key in keys if (self.root / key).exists()}

    def walk(self, key: str) -> list[str]:
        """All keys below a key, sorted; hidden ones left out."""
        paths = (self.root / key).rglob("*")
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in paths
            if not path.name.startswith(".") and path.is_file()
        )

    def total_bytes(self, key: str) -> int:
        """Bytes of all files below a key."""
        total = 0
        for path in (self.root / key).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total

    def modified_at(self, key: str) -> float | None:
        """When a key was last written, by the file system's clock; None when it is missing."""
        try:
            return (self.root / key).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def clock(self) -> float:
        """What the file system's clock says now, in Unix seconds."""
        return self._clock.now(self)

    def guard(self) -> AbstractContextManager[object]:
        """Keep other processes out; raises TimeoutError when that takes too long."""
        (self.root / "leases").mkdir(parents=True, exist_ok=True)
        return FileLock(self.root / "leases" / ".guard", timeout=_GUARD_TIMEOUT_S)
