"""The artifact store: immutable artifacts by fingerprint, checkpoints, leases and records in one place.

Layout below the root: ``artifacts/<stage name>/<fingerprint>/``, ``checkpoints/<fingerprint>/<step>/``,
``leases/``, ``records/<kind>/<key>.json`` and, on a local store, ``tmp/`` for what is being written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from nlgraft.errors import ContractError, StoreError
from nlgraft.pipeline.artifacts import ArtifactDamaged, Artifacts, LocalArtifacts, artifact_key
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.decision import Decision, StageCost, Verdict
from nlgraft.pipeline.files import Files, LocalFiles
from nlgraft.pipeline.integrity import describe_files
from nlgraft.pipeline.leases import EXPIRY_S, Lease, Leases
from nlgraft.pipeline.manifest import MANIFEST, Manifest, describe_artifact, explain_miss
from nlgraft.pipeline.record_store import Records
from nlgraft.pipeline.stage import Stage

__all__ = ["ArtifactDamaged", "ArtifactStore", "Decision", "Manifest", "StageCost", "Verdict"]

# How many manifests of one stage name are read to explain a miss or to estimate a cost.
_NUM_COMPARED_LOCAL = 64
_NUM_COMPARED_REMOTE = 16
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class ArtifactStore:
    """Artifacts, checkpoints, leases and records at one place.

    **Atomicity**: an artifact is visible whole or not at all, and never changes. **Concurrency**: any number
    of processes on any number of hosts may use one place. **Failure**: a damaged artifact is detected by
    size and checksum before use.

    Args:
        uri: What it was opened by; a local one as an absolute path.
        files: The place.
        artifacts: How artifacts lie there.
        expiry_s: Silence after which a lease may be taken over.

    Attributes:
        is_local: Whether it is a directory of this host (or mounted here).
        leases: Who computes what.
        records: Small documents.
    """

    def __init__(self, uri: str, files: Files, artifacts: Artifacts, *, expiry_s: float = EXPIRY_S) -> None:
        self.uri = uri
        self.is_local = isinstance(files, LocalFiles)
        self.leases = Leases(files, expiry_s=expiry_s)
        self.records = Records(files)
        self._files = files
        self._artifacts = artifacts
        self._names: dict[str, str] = {}
        self._manifests: dict[str, Manifest] = {}

    @classmethod
    def open(cls, uri: str | Path, *, cache: Path | None = None, expiry_s: float = EXPIRY_S) -> ArtifactStore:
        """Open the store at a place; nothing is created until something is written.

        Args:
            uri: A directory, ``file:///...`` or a URI that pyarrow knows, e.g.
                ``s3://bucket/prefix?endpoint_override=host:9000``.
            cache: Where a remote store keeps what it fetched; default ``$NLGRAFT_CACHE`` or
                ``~/.cache/nlgraft``, a folder per store.
            expiry_s: Silence after which a lease may be taken over.

        Returns:
            The store.

        Raises:
            StoreError: The URI is not understood, or is a file.
        """
        text = os.fspath(uri)
        if text.startswith("file://"):
            text = unquote(urlparse(text).path)
        if not _SCHEME.match(text):
            root = Path(text).expanduser().absolute()
            if root.exists() and not root.is_dir():
                raise StoreError(f"storage {root}: is a file; give a directory or a URI")
            return cls(str(root), LocalFiles(root), LocalArtifacts(root), expiry_s=expiry_s)
        # Only a remote store costs the time to import pyarrow.
        from nlgraft.pipeline.remote import RemoteFiles, without_secrets
        from nlgraft.pipeline.remote_artifacts import RemoteArtifacts

        if cache is None:
            base = Path(os.environ.get("NLGRAFT_CACHE", "~/.cache/nlgraft")).expanduser()
            cache = base / hashlib.sha256(without_secrets(text).encode()).hexdigest()[:16]
        files = RemoteFiles.from_uri(text)
        return cls(text, files, RemoteArtifacts(files, cache), expiry_s=expiry_s)

    def has(self, stage: Stage | str) -> bool:
        """Tell whether an artifact is published; its bytes are not looked at.

        Args:
            stage: A stage or its fingerprint.

        Returns:
            True when its manifest exists.
        """
        fingerprint = stage if isinstance(stage, str) else stage.fingerprint
        keys = [f"{artifact_key(name, fingerprint)}/{MANIFEST}" for name in self._candidates(stage)]
        return bool(self._files.existing(keys))

    def finished(self, fingerprints: Iterable[str]) -> set[str]:
        """Find out which artifacts are published, for many at once.

        Args:
            fingerprints: Of any stages.

        Returns:
            Those whose manifest exists.
        """
        wanted = set(fingerprints)
        keys: dict[str, str] = {}
        for name in self._files.names("artifacts") if wanted else ():
            for fingerprint in wanted.intersection(self._files.names(f"artifacts/{name}")):
                keys[f"{artifact_key(name, fingerprint)}/{MANIFEST}"] = fingerprint
        return {keys[key] for key in self._files.existing(keys)}

    def manifest(self, stage: Stage | str) -> Manifest | None:
        """Read an artifact's manifest.

        Args:
            stage: A stage or its fingerprint.

        Returns:
            The manifest, None when there is no artifact.

        Raises:
            ArtifactDamaged: The manifest cannot be read or belongs to another artifact.
        """
        fingerprint = stage if isinstance(stage, str) else stage.fingerprint
        for name in self._candidates(stage):
            key = f"{artifact_key(name, fingerprint)}/{MANIFEST}"
            data = self._files.read(key)
            if data is None:
                continue
            try:
                manifest = Manifest.decode(data)
            except StoreError as error:
                raise ArtifactDamaged(fingerprint, f"{artifact_key(name, fingerprint)}: {error}") from error
            if (manifest.name, manifest.fingerprint) != (name, fingerprint):
                raise ArtifactDamaged(
                    fingerprint, f"{key}: belongs to {manifest.name} {manifest.fingerprint[:12]}"
                )
            self._names[fingerprint] = name
            return manifest
        return None

    def verify(self, stage: Stage) -> Verdict:
        """Find out whether a stage's artifact can be used, and if not, why not.

        On a local store all checksums are compared, once a process; on a remote one names and sizes, the
        checksums then being compared by `fetch`.

        Args:
            stage: The stage.

        Returns:
            HIT, MISS (with what changed since the nearest stored artifact) or CORRUPT.
        """
        try:
            manifest = self.manifest(stage)
            damage = None if manifest is None else self._artifacts.damage(manifest)
        except ArtifactDamaged as error:
            return Verdict(Decision.CORRUPT, str(error))
        if manifest is None:
            return Verdict(Decision.MISS, explain_miss(stage, self._stored(stage.name)))
        if damage is not None:
            return Verdict(Decision.CORRUPT, damage)
        return Verdict(Decision.HIT, f"stored {manifest.fingerprint[:12]}")

    def fetch(self, stage: Stage) -> Path:
        """Give a local directory with a stage's artifact, checksums compared.

        Args:
            stage: The stage.

        Returns:
            The directory; read only.

        Raises:
            StoreError: There is no artifact; as `ArtifactDamaged` when there is a damaged one.
        """
        return self._artifacts.fetch(self._manifest_of(stage))

    def read_file(self, stage: Stage, name: str) -> bytes | None:
        """Read one file of a stage's artifact without fetching the others.

        Args:
            stage: The stage.
            name: Relative path of the file.

        Returns:
            Its bytes; None when the artifact has no such file.

        Raises:
            StoreError: There is no artifact; as `ArtifactDamaged` when there is a damaged one.
        """
        manifest = self._manifest_of(stage)
        if name not in manifest.files:
            return None
        data = self._artifacts.read_file(manifest, name)
        if hashlib.sha256(data).hexdigest() != manifest.files[name]["sha256"]:
            raise ArtifactDamaged(
                stage.fingerprint, f"{stage.name} {stage.fingerprint[:12]}: {name} is damaged"
            )
        return data

    def new_scratch(self, stage: Stage) -> Path:
        """Make an empty local directory to write a stage's artifact into.

        Args:
            stage: The stage.

        Returns:
            The directory; `publish` uses it up.
        """
        return self._artifacts.new_scratch(stage.fingerprint)

    def publish(
        self,
        stage: Stage,
        directory: Path,
        *,
        started_at: float = 0.0,
        duration_s: float = 0.0,
        reason: str = "",
    ) -> Path:
        """Make a stage's artifact visible in one step.

        Args:
            stage: Whose artifact it is.
            directory: Its files: used up when `new_scratch` made it, else copied.
            started_at: Unix seconds, for the manifest.
            duration_s: For the manifest.
            reason: Why it was made, for the manifest.

        Returns:
            The local directory of the published artifact: this one, or that of a writer who was quicker.

        Raises:
            ContractError: The directory holds no files, a link, a pickle or a ``manifest.json``.
        """
        where = f"stage {stage.name}"
        if (directory / MANIFEST).exists():
            raise ContractError(f"{where}: wrote {MANIFEST}, a name that the store keeps for itself")
        try:
            files = describe_files(directory)
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error
        if not files:
            raise ContractError(f"{where}: wrote no file into context.directory")
        manifest = describe_artifact(
            stage,
            files,
            started_at=started_at,
            duration_s=duration_s,
            reason=reason,
            location=self._artifacts.location(),
        )
        path = self._artifacts.publish(manifest, directory)
        self._names[stage.fingerprint] = stage.name
        return path

    def discard(self, stage: Stage) -> None:
        """Remove a stage's artifact, for one that is damaged.

        Args:
            stage: The stage.
        """
        self._artifacts.discard(stage.name, stage.fingerprint)

    def checkpoints(self, stage: Stage, *, is_writable: bool = True) -> Checkpoints:
        """Give the checkpoints of a stage.

        Args:
            stage: The stage.
            is_writable: False on ranks above 0, where saving and clearing do nothing.

        Returns:
            Its checkpoints.
        """
        return self._artifacts.checkpoints(stage.fingerprint, is_writable=is_writable)

    def lock_study(self, key: str, owner: str = "") -> Lease:
        """Lock a study for one driver.

        Args:
            key: The study's fingerprint or name.
            owner: Who asks, for the messages others see.

        Returns:
            A context manager that unlocks.

        Raises:
            StudyLockedError: A live driver holds it.
        """
        return self.leases.lock_study(key, owner)

    def read_record(self, kind: str, key: str) -> dict[str, Any] | None:
        """Read a record; see `Records.read`."""
        return self.records.read(kind, key)

    def write_record(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Write a record; see `Records.write`."""
        self.records.write(kind, key, document)

    def list_records(self, kind: str, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Read all records of a kind; see `Records.list`."""
        return self.records.list(kind, prefix)

    def durations(self) -> dict[str, StageCost]:
        """Say what stages have cost so far, for estimates.

        Returns:
            Means by stage name over at most 64 artifacts each (16 on a remote store).
        """
        costs = {}
        for name in self._files.names("artifacts"):
            stored = self._stored(name)
            if stored:
                seconds = sum(manifest.duration_s for manifest in stored) / len(stored)
                size = sum(manifest.bytes for manifest in stored) / len(stored)
                costs[name] = StageCost(seconds, size, len(stored))
        return costs

    def total_bytes(self) -> int:
        """Sum the bytes of everything in the store."""
        return self._files.total_bytes("")

    def remove_abandoned(self) -> None:
        """Clean up after killed processes: scratch directories, leases, checkpoints of stored stages."""
        self._artifacts.remove_abandoned_scratch()
        self.leases.remove_stale()
        for fingerprint in self.finished(self._files.names("checkpoints")):
            self._artifacts.checkpoints(fingerprint, is_writable=True).clear()

    def _candidates(self, stage: Stage | str) -> list[str]:
        """Stage names under which an artifact may lie."""
        if isinstance(stage, Stage):
            return [stage.name]
        known = self._names.get(stage)
        return [known] if known is not None else self._files.names("artifacts")

    def _manifest_of(self, stage: Stage) -> Manifest:
        manifest = self.manifest(stage)
        if manifest is None:
            raise StoreError(f"stage {stage.name} {stage.fingerprint[:12]}: has no artifact in {self.uri}")
        return manifest

    def _stored(self, name: str) -> list[Manifest]:
        """Some manifests of a stage name, each read once a process: an artifact never changes."""
        limit = _NUM_COMPARED_LOCAL if self.is_local else _NUM_COMPARED_REMOTE
        stored = []
        for fingerprint in self._files.names(f"artifacts/{name}")[:limit]:
            if fingerprint not in self._manifests:
                data = self._files.read(f"{artifact_key(name, fingerprint)}/{MANIFEST}")
                try:
                    self._manifests[fingerprint] = Manifest.decode(data or b"")
                except StoreError:
                    continue  # being uploaded, or damaged
            stored.append(self._manifests[fingerprint])
        return stored
