"""Checksums of a directory's files: written at publishing, checked before use."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from nlgraft.errors import ContractError

_PICKLES = frozenset({".pkl", ".pickle", ".pt", ".pth", ".joblib"})

# Files whose checksum this process has already compared: (path, bytes, mtime in ns, sha256). A file that
# changes changes its size or time, so an artifact of 500 MB is hashed once a process, not once a trial.
_verified: set[tuple[str, int, int, str]] = set()


class FileEntry(TypedDict):
    """What a manifest says of one file."""

    sha256: str
    bytes: int


def file_sha256(path: Path) -> str:
    """Digest a file's bytes.

    Args:
        path: The file.

    Returns:
        64 hexadecimal digits.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe_files(directory: Path, *, ignore: frozenset[str] = frozenset()) -> dict[str, FileEntry]:
    """Hash every file below a directory.

    Args:
        directory: What to describe.
        ignore: Relative paths to leave out.

    Returns:
        Size and checksum by relative POSIX path, sorted.

    Raises:
        ContractError: A symbolic link, or a file type that is a pickle: neither may be stored.
    """
    entries: dict[str, FileEntry] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            raise ContractError(
                f"{name}: is a symbolic link; write a file, a store elsewhere cannot follow it"
            )
        if path.is_dir() or name in ignore:
            continue
        if path.suffix.lower() in _PICKLES:
            raise ContractError(
                f"{name}: the store holds no pickles; write safetensors, JSON, text or a SentencePiece model"
            )
        entries[name] = FileEntry(sha256=file_sha256(path), bytes=path.stat().st_size)
        remember_verified(path, entries[name]["sha256"])
    return entries


def remember_verified(path: Path, sha256: str) -> None:
    """Take a file's checksum as compared, as long as its size and time stay.

    Args:
        path: The file.
        sha256: Its digest.
    """
    status = path.stat()
    _verified.add((os.fspath(path), status.st_size, status.st_mtime_ns, sha256))


def find_damage(directory: Path, files: Mapping[str, FileEntry]) -> str | None:
    """Compare a directory with what its manifest says.

    Args:
        directory: Where the files lie.
        files: What the manifest says of them.

    Returns:
        What is wrong with the first bad file, in one line; None when all is well.
    """
    for name, entry in files.items():
        path = directory / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        if status.st_size != entry["bytes"]:
            return f"{name} has {status.st_size} bytes, the manifest says {entry['bytes']}"
        if (os.fspath(path), status.st_size, status.st_mtime_ns, entry["sha256"]) in _verified:
            continue
        actual = file_sha256(path)
        if actual != entry["sha256"]:
            return f"{name} has checksum {actual[:12]}, the manifest says {entry['sha256'][:12]}"
        remember_verified(path, entry["sha256"])
    return None


def remove_tree(directory: Path) -> None:
    """Remove a directory, whether or not it exists or others remove it at the same time.

    Args:
        directory: What to remove.
    """
    shutil.rmtree(directory, ignore_errors=True)
