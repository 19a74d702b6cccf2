"""What pins a pretrained checkpoint. No torch here: fingerprints are made with it."""

from __future__ import annotations

from typing import Any

from nlgraft.text.files import expand, file_digest


def checkpoint_identity(checkpoint: str) -> dict[str, Any]:
    """Say which checkpoint is meant, for a stage's config slice and for models saved without it.

    Args:
        checkpoint: Hub name or local directory.

    Returns:
        ``files``: the SHA-256 of every file of a directory, wherever it lies. Of a hub name ``checkpoint``,
        the name: what the hub holds under it may change, a directory pins it.

    Raises:
        DataError: A file of the directory cannot be read.
    """
    directory = expand(checkpoint)
    if not directory.is_dir():
        return {"checkpoint": checkpoint}
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {"files": {path.relative_to(directory).as_posix(): file_digest(str(path)) for path in files}}
