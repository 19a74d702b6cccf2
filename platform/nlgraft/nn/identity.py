"""What pins a pretrained checkpoint. No torch here: fingerprints are made with it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def checkpoint_identity(checkpoint: str) -> dict[str, str]:
    """Say which checkpoint is meant, for a stage's config slice and for models saved without it.

    Args:
        checkpoint: Hub name or local directory.

    Returns:
        ``sha256`` of a directory's files, names and bytes, wherever it lies. Of a hub name ``checkpoint``,
        the name: what the hub holds under it may change, a directory pins it.
    """
    directory = Path(checkpoint)
    if not directory.is_dir():
        return {"checkpoint": checkpoint}
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    stamps = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
    return {"sha256": _digest(str(directory), stamps)}


@lru_cache(maxsize=32)
def _digest(directory: str, stamps: tuple[tuple[str, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for name, _, size in stamps:
        path = Path(name)
        whole.update(f"{path.relative_to(directory).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
