"""The same file operations on any file system that pyarrow knows: s3://, gs://, abfss://, hdfs://...

The only module of the pipeline that imports pyarrow, and only a remote store imports it.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow
from pyarrow import fs

from nlgraft.errors import StoreError
from nlgraft.pipeline.files import PlaceClock

_CHUNK_BYTES = 8 * 2**20
_NUM_THREADS = 8
# An object appears whole or not at all on these; elsewhere a file shows while it is written.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})


def without_secrets(uri: str) -> str:
    """Take credentials out of a URI, for messages.

    Args:
        uri: E.g. ``s3://key:secret@bucket/prefix``.

    Returns:
        E.g. ``s3://bucket/prefix``.
    """
    return re.sub(r"//[^/@]*@", "//", uri)


class RemoteFiles:
    """Files below a path of a pyarrow file system.

    Args:
        filesystem: The file system.
        root: Path of the store in it.
        name: What messages call the place.
        settle_s: How long `create` waits before it reads back what it wrote.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, name: str, *, settle_s: float = 0.1) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self.name = name
        self._settle_s = settle_s
        self._has_atomic_writes = filesystem.type_name in _OBJECT_STORES
        self._clock = PlaceClock()

    @classmethod
    def from_uri(cls, uri: str) -> RemoteFiles:
        """Open a place by its URI.

        Args:
            uri: As ``pyarrow.fs.FileSystem.from_uri`` takes it, options after ``?`` included.

        Returns:
            The place; nothing has been asked of it yet.

        Raises:
            StoreError: The URI is not understood.
        """
        try:
            filesystem, root = _open_filesystem(uri)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise StoreError(
                f"storage {without_secrets(uri)!r} cannot be opened: {without_secrets(str(error))}. Allowed: "
                "a directory, file:///, s3://bucket/prefix, gs://bucket/prefix, abfss://, hdfs://"
            ) from None  # the error itself quotes the URI, credentials included
        return cls(filesystem, root, without_secrets(uri))

    def read(self, key: str) -> bytes | None:
        """Read a key; None when it is missing."""
        with self._named("read", key):
            try:
                with self.filesystem.open_input_stream(self._path(key)) as stream:
                    return stream.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there."""
        with self._named("write", key), self._opened(key) as stream:
            stream.write(data)

    def create(self, key: str, data: bytes) -> bool:
        """Write a key only when it is missing: look, write, wait a moment, read back. Best effort."""
        if self.modified_at(key) is not None:
            return False
        self.write(key, data)
        time.sleep(self._settle_s)
        return self.read(key) == data

    def delete(self, key: str) -> None:
        """Delete a key; a missing one is fine."""
        with self._named("delete", key), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._path(key))

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key; nothing there is fine."""
        with self._named("delete", key), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._path(key))

    def names(self, key: str) -> list[str]:
        """Names directly below a key, sorted; hidden ones left out."""
        return sorted(
            entry.base_name
            for entry in self._list(key, is_recursive=False)
            if not entry.base_name.startswith(".")
        )

    def existing(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that exist."""
        asked = list(keys)
        if not asked:
            return set()
        with self._named("look at", asked[0]):
            infos = self.filesystem.get_file_info([self._path(key) for key in asked])
        return {key for key, info in zip(asked, infos, strict=True) if info.type == fs.FileType.File}

    def walk(self, key: str) -> list[str]:
        """All keys below a key, sorted; hidden ones left out."""
        return sorted(name for name in self.sizes(key) if not name.rpartition("/")[2].startswith("."))

    def sizes(self, key: str) -> dict[str, int]:
        """Bytes of every file below a key, by its key."""
        return {
            entry.path[len(self.root) :].lstrip("/"): entry.size
            for entry in self._list(key, is_recursive=True)
            if entry.type == fs.FileType.File
        }

    def total_bytes(self, key: str) -> int:
        """Bytes of all files below a key."""
        return sum(self.sizes(key).values())

    def modified_at(self, key: str) -> float | None:
        """When a key was last written, by the place's own clock; None when it is missing."""
        with self._named("look at", key):
            info = self.filesystem.get_file_info(self._path(key))
        if info.type != fs.FileType.File:
            return None
        return time.time() if info.mtime_ns is None else info.mtime_ns / 1e9

    def clock(self) -> float:
        """What the place's own clock says now, in Unix seconds."""
        return self._clock.now(self)

    def guard(self) -> AbstractContextManager[object]:
        """Keep nobody out: an object store has no means to. What it guards is best effort here."""
        return nullcontext()

    def upload(self, source: Path, key: str, names: Iterable[str]) -> None:
        """Copy files of a local directory below a key.

        Args:
            source: The local directory.
            key: Where the files go.
            names: Relative POSIX paths of the files.
        """

        def copy(name: str) -> None:
            path = f"{key}/{name}"
            with self._named("write", path), (source / name).open("rb") as stream, self._opened(path) as sink:
                while chunk := stream.read(_CHUNK_BYTES):
                    sink.write(chunk)

        _in_threads(copy, names)

    def download(self, key: str, target: Path, names: Iterable[str]) -> None:
        """Copy files below a key into a local directory.

        Args:
            key: Where the files lie.
            target: The local directory.
            names: Relative POSIX paths of the files; a missing one is left out, the checksums will tell.
        """

        def copy(name: str) -> None:
            path = f"{key}/{name}"
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with self._named("read", path):
                try:
                    stream = self.filesystem.open_input_stream(self._path(path))
                except FileNotFoundError:
                    return
                with stream, (target / name).open("wb") as sink:
                    while chunk := stream.read(_CHUNK_BYTES):
                        sink.write(chunk)

        _in_threads(copy, names)

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}" if self.root else key

    def _list(self, key: str, *, is_recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(key), allow_not_found=True, recursive=is_recursive)
        with self._named("list", key):
            return self.filesystem.get_file_info(selector)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[pyarrow.NativeFile]:
        path = self._path(key)
        if self._has_atomic_writes:
            with self.filesystem.open_output_stream(path) as stream:
                yield stream
            return
        parent, _, name = path.rpartition("/")
        scratch = f"{parent}/.{name}.{uuid.uuid4().hex}"
        self.filesystem.create_dir(parent, recursive=True)
        with self.filesystem.open_output_stream(scratch) as stream:
            yield stream
        self.filesystem.move(scratch, path)

    @contextlib.contextmanager
    def _named(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreError(f"{self.name}: cannot {what} {key}: {error}") from error


def _open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    if uri.startswith("s3://") and "allow_delayed_open" not in uri:
        # One request for a small object in place of three; an older pyarrow does not know the option.
        with contextlib.suppress(pyarrow.ArrowException):
            return fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true")
    return fs.FileSystem.from_uri(uri)


def _in_threads(copy: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="store") as pool:
        list(pool.map(copy, names))
