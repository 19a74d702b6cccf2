"""The environment in which an artifact is made: recorded with it, never part of its fingerprint."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

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
    found = {}
    for what, (field, files) in places.items():
        lines = [line for file in files if file.is_file() for line in file.read_text("utf-8").splitlines()]
        named = Counter(line.partition(":")[2].strip() for line in lines if line.startswith(field))
        if named:
            found[what] = ", ".join(f"{number} x {name}" for name, number in named.items())
    return found


def _git_state() -> dict[str, Any] | None:
    package = Path(__file__).resolve().parents[1]
    try:
        # A copy installed inside another project's checkout is not that project's code.
        git(package, "ls-files", "--error-unmatch", "errors.py")
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
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
    )
    return done.stdout.strip()
