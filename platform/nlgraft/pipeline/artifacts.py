"""Where artifacts lie: the part of the store that differs between a directory and an object store."""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from pathlib import Path
from typing import Protocol

from nlgraft.errors import StoreError
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.integrity import find_damage, remember_verified, remove_tree
from nlgraft.pipeline.manifest import MANIFEST, Manifest
from nlgraft.pipeline.process import ProcessIdentity, is_dead, this_process

_NUM_TRIES = 3


class ArtifactDamaged(StoreError):
    """An artifact is there but its bytes are not what its manifest says.

    Args:
        fingerprint: Whose artifact it is.
        message: Where it lies and what is wrong with it.
    """

    def __init__(self, fingerprint: str, message: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ArtifactDamaged], tuple[str, str]]:
        return (ArtifactDamaged, (self.fingerprint, str(self)))


def artifact_key(name: str, fingerprint: str) -> str:
    """Key of an artifact below the store's root.

    Args:
        name: The stage's name.
        fingerprint: The stage's fingerprint.

    Returns:
        ``artifacts/<name>/<fingerprint>``.
    """
    return f"artifacts/{name}/{fingerprint}"


class Artifacts(Protocol):
    """What a place must do for artifacts.

    **Atomicity**: a published artifact is visible whole or not at all. **Concurrency**: two writers of one
    fingerprint are harmless; one of them wins.
    """

    def new_scratch(self, fingerprint: str) -> Path:
        """Make an empty local directory from which an artifact can be published."""
        ...

    def location(self) -> str:
        """Choose `Manifest.location` for an artifact about to be published."""
        ...

    def damage(self, manifest: Manifest) -> str | None:
        """Say what is wrong with an artifact as far as can be seen without copying it; None when nothing."""
        ...

    def fetch(self, manifest: Manifest) -> Path:
        """Give the local directory with an artifact's files, checksums compared."""
        ...

    def read_file(self, manifest: Manifest, name: str) -> bytes:
        """Read one file of an artifact."""
        ...

    def publish(self, manifest: Manifest, scratch: Path) -> Path:
        """Make an artifact visible in one step; the scratch directory is used up."""
        ...

    def discard(self, name: str, fingerprint: str) -> None:
        """Make an artifact invisible in one step, then remove it."""
        ...

    def checkpoints(self, fingerprint: str, *, is_writable: bool) -> Checkpoints:
        """Give the checkpoints of a stage."""
        ...

    def remove_abandoned_scratch(self) -> None:
        """Remove scratch directories of processes of this host that are gone."""
        ...


class Scratch:
    """Local directories that are written before they are published.

    Args:
        root: The directory that holds them; on the same file system as where artifacts are renamed to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def new(self, fingerprint: str) -> Path:
        """Make an empty directory.

        Args:
            fingerprint: For whom, so that people can tell.

        Returns:
            The directory; its name says which process made it.
        """
        process = this_process()
        name = f"{fingerprint[:16]},{process.pid},{process.started},{uuid.uuid4().hex[:8]},{process.host}"
        path = self.root / name
        path.mkdir(parents=True)
        return path

    def own(self, directory: Path, fingerprint: str) -> Path:
        """Bring a directory to where it can be renamed from.

        Args:
            directory: One that `new` made, or any other, which is copied.
            fingerprint: For whom.

        Returns:
            A directory below `root`.
        """
        if directory.parent == self.root:
            return directory
        path = self.new(fingerprint)
        shutil.copytree(directory, path, dirs_exist_ok=True)
        return path

    def remove_abandoned(self) -> None:
        """Remove directories of processes of this host that are gone."""
        here = this_process()
        for path in self.root.iterdir() if self.root.is_dir() else ():
            parts = path.name.split(",", maxsplit=4)
            if len(parts) != 5 or parts[4] != here.host or not parts[1].isdecimal():
                continue
            if is_dead(ProcessIdentity(here.host, here.namespace, int(parts[1]), parts[2])):
                remove_tree(path)


class LocalArtifacts:
    """Artifacts in a local directory, published by one rename.

    Args:
        root: The store's root.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scratch = Scratch(root / "tmp")

    def new_scratch(self, fingerprint: str) -> Path:
        """Make an empty directory from which an artifact can be published."""
        return self._scratch.new(fingerprint)

    def location(self) -> str:
        """Beside the manifest."""
        return ""

    def damage(self, manifest: Manifest) -> str | None:
        """Compare sizes and checksums; those that this process has compared before are taken as they were."""
        return find_damage(self._path(manifest), manifest.files)

    def fetch(self, manifest: Manifest) -> Path:
        """Give the artifact's own directory.

        Args:
            manifest: Its manifest.

        Returns:
            The directory; read only by agreement and by file mode.

        Raises:
            ArtifactDamaged: A file is missing or not what the manifest says.
        """
        damage = self.damage(manifest)
        if damage is not None:
            raise ArtifactDamaged(manifest.fingerprint, f"{self._path(manifest)}: {damage}")
        return self._path(manifest)

    def read_file(self, manifest: Manifest, name: str) -> bytes:
        """Read one file of an artifact."""
        return (self._path(manifest) / name).read_bytes()

    def publish(self, manifest: Manifest, scratch: Path) -> Path:
        """Make an artifact visible by renaming its directory.

        Args:
            manifest: Written into the directory first.
            scratch: The directory with its files; used up.

        Returns:
            The published directory: this one, or that of another writer who was quicker.

        Raises:
            StoreError: The place stays taken by a damaged artifact.
        """
        source = self._scratch.own(scratch, manifest.fingerprint)
        (source / MANIFEST).write_bytes(manifest.encode())
        for name in manifest.files:
            (source / name).chmod(0o444)
        target = self._path(manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_NUM_TRIES):
            try:
                source.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                for name, entry in manifest.files.items():
                    remember_verified(target / name, entry["sha256"])
                return target
            if self._is_whole(target):
                remove_tree(source)
                return target
            self.discard(manifest.name, manifest.fingerprint)
        raise StoreError(f"{target}: is taken by a damaged artifact that cannot be moved away")

    def discard(self, name: str, fingerprint: str) -> None:
        """Make an artifact invisible by renaming its directory, then remove it."""
        aside = self._scratch.new(fingerprint)
        with contextlib.suppress(FileNotFoundError):
            (self.root / artifact_key(name, fingerprint)).rename(aside / "damaged")
        remove_tree(aside)

    def checkpoints(self, fingerprint: str, *, is_writable: bool) -> Checkpoints:
        """Give the checkpoints of a stage."""
        return Checkpoints(self.root / "checkpoints" / fingerprint, is_writable=is_writable)

    def remove_abandoned_scratch(self) -> None:
        """Remove scratch directories of processes of this host that are gone."""
        self._scratch.remove_abandoned()

    def _is_whole(self, target: Path) -> bool:
        try:
            manifest = Manifest.decode((target / MANIFEST).read_bytes())
        except (OSError, StoreError):
            return False
        return find_damage(target, manifest.files) is None

    def _path(self, manifest: Manifest) -> Path:
        return self.root / artifact_key(manifest.name, manifest.fingerprint)
