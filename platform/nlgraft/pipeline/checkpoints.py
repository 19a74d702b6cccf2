"""Training state that outlives a crash: the newest two checkpoints of a stage.

**Atomicity**: a checkpoint is visible whole or not at all. A process killed while it writes one leaves the
previous one in force. **Ownership**: only rank 0 writes; on other ranks `Checkpoints.save` does nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

from nlgraft.pipeline.integrity import describe_files, find_damage, remove_tree

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint.json"
NUM_KEPT = 2


class Checkpoints:
    """Checkpoints of one stage in a local directory, one folder a step.

    Args:
        directory: Where they lie; made when the first one is saved.
        is_writable: False on ranks above 0.
    """

    def __init__(self, directory: Path, *, is_writable: bool = True) -> None:
        self.directory = directory
        self.is_writable = is_writable

    def latest(self) -> tuple[int, Path] | None:
        """Find the newest checkpoint that is whole.

        Returns:
            Its step and its directory, or None when there is none. A damaged one is passed over with a
            warning.
        """
        for step in sorted(self._steps(), reverse=True):
            path = self.directory / str(step)
            damage = find_checkpoint_damage(path)
            if damage is None:
                return step, path
            logger.warning("checkpoint %s is passed over: %s", path, damage)
        return None

    def newest_step(self) -> int | None:
        """Look up the newest step that was saved, without reading it.

        Returns:
            The step, None when there is none.
        """
        return max(self._steps(), default=None)

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Write one checkpoint and let go of all but the newest two.

        Args:
            step: Optimiser steps done; a checkpoint of the same step is replaced.
            write: Writes the files into the directory it is given. Not called on ranks above 0.
        """
        if not self.is_writable:
            return
        scratch = write_checkpoint(self.directory, write)
        target = self.directory / str(step)
        if target.exists():
            target.rename(self.directory / f".old-{uuid.uuid4().hex}")
        scratch.rename(target)
        kept = {str(kept_step) for kept_step in sorted(self._steps(), reverse=True)[:NUM_KEPT]}
        for path in self.directory.iterdir():
            if path.name not in kept:
                remove_tree(path)

    def clear(self) -> None:
        """Remove every checkpoint of the stage."""
        if self.is_writable:
            remove_tree(self.directory)

    def _steps(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return [int(path.name) for path in self.directory.iterdir() if path.name.isdecimal()]


def write_checkpoint(directory: Path, write: Callable[[Path], None]) -> Path:
    """Write a checkpoint's files and their checksums under a name that nobody reads.

    Args:
        directory: Where the scratch directory is made.
        write: Writes the files.

    Returns:
        The scratch directory, ready to be renamed or uploaded.
    """
    scratch = directory / f".tmp-{uuid.uuid4().hex}"
    scratch.mkdir(parents=True)
    try:
        write(scratch)
        files = describe_files(scratch)
        (scratch / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
    except BaseException:
        remove_tree(scratch)
        raise
    return scratch


def find_checkpoint_damage(path: Path) -> str | None:
    """Compare a checkpoint with its manifest.

    Args:
        path: The checkpoint's directory.

    Returns:
        What is wrong, in one line; None when it is whole.
    """
    try:
        files = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    return find_damage(path, files)
