"""Logging of the best trial's model in a form that ``mlflow models serve`` accepts."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import ColSpec, Schema, TensorSpec

from nlgraft.basics.errors import NlgraftError
from nlgraft.basics.wording import without_credentials
from nlgraft.tracking.entries import FINGERPRINT, PREDICTOR
from nlgraft.tracking.uri import check_readable

_NAME = "best"


def log_model(
    client: MlflowClient,
    experiment_id: str,
    run_id: str,
    directory: Path,
    tags: Mapping[str, str],
) -> str:
    """Log an artifact as a models-from-code model, without a pickle, and return its ``models:/`` URI.

    Args:
        run_id: Run of the trial that produced the artifact.
        directory: The artifact. Its ``predictor.json``, ``{"predictor": "package.module:function"}``, names
            the function that opens the directory and returns ``predict(texts) -> texts``; with
            ``"inputs": [names]`` it returns ``predict(*texts_by_input)``.
        tags: Identity of the model; a model with the same tags is not logged again.
    """
    same_tags = client.search_logged_models(
        [experiment_id], " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    )
    for logged in same_tags:
        if logged.status == LoggedModelStatus.READY:
            return logged.model_uri
    predictor = json.loads((directory / PREDICTOR).read_text("utf-8"))
    inputs = predictor.get("inputs", [])
    logged = client.create_logged_model(experiment_id, name=_NAME, source_run_id=run_id, tags=dict(tags))
    with tempfile.TemporaryDirectory(prefix="nlgraft-model-") as name:
        saved = Path(name) / "model"
        save_predictor(saved, directory, inputs, Model(model_id=logged.model_id, run_id=run_id))
        client.log_model_artifacts(logged.model_id, str(saved))
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return logged.model_uri


def log_exported(
    uri: str,
    experiment: str,
    fingerprint: str,
    directory: Path,
) -> str:
    """Log an exported model to the run of its trial, once, and return its ``models:/`` URI.

    Args:
        uri: Tracking URI.
        experiment: Name of the study's experiment.
        fingerprint: The trial.
        directory: The exported model.

    Raises:
        NlgraftError: There is no run of the trial.
    """
    check_readable(uri)
    client = MlflowClient(tracking_uri=uri)
    stored = client.get_experiment_by_name(experiment)
    query = f"tags.`{FINGERPRINT}` = '{fingerprint}'"
    runs = [] if stored is None else client.search_runs([stored.experiment_id], query)
    if stored is None or not runs:
        raise NlgraftError(
            f"MLflow at {without_credentials(uri)}: experiment {experiment!r} has no run of trial "
            f"{fingerprint[:12]}; run the study with this tracking URI first, which repeats no training"
        )
    return log_model(client, stored.experiment_id, runs[0].info.run_id, directory, {FINGERPRINT: fingerprint})


def save_predictor(
    target: Path,
    directory: Path,
    inputs: list[str],
    identity: Model | None = None,
) -> None:
    """Write an artifact directory as an MLflow model on local disk.

    Args:
        target: Directory of the model; must not exist.
        directory: The artifact directory, with its ``predictor.json``.
        inputs: Names of the inputs; empty for a single unnamed text column.
        identity: The model's identity in a tracking store.
    """
    columns: list[ColSpec | TensorSpec] = [ColSpec("string", name) for name in inputs or [None]]
    example = {name: ["a text"] for name in inputs} if inputs else ["a text"]
    try:
        requirement = f"nlgraft=={importlib.metadata.version('nlgraft')}"
    except importlib.metadata.PackageNotFoundError:
        # A Ray job that has the source tree on its path.
        requirement = "nlgraft"
    with tempfile.TemporaryDirectory(prefix="nlgraft-code-") as name:
        code = shutil.copy(Path(__file__).with_name("served_model.py"), name)
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(code),
            artifacts={"trained": str(directory)},
            signature=ModelSignature(inputs=Schema(columns), outputs=Schema([ColSpec("string")])),
            input_example=example,
            pip_requirements=[requirement],
            mlflow_model=identity,
        )
