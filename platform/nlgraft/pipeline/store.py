"""The artifact store: immutable artifacts by fingerprint, checkpoints, leases and records in one place.

Layout below the root: ``artifacts/<stage name>/<fingerprint>/manifest.json`` and the folder that it names,
``checkpoints/<fingerprint>/<step>/``, ``leases/``, ``records/<kind>/<key>.json``, ``ledger/``,
``registrations/``, on a local store ``tmp/`` for what is being written, and `MARKER`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TypeVar, Unpack
from urllib.parse import unquote, urlparse, urlsplit, urlunsplit
from uuid import uuid4

from nlgraft.basics.errors import ContractError, PlaceError, StoreError
from nlgraft.pipeline.artifacts import Artifacts, KnownManifests, manifest_key
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.fence import Fence, Superseded, fenced
from nlgraft.pipeline.integrity import ArtifactDamaged, describe_files
from nlgraft.pipeline.leases import EXPIRY_S, Leases, PlaceClock
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.manifest import MANIFEST, Making, Manifest, describe_artifact, explain_miss
from nlgraft.pipeline.object_files import Files, ObjectFiles
from nlgraft.pipeline.record_store import Journal, Records
from nlgraft.pipeline.stage import Stage

__all__ = ["ArtifactDamaged", "ArtifactStore", "Decision", "Manifest", "StageCost", "Verdict"]

MARKER = "nlgraft-store.json"
# How many manifests of one stage name are read to explain a miss or to estimate a cost.
_NUM_COMPARED_LOCAL = 64
_NUM_COMPARED_REMOTE = 16
_Form = TypeVar("_Form")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True)
class StorePlace:
    """How another process opens the same store.

    Attributes:
        uri: The place, credentials included.
        fence: The lock under which it writes; None for one that needs none.
    """

    uri: str
    fence: Fence | None = None

    def open(self) -> ArtifactStore:
        """Open the store."""
        return ArtifactStore.open(self.uri, fence=self.fence)


class ArtifactStore:
    """Artifacts, checkpoints, leases and records at one place.

    **Atomicity**: an artifact is visible whole or not at all, and never changes. **Concurrency**: any number
    of processes on any number of hosts may use one place. **Failure**: a damaged artifact is detected by
    size and checksum before use.

    Args:
        uri: The place, credentials included.
        files: The files at the place.
        expiry_s: Seconds without a renewal after which a lease may be taken over.
        fence: The lock of a study under which everything is written; None for a process that has none.

    Attributes:
        place: How another process opens it.
        name: The place in messages, without credentials.
        is_local: True for a directory of this host (or mounted here).
        leases: Leases of stages and studies.
        records: JSON documents by kind and key.
    """

    def __init__(
        self,
        uri: str,
        files: Files,
        *,
        expiry_s: float = EXPIRY_S,
        fence: Fence | None = None,
    ) -> None:
        self._clock = clock = PlaceClock(files)
        self.place = StorePlace(uri, fence)
        self.name = files.name
        self.is_local = isinstance(files, LocalFiles)
        self._bare_files, self._expiry_s = files, expiry_s
        if fence is not None:
            files = fenced(files, fence)
        self.leases = Leases(files, clock, expiry_s=expiry_s)
        self.records = Records(files)
        self._files = files
        self._artifacts = Artifacts(files, clock)
        self._names: dict[str, str] = {}
        self._is_marked = False
        limit = _NUM_COMPARED_LOCAL if self.is_local else _NUM_COMPARED_REMOTE
        self._known = KnownManifests(files, self._artifacts, limit)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        *,
        cache: Path | None = None,
        expiry_s: float = EXPIRY_S,
        fence: Fence | None = None,
    ) -> ArtifactStore:
        """Open the store at a place; nothing is created until something is written.

        Args:
            uri: A directory, ``file:///...``, or the URI of an object store, e.g.
                ``s3://bucket/prefix?endpoint_override=host:9000``.
            cache: Where fetched artifacts of an object store are kept; default ``$NLGRAFT_CACHE`` or
                ``~/.cache/nlgraft``, a folder per store. Copies go once the disk is nine
                tenths full.
            expiry_s: Seconds without a renewal after which a lease may be taken over.
            fence: See `ArtifactStore`.

        Raises:
            StoreError: The URI is not understood.
            PlaceError: It is a file, a loop of symbolic links, or belongs to the kernel.
        """
        text = os.fspath(uri)
        if text.startswith("file://"):
            text = unquote(urlparse(text).path)
        if _SCHEME.match(text):
            return cls(text, ObjectFiles.from_uri(text, cache), expiry_s=expiry_s, fence=fence)
        root = Path(text).expanduser().absolute()
        _refuse_impossible(root)
        return cls(str(root), LocalFiles(root), expiry_s=expiry_s, fence=fence)

    @property
    def uri(self) -> str:
        """The place, credentials included; a local one as an absolute path."""
        return self.place.uri

    def behind(self, fence: Fence) -> ArtifactStore:
        """Return this store for a process that writes under the lock of a study."""
        return ArtifactStore(self.uri, self._bare_files, expiry_s=self._expiry_s, fence=fence)

    def is_writable(self) -> bool:
        """Read the lock that this store is written under, and tell if it is still held.

        Raises:
            StoreError: The store cannot be asked.
        """
        fence = self.place.fence
        return fence is None or fence.is_held(self._bare_files)

    def check_writable(self) -> None:
        """Refuse to go on if the store may not be written, before writing files beside it.

        Raises:
            Superseded: Another driver has taken the study over.
        """
        if not self.is_writable():
            raise Superseded

    @property
    def scratch_root(self) -> Path:
        """The local directory in which artifacts are written."""
        return self._bare_files.scratch.root

    def child_uri(self, name: str) -> str:
        """Return the place of a folder of this store, for others that write beside the artifacts."""
        if self.is_local:
            return str(Path(self.uri) / name)
        parts = urlsplit(self.uri)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))

    def now(self) -> float:
        """Return the Unix time by the clock of the place."""
        return self._clock.now()

    def compete(self, num_rivals: int) -> tuple[int, int]:
        """Let writers compete for a key; return how many create and how many replace it, one if it is sound.

        Raises:
            StoreError: The place cannot be written or read.
        """
        files, key = self._bare_files, f"leases/.rivals-{uuid4().hex}"
        rivals = [str(number).encode() for number in range(num_rivals)]
        try:
            with ThreadPoolExecutor(num_rivals) as pool:
                num_created = sum(pool.map(lambda rival: files.create(key, rival), rivals))
                winner = files.read(key) or b""
                num_replaced = sum(pool.map(lambda rival: files.replace(key, winner, b"by " + rival), rivals))
        finally:
            files.delete(key)
        return num_created, num_replaced

    def sizes(self, key: str) -> dict[str, int]:
        """List the bytes of every file below a key of the layout, such as ``artifacts`` or ``ledger``."""
        return self._files.sizes(key)

    def read_key(self, key: str) -> bytes:
        """Read a file of the layout as it is stored.

        Raises:
            StoreError: It is missing.
        """
        data = self._files.read(key)
        if data is None:
            raise StoreError(f"{self.name}: {key} is missing")
        return data

    def mark(self) -> None:
        """Write the marker, whose random id tells one store from another."""
        if not self._is_marked:
            self._files.create(MARKER, json.dumps({"id": uuid4().hex}).encode())
            self._is_marked = True

    def identity(self) -> str:
        """Return the id that the marker of this store holds; empty without a marker, or if it is damaged."""
        try:
            return str(json.loads(self._files.read(MARKER) or b"{}")["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""

    def is_marked(self) -> bool:
        """Tell if this is a store: by the marker, or by an artifact of a release that wrote none."""
        if self._files.existing([MARKER]):
            return True
        return any(self._known.of(name) for name in self._files.names("artifacts"))

    def remove(self, key: str) -> None:
        """Remove a document, or a folder of the layout; an artifact vanishes in one step."""
        if key.endswith(".json"):
            self._files.delete(key)
            return
        self._files.delete(f"{key}/{MANIFEST}")
        self._files.delete_tree(key)

    def has(self, stage: Stage) -> bool:
        """Return True if the artifact of a stage is published; its bytes are not looked at."""
        return bool(self._files.existing([manifest_key(stage.name, stage.fingerprint)]))

    def finished(self, fingerprints: Iterable[str]) -> set[str]:
        """Select the fingerprints whose artifacts are published."""
        unique = set(fingerprints)
        keys: dict[str, str] = {}
        for name in self._files.names("artifacts") if unique else ():
            for fingerprint in unique.intersection(self._files.names(f"artifacts/{name}")):
                keys[manifest_key(name, fingerprint)] = fingerprint
        return {keys[key] for key in self._files.existing(keys)}

    def manifest(self, stage: Stage | str) -> Manifest | None:
        """Read the manifest of a stage's or fingerprint's artifact; None if there is no artifact.

        Raises:
            ArtifactDamaged: The manifest cannot be read or belongs to another artifact.
        """
        fingerprint = _fingerprint(stage)
        for name in self._candidates(stage):
            manifest = self._artifacts.manifest(name, fingerprint)
            if manifest is not None:
                self._names[fingerprint] = name
                return manifest
        return None

    def verify(self, stage: Stage, *, is_afresh: bool = False) -> Verdict:
        """Decide whether a stage's artifact can be used, and if not, say why.

        A local store compares all checksums, once per process; an object store names and sizes, the checksums
        then being compared by `fetch`.

        Args:
            stage: The stage.
            is_afresh: Read every byte where it is stored, whatever was compared before.

        Returns:
            HIT, MISS (with what changed since the nearest stored artifact) or CORRUPT.
        """
        try:
            manifest = self.manifest(stage)
            damage = None if manifest is None else self._artifacts.damage(manifest, is_afresh=is_afresh)
        except ArtifactDamaged as error:
            return Verdict(Decision.CORRUPT, str(error))
        if manifest is None:
            return Verdict(Decision.MISS, explain_miss(stage, self._known.of(stage.name)))
        if damage is not None:
            return Verdict(Decision.CORRUPT, damage)
        return Verdict(Decision.HIT, f"stored {manifest.fingerprint[:12]}")

    def fetch(self, stage: Stage) -> Path:
        """Return a local directory with a stage's artifact, checksums compared; read only.

        Raises:
            StoreError: There is no artifact; as `ArtifactDamaged` if there is a damaged one.
        """
        return self._artifacts.fetch(self._manifest_of(stage))

    def read_file(self, stage: Stage | str, name: str) -> bytes | None:
        """Read one file of an artifact without fetching the others; None if it has no such file.

        Raises:
            StoreError: There is no artifact; as `ArtifactDamaged` if there is a damaged one.
        """
        manifest = self._manifest_of(stage)
        if name not in manifest.files:
            return None
        return self._artifacts.read_file(manifest, name)

    def scratch(self, name: str) -> AbstractContextManager[Path]:
        """Hold an empty local directory, which is removed after a context, or after a killed process."""
        return self._files.scratch.held(name)

    def new_scratch(self, stage: Stage) -> Path:
        """Make an empty local directory to write a stage's artifact into; `publish` uses it up."""
        self.mark()
        return self._files.scratch.new(stage.fingerprint)

    def publish(
        self,
        stage: Stage,
        directory: Path,
        **making: Unpack[Making],
    ) -> Path:
        """Make a stage's artifact visible in one step.

        Args:
            stage: The stage that made it.
            directory: Its files: used up if `new_scratch` made it, else copied.
            making: For the manifest.

        Returns:
            The local directory of the published artifact: this one, or that of a writer who was quicker.

        Raises:
            ContractError: The directory holds no files, a link or a pickle.
        """
        where = f"stage {stage.name}"
        try:
            files = describe_files(directory)
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error
        if not files:
            raise ContractError(f"{where}: wrote no file into context.directory")
        # Objects are copies, whatever they were linked to.
        linked = {name for name in files if self.is_local and (directory / name).stat().st_nlink > 1}
        manifest = describe_artifact(stage, files, making, linked)
        path = self._artifacts.publish(manifest, directory)
        self._names[stage.fingerprint] = stage.name
        self._known.add(manifest)
        return path

    def discard(self, stage: Stage) -> None:
        """Remove a stage's damaged artifact."""
        self._artifacts.discard(stage.name, stage.fingerprint)

    def checkpoints(self, stage: Stage, *, is_writable: bool = True) -> Checkpoints:
        """Open the checkpoints of a stage; on ranks above 0 they are not writable."""
        return self._checkpoints(stage.fingerprint, is_writable=is_writable)

    def journal(self, name: str, form: type[_Form]) -> Journal[_Form]:
        """Open an append-only list of documents."""
        return Journal(self._files, name, form)

    def durations(self) -> dict[str, StageCost]:
        """Return mean costs by stage name, over at most 64 artifacts each (16 in an object store)."""
        costs = {}
        by_name = {name: self._known.of(name) for name in self._files.names("artifacts")}
        by_fingerprint = {
            manifest.fingerprint: manifest for stored in by_name.values() for manifest in stored
        }
        for name, manifests in by_name.items():
            if manifests:
                seconds = fmean(manifest.duration_s for manifest in manifests)
                num_bytes = fmean(manifest.bytes for manifest in manifests)
                runs = tuple(
                    TimedRun(manifest, text_bytes(manifest, by_fingerprint)) for manifest in manifests
                )
                costs[name] = StageCost(seconds, num_bytes, runs)
        return costs

    def remove_abandoned(self) -> None:
        """Clean up after killed processes: scratch directories, leases, checkpoints of stored stages."""
        self._files.scratch.remove_abandoned()
        self.leases.remove_stale()
        # A process killed between publishing and clearing leaves checkpoints that nobody will read.
        for fingerprint in self.finished(self._files.names("checkpoints")):
            self._checkpoints(fingerprint).clear()

    def begun(self) -> set[str]:
        """Return the fingerprints of the stages that go on from a checkpoint."""
        names = self._files.names("checkpoints")
        return {key for key in names if self._checkpoints(key).newest_step() is not None}

    def _checkpoints(self, fingerprint: str, *, is_writable: bool = True) -> Checkpoints:
        return Checkpoints(self._files, f"checkpoints/{fingerprint}", is_writable=is_writable)

    def _candidates(self, stage: Stage | str) -> list[str]:
        """Stage names under which an artifact may lie."""
        if isinstance(stage, Stage):
            return [stage.name]
        stage_name = self._names.get(stage)
        if stage_name is not None:
            return [stage_name]
        return self._files.names("artifacts")

    def _manifest_of(self, stage: Stage | str) -> Manifest:
        manifest = self.manifest(stage)
        if manifest is None:
            label = "" if isinstance(stage, str) else f"{stage.name} "
            raise StoreError(f"stage {label}{_fingerprint(stage)[:12]}: has no artifact in {self.name}")
        return manifest


def _fingerprint(stage: Stage | str) -> str:
    return stage if isinstance(stage, str) else stage.fingerprint


def _refuse_impossible(root: Path) -> None:
    try:
        root.stat()  # raises for a loop of links; exists() does not, nor resolve() since Python 3.13
        is_file = not root.is_dir()
    except FileNotFoundError:
        is_file = False
    except OSError as error:
        raise PlaceError(
            f"storage {root}: cannot be followed ({error}); give a directory or a URI"
        ) from error
    if is_file:
        raise PlaceError(f"storage {root}: is a file; give a directory or a URI")
    place = root.resolve()
    if place.is_relative_to("/proc") or place.is_relative_to("/sys"):
        raise PlaceError(f"storage {root}: holds no files but the kernel's; give a directory or a URI")


# Cache decisions about stages, and their reasons.


class Decision(StrEnum):
    """How a stage got its artifact, or why it has none."""

    HIT = "hit"
    """Cache hit: the artifact is stored and intact."""
    MISS = "miss"
    """Cache miss: there is no artifact."""
    CORRUPT = "corrupt"
    """The stored artifact is damaged and is computed again."""
    RUN = "run"
    """The stage runs from its start."""
    RESUME = "resume"
    """The stage resumes from a checkpoint."""
    WAIT = "wait"
    """Another process computed the artifact while this one waited."""
    FAILED = "failed"
    """The stage ran and raised an error."""
    STOPPED = "stopped"
    """The stage ran and ended early on request."""


@dataclass(frozen=True)
class Verdict:
    """A decision and its reason in one line."""

    decision: Decision
    reason: str


@dataclass(frozen=True)
class StageCost:
    """Cost so far of the stages of one name.

    Attributes:
        mean_duration_s: Mean time to make an artifact.
        mean_bytes: Mean size of an artifact.
        runs: The artifacts in the means.
    """

    mean_duration_s: float
    mean_bytes: float
    runs: tuple[TimedRun, ...] = ()


@dataclass(frozen=True)
class TimedRun:
    """One run of a stage.

    Attributes:
        manifest: Its artifact.
        text_bytes: Size of the text below it; None where that is not known.
    """

    manifest: Manifest
    text_bytes: int | None


def text_bytes(manifest: Manifest, manifests: Mapping[str, Manifest]) -> int | None:
    """Add up the corpora below an artifact, of the split alone that it names; None where one is not known."""
    seen: dict[str, Manifest | None] = {manifest.fingerprint: manifest}
    waiting = [manifest]
    while waiting:
        for fingerprint in waiting.pop().inputs.values():
            if fingerprint not in seen:
                below = seen[fingerprint] = manifests.get(fingerprint)
                waiting += [below] if below is not None else []
    total = 0
    for below in seen.values():
        if below is None:
            return None
        if not below.inputs:
            folders = {name.rpartition("/")[0] for name in below.files if name.endswith("/corpus.json")}
            folders &= {manifest.config.get("split", name) for name in folders}
            for name, file in below.files.items():
                if name.rpartition("/")[0] in folders:
                    total += file.bytes
    return total
