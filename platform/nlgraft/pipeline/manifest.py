"""The manifest of an artifact: its identity, provenance and the checksums of its files."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import socket
import subprocess
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from pydantic import TypeAdapter

from nlgraft.basics.wording import name_some
from nlgraft.pipeline.fingerprint import canonical_json, dotted
from nlgraft.pipeline.integrity import FileEntry, FileName, read_document
from nlgraft.pipeline.stage import Stage, Work

MANIFEST = "manifest.json"
SCHEMA = 1
_MAX_VALUE_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The store's description of one artifact.

    Attributes:
        name: The stage's name.
        fingerprint: The stage's fingerprint.
        version: The stage's version.
        run: The function that made it.
        config: The slice of config it read.
        inputs: Fingerprints of its inputs by name.
        seed: Its seed, None when it used none.
        files: Size and checksum by relative path.
        location: Folder beside the manifest that holds the files.
        reason: Why it was made.
        host: Where it was made.
        versions: Of Python and packages.
        num_threads: Most threads that it was made with; None if unknown.
        num_workers: Workers that made it; None if unknown.
        size: Work of the stage; None if unknown.
        git: Commit and dirty flag of the code; None without a checkout.
        started_at: Unix seconds.
        duration_s: How long it took.
        bytes: Sum over the files that it does not share with an input.
        schema: Version of this document.
    """

    name: str
    fingerprint: str
    version: int
    run: str
    config: dict[str, Any]
    inputs: dict[str, str]
    seed: int | None
    files: dict[FileName, FileEntry]
    location: FileName
    reason: str = ""
    host: str = ""
    versions: dict[str, str]
    git: dict[str, Any] | None = None
    num_threads: int | None = None
    num_workers: int | None = None
    size: Work | None = None
    started_at: float = 0.0
    duration_s: float = 0.0
    bytes: int = 0
    schema: int = SCHEMA

    @property
    def ended_at(self) -> float:
        """Unix seconds of its end."""
        return self.started_at + self.duration_s

    def encode(self) -> bytes:
        """Write the manifest as JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what `encode` wrote; keys of a later version are dropped.

        Raises:
            ArtifactDamaged: It is no manifest, or a name in it leads outside the artifact.
        """
        return read_document(_MANIFEST, data, MANIFEST)


_MANIFEST = TypeAdapter(Manifest)


class Making(TypedDict, total=False):
    """How an artifact was made; see `Manifest`."""

    started_at: float
    duration_s: float
    reason: str
    num_threads: int | None
    num_workers: int | None


def describe_artifact(
    stage: Stage,
    files: dict[str, FileEntry],
    making: Making,
    linked: Collection[str] = (),
) -> Manifest:
    """Make the manifest of an artifact about to be published, with a folder of its own.

    ``linked`` files are those of an input as well.
    """
    return Manifest(
        name=stage.name,
        fingerprint=stage.fingerprint,
        version=stage.version,
        run=stage.run,
        config=dict(stage.config),
        inputs={key: upstream.fingerprint for key, upstream in stage.inputs.items()},
        seed=stage.seed,
        files=files,
        location=uuid.uuid4().hex,
        size=stage.size,
        bytes=sum(entry.bytes for name, entry in files.items() if name not in linked),
        **making,
        **environment(),
    )


def explain_miss(stage: Stage, stored: Sequence[Manifest]) -> str:
    """Explain in one line why a stage has no artifact, by the nearest of those with its name and function.

    E.g. ``changed field train.peak_lr (0.001 -> 0.002) since 3f2a...``.
    """
    compared = {
        manifest.fingerprint: _changes(stage, manifest) for manifest in stored if manifest.run == stage.run
    }
    if not compared:
        return f"missing: the store has no artifact of stage {stage.name!r} of this kind"
    nearest, changes = min(compared.items(), key=lambda item: len(item[1]))
    if not changes:
        return "missing: no longer in the store"
    return f"{name_some(changes)} since {nearest[:12]}"


def _changes(stage: Stage, manifest: Manifest) -> list[str]:
    changes = []
    if stage.version != manifest.version:
        changes.append(f"new version {stage.version} (was {manifest.version})")
    # Most parts are equal, and the JSON of all settings takes many times as long as their text.
    parts = [
        name
        for name in manifest.config.keys() | stage.config.keys()
        if repr(manifest.config.get(name, ...)) != repr(stage.config.get(name, ...))
    ]
    old, new = (
        dict(dotted({name: config[name] for name in parts if name in config}))
        for config in (manifest.config, stage.config)
    )
    for path in sorted(old.keys() | new.keys()):
        before, after = (
            canonical_json(config[path]) if path in config else "absent" for config in (old, new)
        )
        if before != after:
            changes.append(f"changed field {path} ({_short(before)} -> {_short(after)})")
    for name in sorted(manifest.inputs.keys() | stage.inputs.keys()):
        upstream = stage.inputs.get(name)
        if upstream is None or name not in manifest.inputs:
            changes.append(f"{'dropped' if upstream is None else 'new'} input {name}")
        elif upstream.fingerprint != manifest.inputs[name]:
            changes.append(f"changed input {name}")
    if stage.seed != manifest.seed:
        changes.append(f"changed seed ({manifest.seed} -> {stage.seed})")
    return changes


def _short(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 3]}..."


# The environment in which an artifact is made: recorded with it, never part of its fingerprint.


_PACKAGES = (
    *("nlgraft", "torch", "numpy", "safetensors", "sentencepiece", "sacrebleu", "transformers", "tokenizers"),
    *("rouge-score", "nltk", "ctranslate2", "peft", "scipy", "ray", "optuna"),
)
_CPUS, _GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")
_GIT_TIMEOUT_S = 10


@cache
def environment() -> dict[str, Any]:
    """Describe the environment of this process.

    Returns:
        ``host``; ``versions`` of Python, the operating system and the packages that shape results, with the
        models of processor and GPUs where the system tells them; ``git`` with ``commit`` and ``is_dirty`` if
        nlgraft runs from a checkout, else None.
    """
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"host": socket.gethostname(), "versions": versions | _hardware(), "git": _git_state()}


def _hardware() -> dict[str, str]:
    """Name the models of processor and GPUs, as Linux and its NVIDIA driver do; empty elsewhere."""
    places = {"processor": ("model name", [_CPUS]), "gpu": ("Model", sorted(_GPUS.glob("*/information")))}
    models = {}
    for device, (field, files) in places.items():
        lines = [line for file in files if file.is_file() for line in file.read_text("utf-8").splitlines()]
        counts = Counter(line.partition(":")[2].strip() for line in lines if line.startswith(field))
        if counts:
            models[device] = ", ".join(f"{number} x {name}" for name, number in counts.items())
    return models


def _git_state() -> dict[str, Any] | None:
    here = Path(__file__).resolve()
    package = here.parents[1]
    try:
        # A copy installed inside another project's checkout is not that project's code.
        git(here.parent, "ls-files", "--error-unmatch", here.name)
        commit = git(package, "rev-parse", "HEAD")
        return {"commit": commit, "is_dirty": bool(git(package, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def git(directory: Path, *arguments: str) -> str:
    """Return what a git command prints, without the ends of lines around it.

    Raises:
        OSError: There is no git.
        subprocess.SubprocessError: It fails, or takes too long.
    """
    process = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
    )
    return process.stdout.strip()
