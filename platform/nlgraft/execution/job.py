"""``nlgraft submit``: `ray job submit` with this repository's runtime environment."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import without_credentials
from nlgraft.execution.job_package import JobPackage
from nlgraft.execution.job_server import Job, JobServer, job_name
from nlgraft.study.data.study import Study
from nlgraft.study.reading.system_import import load_system

RUNTIME_ENV_FILE = "runtime_env.yaml"
_LONGEST_NAME = 255
_NAMING = ("data", "base", "factors", "components", "search")
"""Parts of a study whose values may be files and modules."""


@dataclass(frozen=True)
class JobRequest:
    """What is asked for of `nlgraft submit`.

    Attributes:
        study: The study.
        study_file: Its path below the working directory.
        overrides: Of the study.
        options: Further options of ``nlgraft run``.
        variables: Environment variables of this process that the job gets.
    """

    study: Study
    study_file: str
    overrides: Sequence[str] = ()
    options: Sequence[str] = ()
    variables: Sequence[str] = ()


def submit_run(request: JobRequest, address: str | None, tell: Callable[[str], object]) -> Job:
    """Submit ``nlgraft run`` of a study to a Ray cluster's job server, unless a job runs it.

    The working directory is sent, but for what `JobPackage` leaves out.

    Args:
        request: What is to run.
        address: The job server, e.g. ``http://HEAD:8265``; None uses ``RAY_API_SERVER_ADDRESS``.
        tell: Receives, before anything is sent, what is sent.

    Raises:
        StudyLockedError: A job of the study runs with another command.
        DataError: The study lies outside the working directory or is left out, its store is relative, an
            override or option holds a password, a variable is not set, or the files are too many.
        NlgraftError: The job server cannot be reached.
    """
    relative, package, environment = _packed(request)
    for line in package.describe():
        tell(line)
    if request.variables:
        tell(f"the job gets {', '.join(request.variables)}: who may list the cluster's jobs can read them")
    command = shlex.join(["python", "-m", "nlgraft", "run", relative, *request.overrides, *request.options])
    with tempfile.TemporaryDirectory(prefix="nlg-job-") as copy:
        package.copy_to(Path(copy))
        job, is_new = JobServer(address).start(
            job_name(request.study), command, {**environment, "working_dir": copy}
        )
    if not is_new:
        tell(f"{job.job_id} runs this study by the same command already; nothing was submitted")
    return job


def _packed(request: JobRequest) -> tuple[str, JobPackage, dict[str, Any]]:
    """Return the study's path below the working directory, the files, and the runtime environment."""
    _refuse_credentials([*request.overrides, *request.options])
    _refuse_copied_store(request.study.storage.path)
    directory = Path.cwd()
    path = Path(request.study_file).resolve()
    if not path.is_relative_to(directory):
        raise DataError(
            f"{request.study_file}: lies outside {directory}, the directory that is uploaded to the cluster; "
            "run `nlgraft submit` in a directory above the study"
        )
    relative = path.relative_to(directory).as_posix()
    environment = runtime_env(directory)
    environment["env_vars"] = {**environment.get("env_vars", {}), **_values(request.variables)}
    own_store = _patterns_of(Path(request.study.storage.path).expanduser(), directory)
    needs = [RUNTIME_ENV_FILE, relative, *_named_in(request.study, directory)]
    package = JobPackage.collect(directory, [*own_store, *environment.pop("excludes", ())], needs)
    if relative not in package.files:
        reason = package.left_out.get(relative, "its directory is left out")
        raise DataError(
            f"{request.study_file}: would not be sent ({reason}); move it, or include it in "
            f"{RUNTIME_ENV_FILE} by `excludes: ['!/{relative}']`"
        )
    return relative, package, environment


def _named_in(study: Study, directory: Path) -> Iterator[str]:
    """Yield what lies in a directory of the files, systems and metrics that a study names."""
    document, schema = study.to_dict(), load_system(study.system).config_type.model_json_schema()
    # Words that a setting allows name no files.
    settings = [part for part in _parts(schema) if isinstance(part, Mapping)]
    choices = {word for part in settings for word in (*part.get("enum", ()), part.get("const"))}
    words = {value for key in _NAMING for value in _parts(document[key]) if isinstance(value, str)} - choices
    modules = {re.split("[.:]", path)[0] for path in (study.system, *(word for word in words if ":" in word))}
    for name in sorted(words | modules | {f"{module}.py" for module in modules}):
        if len(name) < _LONGEST_NAME and name.isprintable():
            path = Path(os.path.realpath(directory / name))
            if path != directory and path.is_relative_to(directory) and path.exists():
                yield path.relative_to(directory).as_posix()


def _parts(document: Any) -> Iterator[Any]:
    """Yield a document and all that it holds, without keys."""
    yield document
    if isinstance(document, Mapping | list):
        for value in document.values() if isinstance(document, Mapping) else document:
            yield from _parts(value)


def _values(variables: Sequence[str]) -> dict[str, str]:
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise DataError(
            f"--env {' --env '.join(missing)}: not set in this environment; give the name of a variable that "
            "is (`export NAME=value`), the value is taken from there"
        )
    return {name: os.environ[name] for name in variables}


def _refuse_credentials(arguments: Sequence[str]) -> None:
    """Keep passwords out of a job's command line and environment, which Ray shows to all its users."""
    shown = {argument: without_credentials(argument) for argument in arguments}
    found = [public for argument, public in shown.items() if argument != public]
    if found:
        raise DataError(
            f"{' and '.join(found)}: Ray shows a job's command line to everybody who may list the cluster's "
            "jobs, so no password or key may be in it. Leave it out and set it in the environment in which "
            "the cluster is started: MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD for MLflow; for a store the variables of its provider, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def _refuse_copied_store(path: str) -> None:
    """Keep results out of the job's own copy of the working directory, which Ray removes."""
    if "://" not in path and not Path(path).expanduser().is_absolute():
        raise DataError(
            f"storage.path {path}: is relative, so a job would write its results into its own copy of the "
            "working directory, which Ray removes. Give --storage a place that all nodes reach, and you: an "
            "absolute directory, s3://bucket/prefix, gs:// or az://"
        )


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
