"""Artifacts as files: a folder that one writer fills, then a small manifest beside it that names the folder.

Two writers never mix their files, and an artifact without its manifest is not visible.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from nlgraft.basics.errors import StoreError
from nlgraft.basics.pacing import Pacer
from nlgraft.pipeline.integrity import ArtifactDamaged
from nlgraft.pipeline.leases import PlaceClock
from nlgraft.pipeline.manifest import MANIFEST, Manifest
from nlgraft.pipeline.object_files import Files

# A writer that has added no file for so long is taken to be dead.
_ABANDONED_AFTER_S = 3600.0
_NUM_TRIES = 3


def artifact_key(name: str, fingerprint: str) -> str:
    """Return the key of an artifact below the store's root."""
    return f"artifacts/{name}/{fingerprint}"


def manifest_key(name: str, fingerprint: str) -> str:
    """Return the key of an artifact's manifest below the store's root."""
    return f"{artifact_key(name, fingerprint)}/{MANIFEST}"


@dataclass(eq=False)
class Artifacts:
    """The artifacts of one place.

    **Atomicity**: an artifact is visible whole or not at all. **Concurrency**: two writers of one fingerprint
    are harmless; the first to write the manifest wins.
    """

    _files: Files
    _clock: PlaceClock

    def manifest(self, name: str, fingerprint: str) -> Manifest | None:
        """Read an artifact's manifest; None if there is no artifact.

        Raises:
            ArtifactDamaged: The manifest cannot be read or belongs to another artifact.
        """
        key = manifest_key(name, fingerprint)
        data = self._files.read(key)
        if data is None:
            return None
        try:
            manifest = Manifest.decode(data)
        except ArtifactDamaged as error:
            raise ArtifactDamaged(f"{artifact_key(name, fingerprint)}: {error}") from error
        if (manifest.name, manifest.fingerprint) != (name, fingerprint):
            raise ArtifactDamaged(f"{key}: belongs to {manifest.name} {manifest.fingerprint[:12]}")
        return manifest

    def damage(self, manifest: Manifest, *, is_afresh: bool = False) -> str | None:
        """Describe what is wrong with an artifact; see `Files.damage`."""
        return self._files.damage(_folder(manifest), manifest.files, is_afresh=is_afresh)

    def fetch(self, manifest: Manifest) -> Path:
        """Return a local directory with an artifact's files, checksums compared; read only.

        Raises:
            ArtifactDamaged: A file is missing or not what the manifest says.
        """
        return self._files.fetch(_folder(manifest), manifest.files)

    def read_file(self, manifest: Manifest, name: str) -> bytes:
        """Read one file of an artifact without fetching the others.

        Raises:
            ArtifactDamaged: The file is missing or not what the manifest says.
        """
        key = f"{_folder(manifest)}/{name}"
        data = self._files.read(key)
        if data is None:
            raise ArtifactDamaged(f"{self._files.name}: {key} is missing")
        if hashlib.sha256(data).hexdigest() != manifest.files[name].sha256:
            raise ArtifactDamaged(f"{self._files.name}: {key} is damaged")
        return data

    def publish(self, manifest: Manifest, directory: Path) -> Path:
        """Make an artifact visible in one step.

        Args:
            manifest: Names the folder that the files go to.
            directory: Its files; used up if the store's scratch made it, else copied.

        Returns:
            The local directory of this artifact, or of that of a writer who was quicker.

        Raises:
            StoreError: The place stays taken by a damaged artifact.
        """
        source = self._files.scratch.own(directory, manifest.fingerprint)
        # Read only, because a local store hands out this very directory, not a copy.
        for name in manifest.files:
            (source / name).chmod(0o444)
        folder, key = _folder(manifest), manifest_key(manifest.name, manifest.fingerprint)
        # All files before the manifest: only the manifest makes an artifact visible.
        path = self._files.put_directory(source, folder, manifest.files)
        # Another writer may publish, or a damaged artifact be discarded, between the look and the write.
        for _ in range(_NUM_TRIES):
            taken = self._files.read(key)
            other = self._intact(manifest) if taken is not None else None
            if other is not None:
                self._files.delete_tree(folder)
                return self.fetch(other)
            data = manifest.encode()
            if self._files.replace(key, taken, data):
                self._remove_abandoned(manifest)
                return path
        raise StoreError(f"{self._files.name}: {key} is taken by a damaged artifact that cannot be replaced")

    def discard(self, name: str, fingerprint: str) -> None:
        """Make an artifact invisible in one step, then remove it."""
        self._files.delete(manifest_key(name, fingerprint))
        self._files.delete_tree(artifact_key(name, fingerprint))

    def _intact(self, manifest: Manifest) -> Manifest | None:
        """The manifest of another writer's artifact of the same fingerprint, if that is whole."""
        try:
            other = self.manifest(manifest.name, manifest.fingerprint)
        except ArtifactDamaged:
            return None
        if other is not None and self.damage(other) is None:
            return other
        return None

    def _remove_abandoned(self, manifest: Manifest) -> None:
        """Delete files of this artifact that killed writers left."""
        key = artifact_key(manifest.name, manifest.fingerprint)
        for name in self._files.names(key):
            if name in (MANIFEST, manifest.location):
                continue
            stamps = [self._files.modified_at(path) for path in self._files.sizes(f"{key}/{name}")]
            newest = max((stamp for stamp in stamps if stamp is not None), default=None)
            # An empty folder may be that of a writer who has just begun.
            if newest is not None and self._clock.now() - newest > _ABANDONED_AFTER_S:
                self._files.delete_tree(f"{key}/{name}")


def _folder(manifest: Manifest) -> str:
    return f"{artifact_key(manifest.name, manifest.fingerprint)}/{manifest.location}"


# Some manifests of each stage name, to explain a miss and to estimate costs.


_LIST_SHARE = 0.02
"""Share of the time that may go into listing: a folder of 10,000 artifacts takes 30 ms."""


class KnownManifests:
    """The newest manifests by stage name (any, in an object store), each read once: artifacts never change.

    What other processes publish is seen at the next listing, what this one publishes at once.

    Args:
        files: The store's files.
        artifacts: The store's artifacts.
        limit: How many are kept of one name.
    """

    def __init__(
        self,
        files: Files,
        artifacts: Artifacts,
        limit: int,
    ) -> None:
        self._files = files
        self._artifacts = artifacts
        self._limit = limit
        self._known: dict[str, deque[Manifest]] = {}
        self._listings: dict[str, Pacer] = defaultdict(lambda: Pacer(0.0, _LIST_SHARE))

    def add(self, manifest: Manifest) -> None:
        """Remember an artifact that this process has published."""
        manifests = self._known.get(manifest.name)
        if manifests is not None:  # else the first listing finds it
            manifests.appendleft(manifest)

    def of(self, name: str) -> list[Manifest]:
        """Return manifests of a stage name, newest first on a local store."""
        if self._listings[name].is_due:
            with self._listings[name].turn():
                self._known[name] = self._listed(name)
        return list(self._known[name])

    def _listed(self, name: str) -> deque[Manifest]:
        by_fingerprint = {manifest.fingerprint: manifest for manifest in self._known.get(name, ())}
        listed: deque[Manifest] = deque(maxlen=self._limit)
        for fingerprint in self._files.names(f"artifacts/{name}")[: self._limit]:
            try:
                manifest = by_fingerprint.get(fingerprint) or self._artifacts.manifest(name, fingerprint)
            except ArtifactDamaged:
                continue
            if manifest is not None:  # else it is being published
                listed.append(manifest)
        return listed
