"""``nlgraft submit``: `ray job submit` with this repository's runtime environment."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pathspec

from nlgraft.basics.errors import DataError, NlgraftError, StudyLockedError
from nlgraft.basics.wording import count, name_some, size, without_credentials
from nlgraft.execution.cluster import use_token_if_present
from nlgraft.pipeline.manifest import git
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import study_key
from nlgraft.study.reading.system_import import system_of

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
    overrides: Sequence[str]
    options: Sequence[str]
    variables: Sequence[str]


def submit_run(
    request: JobRequest,
    address: str | None,
    tell: Callable[[str], object],
) -> Job:
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
    environment["env_vars"] = environment.get("env_vars", {}) | _values(request.variables)
    store = (directory / Path(request.study.storage.path).expanduser()).resolve()
    is_below = store != directory and store.is_relative_to(directory)
    # Results of earlier runs, often the largest part of a working directory.
    own_store = [f"/{store.relative_to(directory).as_posix()}"] if is_below else []
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
    document, schema = study.to_dict(), system_of(study).config_type.model_json_schema()
    # Words that a setting allows name no files.
    settings = [part for part in _parts(schema) if isinstance(part, Mapping)]
    choices = {word for part in settings for word in (*part.get("enum", ()), part.get("const"))}
    values = [value for key in _NAMING for value in _parts(document[key])]
    words = {value for value in values if isinstance(value, str)} - choices
    import_paths = [study.system, *(word for word in words if ":" in word)]
    modules = {re.split("[.:]", path)[0] for path in import_paths}
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
    hidden = [public for argument, public in shown.items() if argument != public]
    if hidden:
        raise DataError(
            f"{' and '.join(hidden)}: Ray shows a job's command line to everybody who may list the cluster's "
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
    import yaml

    file = directory / RUNTIME_ENV_FILE
    if file.is_file():
        return dict(yaml.safe_load(file.read_text("utf-8")))
    return {"env_vars": {"PYTHONPATH": "platform:."}}


# The files that ``nlgraft submit`` sends to a cluster: code and studies, neither secrets nor data.


SECRETS = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "netrc", "_netrc", ".git-credentials", ".pypirc",
    ".pgpass", ".my.cnf", ".npmrc", ".htpasswd", ".boto", ".s3cfg", ".aws/", ".ssh/", ".docker/", ".kube/",
    ".config/", "gcloud/",
    ".azure/", ".gnupg/", ".huggingface/", ".cache/", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "credentials.json", ".credentials*", "client_secret*.json", "service_account*.json", "kaggle.json",
    "application_default_credentials.json", "secrets.yaml", "secrets.yml", "secrets.toml", "*.tfvars",
    ".hf_token", ".vault-token", ".databrickscfg", "pip.conf",
)  # fmt: skip
"""Patterns as in .gitignore of passwords and keys, which stay even if git tracks them."""
_SECRETS = pathspec.GitIgnoreSpec.from_lines(SECRETS)
LEFT_OUT = (
    *SECRETS, ".git", ".gitignore", ".rayignore",
    ".venv/", "venv/", "__pycache__/", "*.egg-info/", ".pytest_cache/", ".ruff_cache/", ".mypy_cache/",
    "node_modules/", "/data/", "/datasets/", "/checkpoints/", "/nlgraft_store/", "/reports/", "/mlruns/",
    "/mlartifacts/", "*.db",
)  # fmt: skip
"""Passwords and keys, what a machine builds for itself, data, results, and files by which Ray would leave out
more than this does."""
MAX_FILE_BYTES = 10_000_000
"""A larger file is left out: it is data or weights."""
MAX_BYTES = 500_000_000
"""Ray's job server takes no more."""
_IGNORE_FILES = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class JobPackage:
    """What is sent of a directory.

    Attributes:
        files: Sizes in bytes by path below the directory.
        left_out: Files and whole directories that are not sent, each with a reason.
    """

    directory: Path
    files: dict[str, int]
    left_out: dict[str, str]
    _needs: Sequence[str]
    _tracked: frozenset[str] | None

    @classmethod
    def collect(
        cls,
        directory: Path,
        excludes: Sequence[str] = (),
        needs: Sequence[str] = (),
    ) -> JobPackage:
        """Choose the files of a directory.

        Args:
            directory: The job's directory.
            excludes: Further patterns; one that begins with ``!`` includes what others leave out.
            needs: Files and folders that are sent, tracked by git or not. Outside a repository, all is.

        Raises:
            DataError: They are more than Ray takes, or git cannot list those of a repository.
        """
        spec = pathspec.GitIgnoreSpec.from_lines([*LEFT_OUT, *excludes])
        package = cls(directory, {}, {}, needs, _tracked(directory))
        can_return = any(pattern.startswith("!") for pattern in excludes)
        package._walk("", [("", spec)], can_return=can_return)
        total = sum(package.files.values())
        if total > MAX_BYTES:
            raise DataError(
                f"{directory}: {size(total)} would be sent, Ray takes {size(MAX_BYTES)}; the largest parts "
                f"are {package._largest()}. Leave out what the job does not need by `excludes` of "
                "runtime_env.yaml, or submit from a smaller directory above the study"
            )
        return package

    def copy_to(self, target: Path) -> None:
        """Copy the files, so that nothing else can be sent."""
        for name in self.files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.directory / name, target / name)

    def describe(self) -> Iterator[str]:
        """Describe in a few lines what is sent and what is not."""
        total = size(sum(self.files.values()))
        yield f"sending {count(len(self.files), 'file')}, {total}: {self._largest()}"
        if self.left_out:
            files = [f"{name} ({reason})" for name, reason in self.left_out.items()]
            yield f"not sent: {name_some(files)}"

    def _largest(self) -> str:
        parts: Counter[str] = Counter()
        for name, num_bytes in self.files.items():
            top, slash, _ = name.partition("/")
            parts[top + slash] += num_bytes
        return name_some([f"{name} {size(num_bytes)}" for name, num_bytes in parts.most_common()])

    def _walk(
        self,
        folder: str,
        specs: list[tuple[str, pathspec.GitIgnoreSpec]],
        *,
        can_return: bool,
    ) -> None:
        """Sort what lies in a folder (``""`` or ``a/b/``) into what is sent and what is not."""
        place = self.directory / folder
        for ignore in _IGNORE_FILES:
            if (place / ignore).is_file():
                lines = (place / ignore).read_text("utf-8", errors="replace").splitlines()
                specs = [*specs, (folder, pathspec.GitIgnoreSpec.from_lines(lines))]
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            name = folder + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            reason = self._reason(name + "/" * is_directory, specs)
            if is_directory and (not reason or (can_return and entry.name not in (".git", ".venv"))):
                self._walk(name + "/", specs, can_return=can_return)
            elif reason or not is_directory:
                self._take(name, entry, reason, specs[0][1])

    def _take(
        self,
        name: str,
        entry: os.DirEntry[str],
        reason: str,
        patterns: pathspec.GitIgnoreSpec,
    ) -> None:
        is_wanted = patterns.check_file(name).include is False
        if not reason and entry.is_symlink():
            target = Path(os.path.realpath(self.directory / name))  # resolve() raises for a circle of links
            root = self.directory.resolve()
            if not target.is_relative_to(root):
                reason = "a link that leads outside"
            elif patterns.match_file(target.relative_to(root).as_posix()):
                reason = "a link to what is left out"
        if not reason and not (self.directory / name).is_file():
            reason = "no file"
        num_bytes = 0 if reason else entry.stat().st_size
        if num_bytes > MAX_FILE_BYTES and not is_wanted:
            reason = f"{size(num_bytes)}, more than {size(MAX_FILE_BYTES)}"
        if reason:
            self.left_out[name + "/" * entry.is_dir(follow_symlinks=False)] = reason
        else:
            self.files[name] = num_bytes

    def _reason(self, name: str, specs: list[tuple[str, pathspec.GitIgnoreSpec]]) -> str:
        is_excluded = specs[0][1].check_file(name).include
        if is_excluded is None and _SECRETS.match_file(name.lower()):
            is_excluded = True
        if is_excluded is not None:
            return "left out" if is_excluded else ""
        path = name.rstrip("/") + "/"
        if any(path.startswith(f"{needed}/") or f"{needed}/".startswith(path) for needed in self._needs):
            return ""
        if self._tracked is not None:
            return "" if name in self._tracked else "not in git"
        is_ignored = any(spec.match_file(name.removeprefix(folder)) for folder, spec in specs[1:])
        return "ignored by git" if is_ignored else ""


def _tracked(directory: Path) -> frozenset[str] | None:
    """List the files and folders (``a/b/``) that git tracks in a directory; None outside a repository.

    Raises:
        DataError: Git is missing, or cannot list them: then all would be sent that lies beside them.
    """
    place = directory.resolve()
    if not any((folder / ".git").exists() for folder in (place, *place.parents)):
        return None
    try:
        files = git(directory, "ls-files", "-z", "--recurse-submodules").rstrip("\0").split("\0")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        reason = getattr(error, "stderr", None) or error
        raise DataError(
            f"{directory}: is in a git repository, but git cannot list its files ({str(reason).strip()}); "
            "install git or mend the repository, or submit from a copy outside it"
        ) from error
    parents = {f"{parent}/" for name in files if name for parent in PurePosixPath(name).parents}
    return frozenset(parents.union(files) - {""})


# The jobs of a Ray cluster, found by the study that they run.


_log = logging.getLogger(__name__)

_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_POLL_S = 1.0
_STOP_S = 120.0
_NUM_TRIES = 5
_NUM_FAILURES = 60
_NAME_CHARS = 32
_KEY_CHARS = 10


@dataclass(frozen=True)
class Job:
    """One job of a study.

    Attributes:
        job_id: Its submission id, by which Ray's own commands know it as well.
        state: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        command: What it runs.
        exit_code: Exit code of that; None while it runs, or if it was killed.
        message: What the job server says of it.
    """

    job_id: str
    state: str
    command: str
    exit_code: int | None = None
    message: str = ""

    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.state in _OVER


def job_name(study: Study) -> str:
    """Return how the ids of a study's jobs begin: its name, and the key of the lock that they run under."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", study.variant).strip("-")[:_NAME_CHARS]
    return f"nlgraft-{name}-{study_key(study)[:_KEY_CHARS]}"


class JobServer:
    """A job server, by Ray's public client.

    Args:
        address: E.g. ``http://HEAD:8265``; None uses ``RAY_API_SERVER_ADDRESS``.

    Raises:
        NlgraftError: It cannot be reached; every method raises the same.
    """

    def __init__(self, address: str | None) -> None:
        use_token_if_present()
        from ray.job_submission import JobSubmissionClient

        self._address = address
        with self._explained("does not answer"):
            self._client = JobSubmissionClient(address)

    def latest(self, name: str) -> Job | None:
        """Find the newest job of a study, by `job_name`; None if there is none."""
        jobs = self._jobs(name)
        return jobs[-1][1] if jobs else None

    def start(
        self,
        name: str,
        command: str,
        environment: Mapping[str, Any],
    ) -> tuple[Job, bool]:
        """Start a job of a study, unless one runs.

        Returns:
            The job; True if it was started, False if it was running.

        Raises:
            StudyLockedError: A job of the study runs with another command.
        """
        for _ in range(_NUM_TRIES):
            jobs = self._jobs(name)
            number, last = jobs[-1] if jobs else (0, None)
            if last is not None and not last.is_over:
                if last.command == command:
                    return last, False
                raise StudyLockedError(
                    f"job {last.job_id} runs this study already, by another command: `{last.command}`. Wait "
                    "until it has ended, or end it first (`nlgraft stop`)"
                )
            # Numbered, not random: of two who submit at once, one finds the id taken.
            job_id = f"{name}-{number + 1}"
            with self._explained("accepts no job"):
                try:
                    self._client.submit_job(
                        entrypoint=command, submission_id=job_id, runtime_env=dict(environment)
                    )
                except RuntimeError:
                    # The id is taken if somebody else submits the study at this moment.
                    if job_id not in {job.job_id for _, job in self._jobs(name)}:
                        raise
                    continue
            return Job(job_id, "PENDING", command), True
        raise NlgraftError(f"{name}: others submit the same study at this moment; try again")

    def follow(self, job: Job, tell: Callable[[str], object]) -> Job:
        """Pass on the output of a job until it has ended; return it as it ended.

        A connection that is lost is taken up where it broke; a server that does not answer for a minute is
        an error.
        """
        from aiohttp import ClientError  # of Ray's client; a broken connection need not be an OSError there

        num_told = num_failures = 0

        async def tail() -> None:
            nonlocal num_told
            seen = 0
            async for text in self._client.tail_job_logs(job.job_id):
                # Each connection begins at the first line.
                tell(text[max(0, num_told - seen) :])
                seen += len(text)
                num_told = max(num_told, seen)

        while True:
            try:
                asyncio.run(tail())
            except (RuntimeError, OSError, ClientError) as error:
                _log.debug("the output of %s broke off: %s", job.job_id, error)
            try:
                current = self.get(job.job_id)
                num_failures = 0
            except NlgraftError:
                num_failures += 1
                if num_failures > _NUM_FAILURES:
                    raise
                current = job
            if current.is_over:
                return current
            time.sleep(_POLL_S)

    def logs(self, job: Job) -> str:
        """Return the output of a job so far."""
        with self._explained("does not give the output"):
            return self._client.get_job_logs(job.job_id)

    def stop(self, job: Job) -> Job:
        """End a job, and wait until it has ended."""
        with self._explained("does not stop the job"):
            self._client.stop_job(job.job_id)
        end_s = time.monotonic() + _STOP_S
        while not (stopped := self.get(job.job_id)).is_over:
            if time.monotonic() > end_s:
                raise NlgraftError(f"job {job.job_id} still runs {_STOP_S:.0f} s after it was asked to end")
            time.sleep(_POLL_S)
        return stopped

    def get(self, job_id: str) -> Job:
        """Ask for the state of a job."""
        with self._explained("does not know the job"):
            return _job(self._client.get_job_info(job_id))

    def _jobs(self, name: str) -> list[tuple[int, Job]]:
        """List the jobs of a study with their numbers, the newest last."""
        with self._explained("does not list its jobs"):
            listed = self._client.list_jobs()
        jobs = []
        for details in listed:
            number = re.fullmatch(rf"{re.escape(name)}-(\d+)", details.submission_id or "")
            if number:
                jobs.append((int(number[1]), _job(details)))
        return sorted(jobs, key=lambda job: job[0])

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from ray.exceptions import RayError

        try:
            yield
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise NlgraftError(
                f"the job server at {self._address or 'the default address'} {what}: {error}. Start a "
                "cluster with `ray up cluster.yaml`, or give the URL of its dashboard as --address "
                "http://HEAD:8265; if the cluster uses token authentication, set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH"
            ) from error


def _job(details: Any) -> Job:
    return Job(
        details.submission_id,
        str(details.status.value),
        details.entrypoint,
        details.driver_exit_code,
        details.message or "",
    )
