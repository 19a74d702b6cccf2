"""Artifacts and checkpoints on an object store, read through a local cache.

An artifact's files are uploaded into a folder of their own, the small manifest that names the folder is put
last: two writers never mix their files, and a half-uploaded artifact is not visible.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

from nlgraft.errors import StoreError
from nlgraft.pipeline import checkpoints as local
from nlgraft.pipeline.artifacts import ArtifactDamaged, Scratch, artifact_key
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.integrity import find_damage, remember_verified, remove_tree
from nlgraft.pipeline.manifest import MANIFEST, Manifest
from nlgraft.pipeline.remote import RemoteFiles

logger = logging.getLogger(__name__)

_FORGOTTEN_AFTER_S = 3600.0


class RemoteArtifacts:
    """Artifacts on an object store.

    Args:
        files: The place.
        cache: Local directory that keeps what was fetched.
    """

    def __init__(self, files: RemoteFiles, cache: Path) -> None:
        self.files = files
        self.cache = cache
        self._scratch = Scratch(cache / "tmp")

    def new_scratch(self, fingerprint: str) -> Path:
        """Make an empty local directory from which an artifact can be published."""
        return self._scratch.new(fingerprint)

    def location(self) -> str:
        """A folder that no other writer uses."""
        return uuid.uuid4().hex

    def damage(self, manifest: Manifest) -> str | None:
        """Compare names and sizes; checksums are compared when the files are fetched."""
        key = _files_key(manifest)
        sizes = self.files.sizes(key)
        for name, entry in manifest.files.items():
            size = sizes.get(f"{key}/{name}")
            if size is None:
                return f"{name} is missing"
            if size != entry["bytes"]:
                return f"{name} has {size} bytes, the manifest says {entry['bytes']}"
        return None

    def fetch(self, manifest: Manifest) -> Path:
        """Give the cached copy of an artifact, downloading it when there is none.

        Args:
            manifest: Its manifest.

        Returns:
            The local directory, checksums compared.

        Raises:
            ArtifactDamaged: What was downloaded is not what the manifest says.
        """
        target = self._cached(manifest)
        if target.is_dir() and find_damage(target, manifest.files) is None:
            return target
        scratch = self._scratch.new(manifest.fingerprint)
        try:
            self.files.download(_files_key(manifest), scratch, manifest.files)
            damage = find_damage(scratch, manifest.files)
            if damage is not None:
                key = artifact_key(manifest.name, manifest.fingerprint)
                raise ArtifactDamaged(manifest.fingerprint, f"{self.files.name}/{key}: {damage}")
            return self._keep(manifest, scratch)
        finally:
            remove_tree(scratch)

    def read_file(self, manifest: Manifest, name: str) -> bytes:
        """Read one file of an artifact, without fetching the others.

        Args:
            manifest: The artifact's manifest.
            name: Relative path of the file.

        Returns:
            Its bytes.

        Raises:
            ArtifactDamaged: The file is missing.
        """
        cached = self._cached(manifest)
        if find_damage(cached, {name: manifest.files[name]}) is None:
            return (cached / name).read_bytes()
        data = self.files.read(f"{_files_key(manifest)}/{name}")
        if data is None:
            raise ArtifactDamaged(manifest.fingerprint, f"{self.files.name}: {name} is missing")
        return data

    def publish(self, manifest: Manifest, scratch: Path) -> Path:
        """Upload an artifact, its manifest last.

        Args:
            manifest: Says in `location` which folder the files go to.
            scratch: Local directory with the files; used up.

        Returns:
            The local copy.
        """
        source = self._scratch.own(scratch, manifest.fingerprint)
        key = artifact_key(manifest.name, manifest.fingerprint)
        self.files.upload(source, f"{key}/{manifest.location}", manifest.files)
        other = self._published(manifest)
        if other is not None:
            self.files.delete_tree(f"{key}/{manifest.location}")
            remove_tree(source)
            return self.fetch(other)
        self.files.write(f"{key}/{MANIFEST}", manifest.encode())
        self._remove_forgotten(key, manifest.location)
        return self._keep(manifest, source)

    def discard(self, name: str, fingerprint: str) -> None:
        """Delete an artifact, its manifest first."""
        key = artifact_key(name, fingerprint)
        self.files.delete(f"{key}/{MANIFEST}")
        self.files.delete_tree(key)

    def checkpoints(self, fingerprint: str, *, is_writable: bool) -> Checkpoints:
        """Give the checkpoints of a stage."""
        cache = self.cache / "checkpoints" / fingerprint
        return RemoteCheckpoints(self.files, f"checkpoints/{fingerprint}", cache, is_writable=is_writable)

    def remove_abandoned_scratch(self) -> None:
        """Remove scratch directories of processes of this host that are gone."""
        self._scratch.remove_abandoned()

    def _cached(self, manifest: Manifest) -> Path:
        # By location: the artifact that replaces a damaged one is another directory.
        return self.cache / artifact_key(manifest.name, manifest.fingerprint) / manifest.location

    def _keep(self, manifest: Manifest, source: Path) -> Path:
        target = self._cached(manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                source.rename(target)
            except OSError:
                if find_damage(target, manifest.files) is None:
                    remove_tree(source)  # another process of this host was quicker
                    return target
                remove_tree(target)
                continue
            for name, entry in manifest.files.items():
                remember_verified(target / name, entry["sha256"])
            return target
        raise StoreError(f"{target}: the cached copy is damaged and cannot be replaced; remove it")

    def _published(self, manifest: Manifest) -> Manifest | None:
        data = self.files.read(f"{artifact_key(manifest.name, manifest.fingerprint)}/{MANIFEST}")
        try:
            other = Manifest.decode(data) if data is not None else None
        except StoreError:
            return None
        return other if other is not None and self.damage(other) is None else None

    def _remove_forgotten(self, key: str, location: str) -> None:
        """Delete what killed writers of this artifact left behind."""
        for name in self.files.names(key):
            if name in (MANIFEST, location):
                continue
            stamps = [self.files.modified_at(path) for path in self.files.sizes(f"{key}/{name}")]
            newest = max((stamp for stamp in stamps if stamp is not None), default=None)
            # None to be seen: another writer is only just beginning.
            if newest is not None and self.files.clock() - newest > _FORGOTTEN_AFTER_S:
                self.files.delete_tree(f"{key}/{name}")


class RemoteCheckpoints(Checkpoints):
    """Checkpoints of one stage on an object store: written locally, uploaded, their manifest last."""

    def __init__(self, files: RemoteFiles, key: str, cache: Path, *, is_writable: bool = True) -> None:
        super().__init__(cache, is_writable=is_writable)
        self._files = files
        self._key = key

    def latest(self) -> tuple[int, Path] | None:
        """Download the newest checkpoint that is whole.

        Returns:
            Its step and its local directory, or None when there is none.
        """
        for step in sorted(self._steps(), reverse=True):
            path = self.directory / str(step)
            data = self._files.read(f"{self._key}/{step}/{local.MANIFEST}") or b""
            if _text(path / local.MANIFEST) != data:
                remove_tree(path)
                self._download(step, data, path)
            damage = local.find_checkpoint_damage(path)
            if damage is None:
                return step, path
            logger.warning("checkpoint %s of %s is passed over: %s", step, self._key, damage)
        return None

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Write one checkpoint, upload it and let go of all but the newest two.

        Args:
            step: Optimiser steps done; a checkpoint of the same step is replaced.
            write: Writes the files into the directory it is given. Not called on ranks above 0.
        """
        if not self.is_writable:
            return
        scratch = local.write_checkpoint(self.directory, write)
        key = f"{self._key}/{step}"
        self._files.delete(f"{key}/{local.MANIFEST}")
        names = [path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file()]
        self._files.upload(scratch, key, [name for name in names if name != local.MANIFEST])
        self._files.write(f"{key}/{local.MANIFEST}", (scratch / local.MANIFEST).read_bytes())
        remove_tree(self.directory / str(step))
        scratch.rename(self.directory / str(step))
        for old in sorted(self._steps(), reverse=True)[local.NUM_KEPT :]:
            self._files.delete(f"{self._key}/{old}/{local.MANIFEST}")
            self._files.delete_tree(f"{self._key}/{old}")
            remove_tree(self.directory / str(old))

    def clear(self) -> None:
        """Remove every checkpoint of the stage, here and there."""
        if self.is_writable:
            self._files.delete_tree(self._key)
            remove_tree(self.directory)

    def _steps(self) -> list[int]:
        return [int(name) for name in self._files.names(self._key) if name.isdecimal()]

    def _download(self, step: int, data: bytes, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        try:
            names = list(json.loads(data)["files"])
        except (ValueError, KeyError, TypeError):
            return  # its manifest never arrived: not whole
        self._files.download(f"{self._key}/{step}", path, names)
        (path / local.MANIFEST).write_bytes(data)


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _files_key(manifest: Manifest) -> str:
    return f"{artifact_key(manifest.name, manifest.fingerprint)}/{manifest.location}"
