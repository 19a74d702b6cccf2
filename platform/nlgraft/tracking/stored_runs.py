"""The runs of one study as an MLflow store holds them."""

from __future__ import annotations

from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities import Run

from nlgraft.tracking.entries import RunKey
from nlgraft.tracking.tags import CELL, FINGERPRINT, KIND, STORE, STUDY_FINGERPRINT

_RUNS_PER_PAGE = 1000


def is_of_study(fingerprint: str) -> str:
    """Return MLflow's condition for the runs of a study, given its fingerprint."""
    return f"tags.`{STUDY_FINGERPRINT}` = '{fingerprint}'"


def runs_of_study(
    client: MlflowClient, experiment_id: str, fingerprint: str, store_id: str, condition: str = ""
) -> Iterator[Run]:
    """Read the runs of a study that are not deleted, in pages; of those that fulfil a condition, if given.

    Two stores may report one study to one server. Runs without the id of a store, which earlier versions
    wrote, count as runs of each.
    """
    # Every run that nlgraft writes has a kind, which its key needs.
    conditions = [is_of_study(fingerprint), f"tags.`{KIND}` LIKE '%'", *([condition] if condition else [])]
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id], " AND ".join(conditions), max_results=_RUNS_PER_PAGE, page_token=token
        )
        yield from (run for run in page if run.data.tags.get(STORE, store_id) == store_id)
        token = page.token
        if not token:
            return


def run_key(run: Run) -> RunKey:
    """Return which run of the study it is, by its tags."""
    tags = run.data.tags
    return RunKey(tags[KIND], tags.get(CELL, ""), tags[FINGERPRINT])
