"""Scores of runs that others logged to MLflow."""

from __future__ import annotations

from typing import Any

from mlflow import MlflowClient, MlflowException

from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.basics.wording import count, name_some, without_credentials
from nlgraft.tracking.uri import check_readable, public_text

_MOST_RUNS = 50_000
"""Most that MLflow gives at once."""


def logged_runs(
    uri: str,
    experiment: str,
    arm: str,
    seed: str,
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Read the last metrics of the finished runs of an experiment, in the order of their start.

    Args:
        uri: Tracking URI.
        experiment: Name of the experiment.
        arm: Name of the parameter or tag that tells systems apart.
        seed: Name of the parameter or tag that holds the seed.

    Returns:
        For each run where it is, and ``system``, ``seed`` and metrics by name; what was left out.

    Raises:
        DataError: There is no such experiment, or no finished run has arm and seed.
        NlgraftError: MLflow does not answer.
    """
    check_readable(uri)
    client = MlflowClient(tracking_uri=uri)
    try:
        stored = client.get_experiment_by_name(experiment)
        if stored is None:
            names = ", ".join(other.name for other in client.search_experiments())
            raise DataError(f"MLflow has no experiment {experiment!r}; it has {names}")
        runs = client.search_runs(
            [stored.experiment_id], max_results=_MOST_RUNS, order_by=["attributes.start_time ASC"]
        )
    except MlflowException as error:
        raise NlgraftError(f"MLflow at {without_credentials(uri)}: {public_text(str(error))}") from error
    rows: list[tuple[str, dict[str, Any]]] = []
    left_out: dict[str, list[str]] = {}
    for run in runs:
        labels = {**run.data.tags, **run.data.params}
        if run.info.status == "FINISHED" and arm in labels and seed in labels:
            names_of = {"system": labels[arm], "seed": labels[seed]}
            rows.append((f"run {run.info.run_name} ({run.info.run_id})", {**run.data.metrics, **names_of}))
        else:
            missing = [name for name in (arm, seed) if name not in labels]
            reason = f"no {' and '.join(missing)}" if missing else run.info.status.lower()
            left_out.setdefault(reason, []).append(str(run.info.run_name))
    notes = [
        f"{count(len(names), 'run')} left out, {reason}: {name_some(names)}"
        for reason, names in left_out.items()
    ]
    if not rows:
        raise DataError(
            "\n".join([f"experiment {experiment!r}: no finished run has {arm} and {seed}", *notes])
        )
    return rows, notes
