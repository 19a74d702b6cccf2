"""The identity of a pretrained checkpoint. Imports no torch, since fingerprints need it."""

from __future__ import annotations

from typing import Any

from nlgraft.text.files import expand, file_digest


def checkpoint_identity(checkpoint: str) -> dict[str, Any]:
    """Identify a checkpoint, for a stage's settings and for models that are saved without it.

    Returns:
        For a directory ``files``, the SHA-256 of every file, wherever the directory lies. For a hub name
        ``checkpoint``, the name: its content may change on the hub, whereas a directory pins it.

    Raises:
        DataError: A file of the directory cannot be read.
    """
    directory = expand(checkpoint)
    if not directory.is_dir():
        return {"checkpoint": checkpoint}
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {"files": {path.relative_to(directory).as_posix(): file_digest(str(path)) for path in files}}
