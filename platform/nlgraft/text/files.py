"""Files of lines, read strictly, and their digests.

A line ends at LF or CRLF and nowhere else: U+2028, form feeds and lone carriage returns are text.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import select
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated, Any, cast, overload

from pydantic import AfterValidator, ValidationInfo

from nlgraft.basics.errors import DataError, did_you_mean
from nlgraft.basics.wording import is_inside


def _resolved(path: str, info: ValidationInfo) -> str:
    if (info.data or {}).get("table") is not None:  # a column of that table
        return path
    directory = (info.context or {}).get("directory")
    if directory is None:
        return path
    return str(Path(directory, Path(path).expanduser()))


def _resolved_if_present(path: str, info: ValidationInfo) -> str:
    resolved = _resolved(path, info)
    return resolved if expand(resolved).exists() else path


InputPath = Annotated[str, AfterValidator(_resolved)]
"""A file or directory of a study; relative ones start at the directory of the study file."""
InputPathOrName = Annotated[str, AfterValidator(_resolved_if_present)]
"""An existing file or directory, resolved likewise; otherwise a name, e.g. on the Hugging Face hub."""

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_BYTES_PER_CHAR = 4  # upper bound of UTF-8
_PIPE_WAIT_S = 10
"""Time within which somebody must write to a named pipe."""


_MOST_CHARS = 1 << 25
"""Characters that are collected in memory; more lines go into a temporary file."""
_CHUNK_LINES = 10_000
"""Lines that are worked on at once: bounds memory, changes no result."""


@dataclass(frozen=True)
class Lines:
    """Lines of one file.

    Attributes:
        lines: Text without line ends.
        num_cut: Lines that exceeded the limit and were truncated.
    """

    lines: Sequence[str]
    num_cut: int


class _Lines(Sequence[str]):
    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return self._line(numbers)
        # The first lines need no index of all.
        is_start = numbers.start == 0 and numbers.step == 1
        if is_start:
            return [*islice(self, len(numbers))]
        return [self._line(number) for number in numbers]

    @abstractmethod
    def _line(self, number: int) -> str: ...


class StoredLines(_Lines):
    """Lines of a UTF-8 file, each with a line feed at its end, that are read when they are asked for.

    Going through them takes no memory. The file must stay as long as they are used.

    Attributes:
        path: The file.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, keeper: object = None) -> None:
        """Count the lines of a file; ``keeper``, such as its temporary directory, lives as long."""
        self.path, self._keeper = path, keeper
        with path.open("rb") as file:
            blocks = iter(lambda: file.read(1 << 20), b"")
            self._count = sum(block.count(b"\n") for block in blocks)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            for line in file:
                yield line[:-1].decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    @cached_property
    def _starts(self) -> array[int]:
        with self.path.open("rb") as file:
            return array("q", accumulate(map(len, file), initial=0))

    def _line(self, number: int) -> str:
        with self.path.open("rb") as file:
            file.seek(self._starts[number])
            return file.readline()[:-1].decode()


class JoinedLines(_Lines):
    """Lines of several sequences, one sequence after the other."""

    def __init__(self, parts: Iterable[Sequence[str]]) -> None:
        self._parts = [*parts]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def _line(self, number: int) -> str:
        return next(islice(self, number, None))


class LineSpool:
    """Collects lines that follow one another, in memory, or in a temporary file where they are many."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._num_chars = 0
        self._directory: TemporaryDirectory[str] | None = None

    def append(self, line: str) -> None:
        """Add a line, which has no line feed."""
        self._lines.append(line)
        self._num_chars += len(line)
        if self._num_chars > _MOST_CHARS:
            self._write()

    def lines(self) -> Sequence[str]:
        """Return all lines; none may follow."""
        if self._directory is None:
            return self._lines
        return StoredLines(self._write(), self._directory)

    def _write(self) -> Path:
        self._directory = self._directory or TemporaryDirectory(prefix="nlgraft-lines-")
        path = Path(self._directory.name, "lines.txt")
        with path.open("ab") as file:
            file.writelines(f"{line}\n".encode() for line in self._lines)
        self._lines, self._num_chars = [], 0
        return path


def spooled(lines: Iterable[str]) -> Sequence[str]:
    """Collect lines from an iterator; where they are many, a temporary file holds them."""
    spool = LineSpool()
    for line in lines:
        spool.append(line)
    return spool.lines()


def check_alike(what: str, streams: Mapping[str, Sized]) -> None:
    """Verify that streams, by name, have the same number of entries.

    Raises:
        DataError: They have not; names ``what`` they are.
    """
    counts = {name: len(stream) for name, stream in streams.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"{what} differ in length: {listed}")


def chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Take lines in lists of some thousand, so that what is made of them is never in memory whole.

    The first list is there even without any line.
    """
    iterator = iter(lines)
    yield [*islice(iterator, _CHUNK_LINES)]
    while chunk := [*islice(iterator, _CHUNK_LINES)]:
        yield chunk


def read_lines(path: str, max_line_chars: int) -> Lines:
    """Read all lines of a UTF-8 file, plain, gzip or zstd (see `open_file`).

    A byte order mark is dropped, CRLF is a line end, a last line without line end counts. Memory stays within
    a few times ``max_line_chars`` for a line of any length; longer lines are truncated and counted.

    Raises:
        DataError: The file is missing, unreadable, empty, not UTF-8, broken, or plain but named .gz or .zst,
            or holds a NUL character.
    """
    try:
        with open_file(path) as file:
            lines = _split(file, path, max_line_chars)
    except OSError as error:
        raise DataError(unreadable(path, error)) from error
    if not lines.lines:
        raise DataError(f"{path}: the file is empty; give one with a line per example")
    return lines


def has_text(lines: Iterable[str]) -> bool:
    """Return True if some line has a character that can be seen."""
    return any(char.isprintable() and not char.isspace() for line in lines for char in line)


_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_COMPRESSION_OF = {".gz": "gzip", ".zst": "zstd"}


def without_compression(name: str) -> str:
    """Return a file's name without ``.gz`` or ``.zst``."""
    return name.removesuffix(".gz").removesuffix(".zst")


@contextmanager
def open_file(path: str) -> Iterator[IO[bytes]]:
    """Open a file or a pipe, plain or compressed, to read its uncompressed bytes once.

    Its first bytes tell gzip and zstd.

    Raises:
        DataError: It is a device, or broken, or another thing than its name says: plain, but named .gz.
        OSError: It cannot be read, or is a pipe to which nobody writes.
    """
    where = expand(path)
    if not where.is_fifo():
        refuse_special(where)
    # An unnamed pipe, such as a shell passes as /dev/fd/63, resolves to a name that does not exist.
    opener = _open_named_pipe if Path(os.path.realpath(where)).is_fifo() else None
    with open(where, "rb", opener=opener) as file:
        head = file.peek(4)  # a pipe's first bytes cannot be read again
        kind = next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)
        named = _COMPRESSION_OF.get(where.suffix, kind)
        if head and named != kind:
            raise DataError(
                f"{path}: named {where.suffix} but not a {named} file; rename it, or compress it with {named}"
            )
        try:
            yield _uncompressed(file, kind)
        except (OSError, EOFError, zlib.error) as error:
            # An error with a number is the file system's, not the content's.
            if kind is None or getattr(error, "errno", None) is not None:
                raise
            raise DataError(f"{path}: broken {kind} file ({error}); fetch or compress it again") from error


def _uncompressed(file: io.BufferedReader, kind: str | None) -> IO[bytes]:
    if kind == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if kind == "zstd":
        import pyarrow  # takes .3 s to import; Python has zstd from 3.14 on

        return cast(IO[bytes], io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd")))
    return file


def refuse_special(path: Path) -> None:
    """Refuse a pipe or a device where a file is read more than once.

    Raises:
        DataError: It is one. What does not exist passes.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(
            f"{path}: a pipe or a device, which can be read only once and may never end; write its content "
            "to a file and give that"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file whose top level is an object.

    Raises:
        DataError: It is not JSON, or not an object, or a pipe or a device.
    """
    refuse_special(path)
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # nested too deeply
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read as JSON ({reason})") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a JSON object, not {type(data).__name__}")
    return data


def read_index(path: Path) -> dict[str, Any]:
    """Read the index of weights in several files; its ``weight_map`` names the file of each tensor.

    Raises:
        DataError: It is none, or names a file outside its directory, where nothing may be read or written.
    """
    index = read_json(path)
    if not isinstance(index.get("weight_map"), dict):
        raise DataError(f"{path}: not an index of weights (weight_map); download it again")
    foreign = sorted(str(name) for name in index["weight_map"].values() if not is_inside(name))
    if foreign:
        raise DataError(f"{path}: {foreign[0]!r} is no file of this directory; download the checkpoint again")
    return index


def write_json(path: Path, document: Any) -> None:
    """Write a value as JSON that people can read, in UTF-8."""
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")


def refuse_used(directory: Path) -> None:
    """Refuse to write into a directory that is not empty.

    Raises:
        DataError: It exists and is not empty, or is a file.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(f"{directory}: exists and is not empty; give another directory or remove it")


@contextmanager
def written_at_once(target: Path) -> Iterator[Path]:
    """Yield a directory to write into that replaces ``target`` (missing or empty) whole, or not at all."""
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as outer:
        inner = Path(outer) / target.name
        inner.mkdir()
        yield inner
        # A rename within one file system is atomic: nobody sees half of it. An empty target is replaced.
        inner.replace(target)


def _open_named_pipe(path: str, flags: int) -> int:
    """Open a pipe without waiting for a writer, which may never come, and wait some time for text."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_PIPE_WAIT_S * 1000):
        os.close(descriptor)
        raise OSError(f"a pipe to which nobody has written for {_PIPE_WAIT_S} s")
    os.set_blocking(descriptor, True)
    return descriptor


def _split(
    file: IO[bytes],
    path: str,
    max_line_chars: int,
) -> Lines:
    lines = LineSpool()
    number = num_cut = offset = 0
    # Room for one character more than allowed, which shows that a line is too long.
    most = (max_line_chars + 2) * _BYTES_PER_CHAR + len(_BOM)
    while raw := file.readline(most):
        start = offset
        offset += len(raw)
        is_whole = raw.endswith(b"\n") or len(raw) < most
        while not is_whole:  # the rest of an over-long line
            rest = file.readline(most)
            offset += len(rest)
            is_whole = rest.endswith(b"\n") or len(rest) < most
        if not number and raw.startswith(_BOM):
            raw = raw[len(_BOM) :]
            start += len(_BOM)
            if not raw:  # a file of nothing but the mark
                break
        number += 1
        text = _decode(raw, start, offset, f"{path}, line {number}")
        if "\0" in text:
            raise DataError(
                f"{path}, line {number}: a NUL character, which no text has; if the file is UTF-16, "
                "convert it with iconv -f UTF-16LE -t UTF-8"
            )
        if len(text) > max_line_chars:
            num_cut += 1
            text = text[:max_line_chars]
        lines.append(text)
    return Lines(lines.lines(), num_cut)


def _decode(
    raw: bytes,
    start: int,
    end: int,
    where: str,
) -> str:
    content = raw.removesuffix(b"\n").removesuffix(b"\r") if raw.endswith(b"\n") else raw
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        # The limit in bytes may fall inside a character; only there is an incomplete one no error.
        is_split_char = error.reason == "unexpected end of data" and start + len(raw) < end
        if is_split_char:
            return content[: error.start].decode()
        bad = content[error.start : error.end].hex(" ")
        is_utf16 = start == 0 and content.startswith(_UTF16_BOMS)
        convert = f"iconv -f {'UTF-16' if is_utf16 else 'LATIN1'} -t UTF-8"
        raise DataError(
            f"{where}: not UTF-8 at byte {start + error.start} of the text (bytes {bad}: {error.reason}); "
            f"convert the file, e.g. with {convert}"
        ) from error


@contextmanager
def looking_below(mirror: Path | None) -> Iterator[None]:
    """Look for input files first in a mirror of another machine's, such as an unpacked archive has.

    For a block alone: of two studies in one process only one may have a mirror, and both read one path.
    """
    token = _mirror.set(mirror)
    try:
        yield
    finally:
        _mirror.reset(token)


def expand(path: str) -> Path:
    """Make a path absolute: ``~`` is the home directory, relative paths start at the current one.

    A file or directory of the mirror takes the place of the one of its path.
    """
    where = Path(path).expanduser().absolute()
    mirror = _mirror.get()
    mirrored = where if mirror is None else mirror / below_root(where)
    return mirrored if mirrored.exists() else where


def below_root(path: Path) -> Path:
    """Return an absolute path relative to the root of its file system, as mirrors name it."""
    plain = Path(os.path.normpath(path))
    return plain.relative_to(plain.anchor)


@contextmanager
def noting_inputs() -> Iterator[dict[Path, Path]]:
    """Collect the files whose digests are asked for meanwhile: where they lie, by their absolute paths."""
    noted: dict[Path, Path] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


_mirror: ContextVar[Path | None] = ContextVar("mirror", default=None)
_noted: ContextVar[dict[Path, Path] | None] = ContextVar("noted inputs", default=None)
_digests: dict[tuple[str, int, int], str] = {}


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file, computed once per process while its size and modification time stay.

    Raises:
        DataError: The file is missing, no regular file, or cannot be read.
    """
    where = expand(path)
    if (noted := _noted.get()) is not None:
        noted[Path(path).expanduser().absolute()] = where
    refuse_special(where)
    try:
        stat = where.stat()
        key = (os.fspath(where), stat.st_size, stat.st_mtime_ns)
        if key not in _digests:
            with where.open("rb") as file:
                _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(unreadable(path, error)) from error
    return _digests[key]


def unreadable(
    path: str,
    error: OSError,
    kind: str = "file",
) -> str:
    """Explain in one line why a file cannot be read: path as written, place, reason, and what to do."""
    where = expand(path)
    reason = (error.strerror or str(error)).lower()
    neighbours = [path for path in where.parent.glob("*") if kind == "file" or path.is_dir()]
    siblings = sorted(path.name for path in neighbours)
    beside = f"; {where.parent} holds {', '.join(siblings[:5])}" if siblings else ""
    # The paths of a study are absolute by now.
    place, hint = "; relative paths in a study start at its file", did_you_mean(where.name, siblings)
    if str(where) != path:
        beside, place = f" ({where}){beside}", ""
    return f"{path}: {reason}{beside}. {hint}{' ' if hint else ''}Give a readable {kind}{place}"
