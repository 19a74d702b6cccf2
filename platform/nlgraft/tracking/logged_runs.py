"""Scores of runs that others logged to MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow import MlflowClient, MlflowException
from mlflow.entities import Experiment, Run

from nlgraft.basics.errors import DataError, NlgraftError, nearest
from nlgraft.basics.wording import count, without_credentials
from nlgraft.tracking.uri import check_readable, public_text

_RUNS_PER_PAGE, _NAMED = 1000, 3

LoggedScore = tuple[str, str, str, str, str, float]
"""Run, system, seed, an empty item, metric and last logged value."""


def logged_scores(
    uri: str, experiment: str, arm: str, seed: str, metrics: Sequence[str]
) -> tuple[list[LoggedScore], list[str]]:
    """Read metrics of the finished runs of an experiment.

    Args:
        uri: Tracking URI.
        experiment: Name of the experiment.
        arm: Name of the parameter or tag that tells systems apart.
        seed: Name of the parameter or tag that holds the seed.
        metrics: Names of the metrics; empty for all.

    Returns:
        The scores, and what was left out.

    Raises:
        DataError: There is no such experiment, or no finished run has all that is asked for.
        NlgraftError: MLflow does not answer.
    """
    check_readable(uri)
    client = MlflowClient(tracking_uri=uri)
    try:
        stored = client.get_experiment_by_name(experiment)
        names = [other.name for other in client.search_experiments()]
        runs = [] if stored is None else list(_runs(client, stored))
    except MlflowException as error:
        raise NlgraftError(f"MLflow at {without_credentials(uri)}: {public_text(str(error))}") from error
    if stored is None:
        raise DataError(f"MLflow has no experiment {experiment!r}. {nearest(experiment, names)}")
    scores: list[LoggedScore] = []
    left_out: dict[str, list[str]] = {}
    for run in runs:
        labels = {**run.data.tags, **run.data.params}
        needs = {**dict.fromkeys((arm, seed), labels), **dict.fromkeys(metrics, run.data.metrics)}
        missing = [name for name, holder in needs.items() if name not in holder]
        if run.info.status != "FINISHED" or missing:
            why = f"no {', '.join(missing)}" if missing else run.info.status.lower()
            left_out.setdefault(why, []).append(run.info.run_name)
            continue
        where = f"run {run.info.run_name} ({run.info.run_id})"
        scores += [
            (where, labels[arm], labels[seed], "", metric, run.data.metrics[metric])
            for metric in metrics or run.data.metrics
        ]
    notes = [
        f"{count(len(run_names), 'run')} left out, {why}: {', '.join(run_names[:_NAMED])}"
        for why, run_names in left_out.items()
    ]
    if not scores:
        raise DataError(
            "\n".join(
                [f"experiment {experiment!r}: no finished run has {arm}, {seed} and the metric", *notes]
            )
        )
    return scores, notes


def _runs(client: MlflowClient, experiment: Experiment) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id],
            max_results=_RUNS_PER_PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        yield from page
        if not (token := page.token):
            return
