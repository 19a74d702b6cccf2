"""Rules on where a study runs and what it leaves there: resources, store, MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from nlgraft.basics.errors import Problem, StoreError, nearest
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Study

_TRACKING_SCHEMES = (
    "http",
    "https",
    "databricks",
    "databricks-uc",
    "uc",
    "sqlite",
    "postgresql",
    "mysql",
    "mssql",
)
_FILE_STORE = (
    "{uri!r} is an MLflow file store, which MLflow no longer writes. Give sqlite:///PATH.db or "
    "http://HOST:PORT. To keep its runs, run `mlflow migrate-filestore --source {source} --target "
    "sqlite:///mlflow.db` and give sqlite:///mlflow.db here"
)
_TRACKING_PLUGINS = "mlflow.tracking_store"
_SQLITE_HEAD = b"SQLite format 3\0"
OPTUNA_FILE = "optuna.db"
"""Optuna's database inside a local store."""


def place_problems(study: Study) -> Iterator[Problem]:
    """Find the problems of resources, storage and tracking, with their paths in the study file."""
    yield from _resource_problems(study)
    try:
        ArtifactStore.open(study.storage.path)
    except StoreError as error:
        yield Problem("storage.path", str(error))
    yield from _tracking_problems(study)


def _resource_problems(study: Study) -> Iterator[Problem]:
    gpus, workers = study.resources.gpus_per_worker, study.resources.max_workers
    if gpus > 1 and not gpus.is_integer():
        yield Problem("resources.gpus_per_worker", f"{gpus} is not allowed; above 1, give a whole number")
    if 0 < gpus < 1 and workers > 1:
        message = f"{workers} workers of one trial cannot share a GPU ({gpus} each); give 1, or one worker"
        yield Problem("resources.gpus_per_worker", message)
    if workers < (least := study.resources.min_workers):
        yield Problem("resources.workers.max", f"{workers} is below min, {least}")
    if study.resources.sharding == "full" and least < 2:
        message = f"full divides a training over its workers, {study.resources.workers_text}; give at least 2"
        yield Problem("resources.sharding", message)
    for kind, cap in study.resources.caps.items():
        if cap < (needed := study.resources.per_trial[kind]):
            yield Problem(f"resources.max_{kind.lower()}s", f"{cap:g} is too few: one trial has {needed:g}")


def _tracking_problems(study: Study) -> Iterator[Problem]:
    uri = study.tracking.uri
    if uri is None:
        return
    if fault := uri_fault(uri):
        yield Problem("tracking.uri", fault)
    elif sqlite_path(uri) == Path(study.storage.path, OPTUNA_FILE).absolute():
        message = (
            "is the database of Optuna; MLflow cannot share it, as both manage its tables. Give another file"
        )
        yield Problem("tracking.uri", message)


def uri_fault(uri: str) -> str:
    """Return why MLflow cannot write to a tracking URI; empty if nothing in it or on disk tells."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        # No closing bracket.
        parts = None
    is_server = parts is not None and parts.scheme in ("http", "https")
    if parts is None or not uri.strip() or (is_server and not parts.hostname):
        return f"{uri!r} is empty or names no server. Give sqlite:///PATH.db or http://HOST:PORT"
    scheme = uri.partition(":")[0].partition("+")[0].lower()
    if scheme == "file" or (":" not in uri and uri not in _TRACKING_SCHEMES):
        return _FILE_STORE.format(uri=uri, source=parts.path)
    allowed = [*_TRACKING_SCHEMES, *(entry.name for entry in entry_points(group=_TRACKING_PLUGINS))]
    if scheme not in allowed:
        return f"{scheme!r} is no scheme of MLflow. {nearest(scheme, allowed)}"
    database = sqlite_path(uri)
    return "" if database is None else database_fault(database)


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of a SQLite URI's file; None for other URIs and databases in memory."""
    scheme, separator, location = uri.partition(":///")
    if scheme.split("+")[0] != "sqlite" or not separator:
        return None
    name = location.partition("?")[0]
    if name in ("", ":memory:"):
        return None
    return Path(name).absolute()


def nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest directory above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


def database_fault(path: Path) -> str:
    """Return why a path can hold no SQLite database; empty if it holds one, or if nothing is there yet.

    What is no regular file is not opened: a pipe would wait for its writer.
    """
    try:
        if Path(os.path.realpath(path)).is_symlink():
            return f"{path} is a link that leads to itself; give a SQLite database or a new name"
        # MLflow creates missing directories, so the nearest that exists decides.
        existing = nearest_existing(path)
        if existing != path:
            kind = "" if existing.is_dir() else "directory"
        elif not path.is_file():
            kind = "regular file"
        else:
            with path.open("rb") as file:
                kind = "" if file.read(len(_SQLITE_HEAD)) in (b"", _SQLITE_HEAD) else "SQLite database"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; give another path"
    return kind and f"{existing} is no {kind}; give a SQLite database or a new name"
