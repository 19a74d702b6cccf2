"""The environment in which an artifact is made: recorded with it, never part of its fingerprint."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGES = ("nlgraft", "torch", "numpy", "safetensors", "sentencepiece", "sacrebleu", "transformers")
_GIT_TIMEOUT_S = 10


@cache
def environment() -> dict[str, Any]:
    """Describe the environment of this process.

    Returns:
        ``host``; ``versions`` of Python, the operating system and the packages that shape results; ``git``
        with ``commit`` and ``is_dirty`` if nlgraft runs from a checkout, else None.
    """
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"host": socket.gethostname(), "versions": versions, "git": _git_state()}


def _git_state() -> dict[str, Any] | None:
    package = Path(__file__).resolve().parents[1]
    try:
        # A copy installed inside another project's checkout is not that project's code.
        _git(package, "ls-files", "--error-unmatch", "errors.py")
        commit = _git(package, "rev-parse", "HEAD").strip()
        return {"commit": commit, "is_dirty": bool(_git(package, "status", "--porcelain").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
    )
    return done.stdout
