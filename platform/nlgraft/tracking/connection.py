"""Opening of a tracking store: database schema, experiment and MLflow's log level."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from filelock import FileLock, Timeout
from mlflow import MlflowClient, MlflowException
from mlflow.entities import Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from sqlalchemy import event
from sqlalchemy.engine import Engine

from nlgraft.basics.errors import Problem, StudyError, StudyLockedError
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.fence import Guarded
from nlgraft.tracking.backend import MlflowBackend
from nlgraft.tracking.uri import is_database, sqlite_path

_log = logging.getLogger("nlgraft.tracking")

_PATIENCE_S = 60.0
_REFUSALS = (401, 403)


def connect(
    uri: str,
    experiment: str,
    study_fingerprint: str,
    experiment_tags: dict[str, str],
    artifact_root: str | None = None,
    may_write: Callable[[], bool] = lambda: True,
    store_id: str = "",
) -> MlflowBackend:
    """Open a tracking store, creating its database and the experiment if they are missing.

    Args:
        uri: Tracking URI, checked by `nlgraft.tracking.uri.check_uri`.
        study_fingerprint: Fingerprint of the study that will be written.
        experiment_tags: Tags for the experiment if it is created.
        artifact_root: Directory or URI for artifacts if a database is written without a server.
        may_write: Asked before each request that writes; False once another driver writes the study.
        store_id: Id of the artifact store whose runs they are.

    Raises:
        StudyError: The server knows no such user, or lets it write nothing.
    """
    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # It logs a traceback of each error that it also raises; the writer reports those in one line.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # Raised by MLflow's own types when mlflow.pyfunc is imported.
    warnings.filterwarnings("ignore", ".*Any type hint is inferred as AnyType")
    database = sqlite_path(uri)
    location = None
    # MLflow's default is ./mlruns of whatever directory the driver was started in.
    folder = re.sub(r"[^\w.-]+", "_", experiment)
    if is_database(uri) and database is None and artifact_root is not None:
        place = artifact_root if "://" in artifact_root else Path(artifact_root).absolute().as_uri()
        location = f"{place}/{folder}"
    if database is not None:
        _ensure_schema(database.resolve())
        _relax_commits(database)
        location = (database.parent / f"{database.stem}-artifacts" / folder).as_uri()
    client = fenced_client(MlflowClient(tracking_uri=uri), may_write)
    try:
        experiment_id = _experiment_id(client, experiment, location, experiment_tags)
    except MlflowException as error:
        if error.get_http_status_code() in _REFUSALS:
            raise _refused(uri, experiment, error) from error
        raise
    return MlflowBackend(client, experiment_id, study_fingerprint, store_id)


def _refused(uri: str, experiment: str, error: MlflowException) -> StudyError:
    name = "MLFLOW_TRACKING_USERNAME"
    user = f"user {os.environ[name]!r}" if name in os.environ else f"client without {name}"
    message = (
        f"MLflow at {without_credentials(uri)} refuses the {user} (status {error.get_http_status_code()}). "
        f"Set {name} and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to those of a user who may "
        f"write the experiment {experiment!r}"
    )
    return StudyError([Problem("tracking.uri", message)])


def _ensure_schema(database: Path) -> None:
    """Create a SQLite database in one step: racing or killed migrations would leave it half migrated.

    The lock only spares work: a process that is stopped while it holds the lock blocks nobody for long. The
    database uses a write-ahead log, with which a commit costs a fraction of one with a rollback journal.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, suppress(FileExistsError):  # another was faster
        with suppress(Timeout):
            stack.enter_context(FileLock(f"{database}.lock", timeout=_PATIENCE_S))
        if database.exists() and database.stat().st_size > 0:
            return
        with TemporaryDirectory(prefix=".nlgraft-mlflow-", dir=database.parent) as folder:
            new = Path(folder, database.name)
            MlflowClient(tracking_uri=f"sqlite:///{new}")
            with closing(sqlite3.connect(new)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            if database.exists() and database.stat().st_size == 0:
                database.unlink()
            os.link(new, database)


@cache
def _relax_commits(database: Path) -> None:
    """Stop commits of this process to a database with a write-ahead log from waiting for the disk.

    If the power fails, such a database stays intact but may lose its newest commits, which the next run
    writes again.
    """

    def relax(connection: Any, _: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return
        (_, _, file), *_ = connection.execute("PRAGMA database_list").fetchall()
        is_this_database = file == str(database.resolve())
        if is_this_database and connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(Engine, "connect", relax)


def _experiment_id(
    client: MlflowClient,
    name: str,
    location: str | None,
    tags: dict[str, str],
) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=location, tags=tags)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                # No other process has created it, so the error is a real one.
                raise
    if experiment.lifecycle_stage == "deleted":
        _log.warning(
            "the MLflow experiment %r had been deleted; it is restored with its runs. To keep it deleted, "
            "set another tracking.experiment in the study",
            name,
        )
        client.restore_experiment(experiment.experiment_id)
    return experiment.experiment_id


# An MLflow client that asks before each request that writes whether this driver still may.


_READING = ("get_", "search_", "list_")


def fenced_client(client: MlflowClient, may_write: Callable[[], bool]) -> MlflowClient:
    """Return a client whose writes are refused once another driver writes this study.

    MLflow has no conditional requests: one that is on its way when the process is stopped arrives. A run
    that is created so is deleted again, since it may be there twice.
    """

    def check() -> None:
        if not may_write():
            raise StudyLockedError("another driver writes this study to MLflow")

    return cast(MlflowClient, _FencedClient(client, check, lambda name: name.startswith(_READING)))


class _FencedClient(Guarded):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._artifact_uris: dict[str, str] = {}

    def create_run(self, *arguments: Any, **options: Any) -> Run:
        """Create a run, and delete it if this driver may not write any more."""
        self._check()
        run = self._inner.create_run(*arguments, **options)
        try:
            self._check()
        except StudyLockedError:
            self._inner.delete_run(run.info.run_id)
            raise
        self._artifact_uris[run.info.run_id] = run.info.artifact_uri
        return run

    def log_artifacts(self, run_id: str, directory: str) -> None:
        """Log files; MLflow's client would read a run again that was just created, a fifth of its cost."""
        self._check()
        uri = self._artifact_uris.pop(run_id, None)
        if uri is None:
            self._inner.log_artifacts(run_id, directory)
        else:
            get_artifact_repository(uri, self._inner.tracking_uri).log_artifacts(directory)
