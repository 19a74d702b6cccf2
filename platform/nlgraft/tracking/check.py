"""MLflow's part of `verify`: its runs against the records of the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mlflow import MlflowClient
from mlflow.entities import Run

from nlgraft.basics.errors import RUN_AGAIN, Finding
from nlgraft.tracking.backend import run_key, runs_of_study
from nlgraft.tracking.entries import DIGEST, RunEntry, RunKey
from nlgraft.tracking.uri import check_uri, public_text, sqlite_path


def check_runs(
    uri: str,
    experiment: str,
    fingerprint: str,
    parents: Sequence[RunKey],
    trials: Sequence[RunEntry],
    store_id: str = "",
) -> list[Finding]:
    """Find runs of a study that are missing, there twice, RUNNING, or not what the records say.

    Nothing is written, and no database is created.

    Args:
        uri: Tracking URI.
        experiment: Name of the experiment.
        fingerprint: The study's fingerprint.
        parents: Runs of the study and of its cells.
        trials: Final entries of the trials that have ended.
        store_id: Id of the store that holds their records.

    Raises:
        StudyError: MLflow cannot read such a URI.
    """
    database = sqlite_path(check_uri(uri))
    if database is not None and not database.exists():
        return [Finding("MLflow", f"{database} is missing", RUN_AGAIN)]
    try:
        runs = _read(uri, experiment, fingerprint, store_id)
    except Exception as error:
        # Whatever a server, a network or a database driver raises.
        remedy = "check that it runs and can be reached from here, and verify again"
        reason = f"{public_text(uri)} cannot be read: {public_text(str(error))}"
        return [Finding("MLflow", reason, remedy)]
    return _compare(runs, parents, trials)


def _read(
    uri: str,
    experiment: str,
    fingerprint: str,
    store_id: str,
) -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    stored = client.get_experiment_by_name(experiment)
    if stored is None:
        return []
    return list(runs_of_study(client, stored.experiment_id, fingerprint, store_id))


def _compare(
    runs: Iterable[Run],
    parents: Sequence[RunKey],
    trials: Sequence[RunEntry],
) -> list[Finding]:
    runs_by_key: dict[RunKey, list[Run]] = defaultdict(list)
    for run in runs:
        runs_by_key[run_key(run)].append(run)
    # Two proposals of a cell may be the same trial.
    expected: dict[RunKey, list[RunEntry]] = {key: [] for key in parents}
    for entry in trials:
        expected.setdefault(entry.key, []).append(entry)
    findings = []
    for same_key in runs_by_key.values():
        for run in same_key:
            if run.info.status == "RUNNING":
                findings.append(Finding("MLflow", f"{_name(run)} is RUNNING", RUN_AGAIN))
        if len(same_key) > 1:
            newer = max(same_key, key=lambda run: run.info.start_time or 0)
            remedy = f"delete the newer one: `mlflow runs delete --run-id {newer.info.run_id}`"
            findings.append(Finding("MLflow", f"{_name(newer)} is there {len(same_key)} times", remedy))
    for key, entries in expected.items():
        if key not in runs_by_key:
            name = entries[0].name if entries else f"{key.kind} {key.cell}".strip()
            findings.append(Finding("MLflow", f"{name}: has no run", RUN_AGAIN))
        elif entries and not _is_complete(runs_by_key[key], entries):
            run = runs_by_key[key][0]
            reason = f"{_name(run)}, {run.info.status}, is not what the record says ({entries[0].status})"
            findings.append(Finding("MLflow", reason, RUN_AGAIN))
    return findings


def _is_complete(runs: Sequence[Run], entries: Sequence[RunEntry]) -> bool:
    """Tell if a run has all that one of its entries says: then it carries that entry's digest."""
    complete = {(entry.digest, entry.status) for entry in entries}
    return any((run.data.tags.get(DIGEST), run.info.status) in complete for run in runs)


def _name(run: Run) -> str:
    return f"run {run.info.run_name} ({run.info.run_id[:8]})"
