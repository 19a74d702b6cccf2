"""Names, sizes and checksums of a directory's files: recorded at publishing, checked before use."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError, HostFault, StoreError
from nlgraft.basics.wording import is_inside

_PICKLES = frozenset({".pkl", ".pickle", ".pt", ".pth", ".joblib"})

# Files whose checksum this process has already compared: (path, bytes, mtime in ns, sha256). A changed file
# has another size or time, so an artifact of 500 MB is hashed once per process instead of once per trial.
_verified: set[tuple[str, int, int, str]] = set()


_Document = TypeVar("_Document")


class ArtifactDamaged(StoreError):
    """Stored files are not what their manifest says."""


def _checked(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"the name {name!r} leads outside the folder")
    return name


# Whoever can write to the store can write a manifest, so every name in one is checked when it is read.
FileName = Annotated[str, AfterValidator(_checked)]


@dataclass(frozen=True)
class FileEntry:
    """Size and checksum of one file, as a manifest records them."""

    sha256: str
    bytes: int


def read_document(
    kind: TypeAdapter[_Document],
    data: bytes | None,
    name: str,
) -> _Document:
    """Read a manifest.

    Raises:
        ArtifactDamaged: It is missing, malformed, or a name in it leads outside its folder.
    """
    try:
        return kind.validate_json(data or b"")
    except ValidationError as error:
        raise ArtifactDamaged(f"its {name} cannot be read ({first_problem(error)})") from None


def first_problem(error: ValidationError) -> str:
    """Describe in one line the first problem that pydantic found."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def file_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Hash every file below a directory.

    Returns:
        Entries by relative POSIX path, sorted.

    Raises:
        ContractError: A file is a symbolic link or a pickle; the store holds neither.
    """
    entries: dict[str, FileEntry] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            raise ContractError(
                f"{name}: is a symbolic link; write a file, a store elsewhere cannot follow it"
            )
        if path.is_dir():
            continue
        if not is_inside(name):
            raise ContractError(f"{name!r}: a stored file has a name without backslashes")
        if path.suffix.lower() in _PICKLES:
            raise ContractError(
                f"{name}: the store holds no pickles; write safetensors, JSON, text or a SentencePiece model"
            )
        entries[name] = FileEntry(sha256=file_sha256(path), bytes=path.stat().st_size)
    return entries


def remember_verified(directory: Path, entries: Mapping[str, FileEntry]) -> None:
    """Record the checksums of files as compared, until a file's size or time changes."""
    for name, entry in entries.items():
        path = directory / name
        status = path.stat()
        _verified.add((os.fspath(path), status.st_size, status.st_mtime_ns, entry.sha256))


def find_damage(
    directory: Path,
    entries: Mapping[str, FileEntry],
    *,
    is_afresh: bool = False,
) -> str | None:
    """Describe the first file that differs from its entry; None if all are as recorded.

    Args:
        directory: Where the files lie.
        entries: What they should be.
        is_afresh: Read also the files that this process has compared before.
    """
    for name, entry in entries.items():
        path = directory / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        if status.st_size != entry.bytes:
            return f"{name} has {status.st_size} bytes, the manifest says {entry.bytes}"
        checked_state = (os.fspath(path), status.st_size, status.st_mtime_ns, entry.sha256)
        if checked_state in _verified and not is_afresh:
            continue
        # In a store that others write to, a link could lead to any file that this process may read.
        if not path.resolve().is_relative_to(directory.resolve()):
            return f"{name} is a symbolic link that leads outside"
        actual = file_sha256(path)
        if actual != entry.sha256:
            return f"{name} has checksum {actual[:12]}, the manifest says {entry.sha256[:12]}"
        remember_verified(directory, {name: entry})
    return None


def remove_tree(directory: Path) -> None:
    """Remove a directory, even if it is missing or another process removes it at the same time."""
    shutil.rmtree(directory, ignore_errors=True)


# Errors of the operating system on a store, reworded as one message that says what to do.


_ELSEWHERE = "or name another store (storage.path in the study, or --storage)"
_ADVICE = {
    errno.EACCES: f"Make it accessible to this user, {_ELSEWHERE}",
    errno.EPERM: f"Make it accessible to this user, {_ELSEWHERE}",
    errno.EROFS: f"Mount it writable, {_ELSEWHERE}",
    errno.ENOSPC: f"Free space there, {_ELSEWHERE}",
    errno.EDQUOT: f"Free space there, {_ELSEWHERE}",
}


@contextmanager
def store_errors(action: str) -> Iterator[None]:
    """Raise `StoreError` in place of OSError; also a decorator.

    Args:
        action: What fails, as in "cannot <action>".
    """
    try:
        yield
    except OSError as error:
        # Of a rename or a link, the second name is the target, which lies in the store.
        place = error.filename2 or error.filename
        problem = f"the store cannot {action}{f' {place}' if place else ''}: {error.strerror or error}"
        advice = _ADVICE.get(error.errno or 0)
        raise StoreError(f"{problem}. {advice}" if advice else problem) from error


def host_fault(error: BaseException, directory: Path) -> HostFault:
    """Word an error of the disk on which a host keeps what it fetches and writes."""
    number = getattr(error, "errno", None) or errno.ENOSPC
    return HostFault(
        f"host {socket.gethostname()} cannot use {directory}: {os.strerror(number)}. Free space there, or "
        "let NLGRAFT_CACHE name another directory"
    )
