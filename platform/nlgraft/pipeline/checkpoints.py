"""Training state that outlives a crash: the newest two checkpoints of a stage.

**Atomicity**: a checkpoint is visible whole or not at all, its manifest being written last. A process killed
while it writes one leaves the previous one in force. **Ownership**: only rank 0 writes; on other ranks
`Checkpoints.save` does nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from nlgraft.pipeline.integrity import (
    ArtifactDamaged,
    FileEntry,
    FileName,
    describe_files,
    read_document,
)
from nlgraft.pipeline.object_files import Files

logger = logging.getLogger(__name__)

MANIFEST = "checkpoint.json"
NUM_KEPT = 2


@dataclass(frozen=True)
class _CheckpointManifest:
    """The files of a checkpoint and the folder that holds them."""

    files: dict[FileName, FileEntry]
    location: FileName


_MANIFEST = TypeAdapter(_CheckpointManifest)


@dataclass(eq=False)
class Checkpoints:
    """Checkpoints of one stage, one folder per step.

    Args:
        files: The store's files.
        key: Folder of the stage's checkpoints below the store's root.
        is_writable: False on ranks above 0.
    """

    _files: Files
    _key: str
    is_writable: bool = True

    def latest(self) -> tuple[int, Path] | None:
        """Return step and local directory of the newest checkpoint that is whole, None if there is none.

        A damaged one is skipped with a warning.
        """
        for step in self._steps():
            folder = f"{self._key}/{step}"
            try:
                manifest = read_document(_MANIFEST, self._files.read(f"{folder}/{MANIFEST}"), MANIFEST)
                return step, self._files.fetch(f"{folder}/{manifest.location}", manifest.files)
            except ArtifactDamaged as damaged:
                logger.warning("checkpoint %s is skipped: %s", folder, damaged)
        return None

    def newest_step(self) -> int | None:
        """Return the newest step that was saved whole, None if there is none; it is not read."""
        steps = {f"{self._key}/{step}/{MANIFEST}": step for step in self._steps()}
        stored = self._files.existing([*steps])
        return max((steps[key] for key in stored), default=None)

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Write one checkpoint and remove all but the newest two.

        Args:
            step: Optimiser steps done; a checkpoint of the same step is replaced.
            write: Writes the files into the directory it is given. Not called on ranks above 0.
        """
        if not self.is_writable:
            return
        # A folder for each attempt: what a killed process left of the same step is never mixed in.
        folder, location = f"{self._key}/{step}", uuid.uuid4().hex
        with self._files.scratch.held(self._key.rpartition("/")[2]) as scratch:
            write(scratch)
            entries = describe_files(scratch)
            self._files.put_directory(scratch, f"{folder}/{location}", entries)
        # The manifest last, since it alone makes the checkpoint visible.
        manifest = _CheckpointManifest(entries, location)
        self._files.write(f"{folder}/{MANIFEST}", _MANIFEST.dump_json(manifest))
        for name in self._files.names(folder):
            if name not in (MANIFEST, location):
                self._files.delete_tree(f"{folder}/{name}")
        # The manifest goes first, so that a checkpoint half deleted is not taken for a whole one.
        for old in self._steps()[NUM_KEPT:]:
            self._files.delete(f"{self._key}/{old}/{MANIFEST}")
            self._files.delete_tree(f"{self._key}/{old}")

    def clear(self) -> None:
        """Remove every checkpoint of the stage."""
        if self.is_writable:
            self._files.delete_tree(self._key)

    def _steps(self) -> list[int]:
        names = self._files.names(self._key)
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)
