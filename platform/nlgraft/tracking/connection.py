"""Opens a tracking store: its schema, its experiment, MLflow's chatter."""

from __future__ import annotations

import logging
import os
import re
import warnings

from filelock import FileLock
from mlflow import MlflowClient, MlflowException

from nlgraft.tracking.backend import MlflowBackend
from nlgraft.tracking.uri import sqlite_path

_log = logging.getLogger("nlgraft.tracking")

_SCHEMA_LOCK_TIMEOUT_S = 120.0


def connect(
    uri: str, experiment: str, study_fingerprint: str, experiment_tags: dict[str, str]
) -> MlflowBackend:
    """Open a tracking store, making its database and the experiment where they are missing.

    Args:
        uri: Tracking URI, checked by `nlgraft.tracking.uri.check_uri`.
        experiment: Name of the experiment.
        study_fingerprint: Fingerprint of the study that will be written.
        experiment_tags: Tags of an experiment that has to be made.

    Returns:
        The backend.
    """
    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings(
        "ignore", ".*Any type hint is inferred as AnyType"
    )  # of mlflow.pyfunc's own types
    database = sqlite_path(uri)
    if database is None:
        client = MlflowClient(tracking_uri=uri)
        location = None
    else:
        database.parent.mkdir(parents=True, exist_ok=True)
        # Two processes that migrate one empty database at once leave it half migrated.
        with FileLock(f"{database}.lock", timeout=_SCHEMA_LOCK_TIMEOUT_S):
            client = MlflowClient(tracking_uri=uri)
        folder = re.sub(r"[^\w.-]+", "_", experiment)
        # MLflow's own choice would be ./mlruns of whatever directory the driver was started in.
        location = (database.parent / f"{database.stem}-artifacts" / folder).as_uri()
    experiment_id = _experiment_id(client, experiment, location, experiment_tags)
    return MlflowBackend(client, experiment_id, study_fingerprint)


def _experiment_id(client: MlflowClient, name: str, location: str | None, tags: dict[str, str]) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=location, tags=tags)
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:  # nobody else made it: the error is a real one
                raise
    if found.lifecycle_stage == "deleted":
        _log.warning(
            "the MLflow experiment %r had been deleted; it is restored with its runs. To keep it deleted, "
            "give the study another tracking.experiment",
            name,
        )
        client.restore_experiment(found.experiment_id)
    return found.experiment_id
