"""Tags on user, code and host; unlike MLflow's fluent API, ``MlflowClient.create_run`` sets none."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from pathlib import Path

from nlgraft.pipeline.environment import git


def provenance_tags() -> dict[str, str]:
    """Return MLflow's system tags for user, source and git state, and ``nlgraft.host``.

    Git tags are left out if neither the code nor the working directory lies in a git work tree.
    """
    tags = {
        "mlflow.user": _user(),
        "mlflow.source.name": sys.argv[0] or "nlgraft",
        "mlflow.source.type": "JOB" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else "LOCAL",
        "nlgraft.host": socket.gethostname(),
    }
    for place in (Path(__file__).resolve().parents[1], Path.cwd()):
        if found := git_tags(place):
            return tags | found
    return tags


def git_tags(directory: Path) -> dict[str, str]:
    """Return ``mlflow.source.git.commit``, ``.branch`` (unless the head is detached) and ``.dirty``.

    Empty without git, outside a work tree and before the first commit.
    """
    commit = _git(directory, "rev-parse", "--verify", "HEAD")
    if not commit:
        return {}
    tags = {"mlflow.source.git.commit": commit}
    branch = _git(directory, "symbolic-ref", "--short", "--quiet", "HEAD")
    if branch:
        tags["mlflow.source.git.branch"] = branch
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    if changes is not None:
        tags["mlflow.source.git.dirty"] = "true" if changes else "false"
    return tags


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        return git(directory, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container user without a name
        return str(os.getuid())
