"""``nlgraft submit``: `ray job submit` with this repository's runtime environment."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nlgraft.errors import NlgraftError
from nlgraft.execution.cluster import use_token_if_present
from nlgraft.execution.job_package import JobPackage
from nlgraft.pipeline.credentials import without_credentials

RUNTIME_ENV_FILE = "runtime_env.yaml"


def submit_run(
    study_file: str,
    overrides: Sequence[str],
    address: str | None,
    options: Sequence[str] = (),
    tell: Callable[[str], object] = print,
    store: str | None = None,
) -> str:
    """Submit ``nlgraft run`` of a study to a Ray cluster's job server and return the job id.

    The working directory is sent, but for what `JobPackage` leaves out.

    Args:
        study_file: The study, by its path below the working directory.
        address: The job server, e.g. ``http://HEAD:8265``; None uses ``RAY_API_SERVER_ADDRESS``.
        options: Further options of ``nlgraft run``.
        tell: Receives, before anything is sent, what is sent.
        store: The study's artifact store, which stays here if it lies in the working directory.

    Raises:
        NlgraftError: The study lies outside the working directory or is left out, an override or option holds
            a password, the files are too many, or the job server cannot be reached.
    """
    _refuse_credentials([*overrides, *options])
    directory = Path.cwd()
    path = Path(study_file).resolve()
    if not path.is_relative_to(directory):
        raise NlgraftError(
            f"{study_file}: lies outside {directory}, the directory that is uploaded to the cluster; "
            "run `nlgraft submit` in a directory above the study"
        )
    relative = path.relative_to(directory).as_posix()
    environment = runtime_env(directory)
    own_store = [] if store is None else _patterns_of(Path(store), directory)
    package = JobPackage.collect(directory, [*own_store, *environment.pop("excludes", ())])
    if relative not in package.files:
        reason = package.left_out.get(relative, "its directory is left out")
        raise NlgraftError(
            f"{study_file}: would not be sent ({reason}); move it, or include it in {RUNTIME_ENV_FILE} by "
            f"`excludes: ['!/{relative}']`"
        )
    for line in package.describe():
        tell(line)
    use_token_if_present()
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    entrypoint = shlex.join(["python", "-m", "nlgraft", "run", relative, *overrides, *options])
    try:
        client = JobSubmissionClient(address)
        with tempfile.TemporaryDirectory(prefix="nlg-job-") as copy:
            package.copy_to(Path(copy))
            return client.submit_job(entrypoint=entrypoint, runtime_env={**environment, "working_dir": copy})
    except (ConnectionError, RuntimeError, RayError) as error:
        raise NlgraftError(
            f"the job server at {address or 'the default address'} accepts no job: {error}. Start a cluster "
            "with `ray up cluster.yaml`, or give the URL of its dashboard as --address http://HEAD:8265; if "
            "the cluster uses token authentication, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        ) from error


def _refuse_credentials(arguments: Sequence[str]) -> None:
    """Keep passwords out of a job's command line and environment, which Ray shows to all its users."""
    shown = {argument: without_credentials(argument) for argument in arguments}
    found = [public for argument, public in shown.items() if argument != public]
    if found:
        raise NlgraftError(
            f"{' and '.join(found)}: Ray shows a job's command line to everybody who may list the cluster's "
            "jobs, so no password or key may be in it. Leave it out and set it in the environment in which "
            "the cluster is started: MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD for MLflow; for a store the variables of its provider, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def next_commands(job_id: str, address: str | None) -> dict[str, str]:
    """Return the commands that follow a submitted job, by what they do."""
    prefix = "RAY_AUTH_MODE=token " if os.environ.get("RAY_AUTH_MODE") == "token" else ""
    place = "" if address is None else f" --address {shlex.quote(address)}"
    commands = {"state": "status", "output so far and to come": "logs --follow", "end it": "stop"}
    return {meaning: f"{prefix}ray job {command}{place} {job_id}" for meaning, command in commands.items()}


def runtime_env(directory: Path) -> dict[str, Any]:
    """Read ``runtime_env.yaml`` of the job's directory.

    Without that file, the environment makes the directory importable.
    """
    from ruamel.yaml import YAML

    file = directory / RUNTIME_ENV_FILE
    if file.is_file():
        return dict(YAML(typ="safe").load(file))
    return {"env_vars": {"PYTHONPATH": "platform:."}}


def _patterns_of(store: Path, directory: Path) -> list[str]:
    place = (directory / store).resolve()
    is_below = place != directory and place.is_relative_to(directory)
    return [f"/{place.relative_to(directory).as_posix()}"] if is_below else []
