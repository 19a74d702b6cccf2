"""Which MLflow stores are used, and how they are made and opened."""

import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from tests.processes import python
from tests.unit.tracking.runs import run_study


def test_nothing_lands_in_the_default_experiment_or_in_the_working_directory(
    open_tracker, client, toy, store, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    tracker = open_tracker()
    run_study(tracker, toy, store, tmp_path / "reports")
    tracker.close()
    assert not list(client.search_runs(["0"]))
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "/data/mlruns", "mlruns"])
def test_file_stores_are_refused_with_the_way_out(uri):
    with pytest.raises(StudyError, match=r"mlflow migrate-filestore.*sqlite:///"):
        MlflowTracker(uri, "demo")


def test_a_fresh_store_is_made_without_a_word(tmp_path):
    """Directories of a SQLite database are made; MLflow's progress stays off stderr, its links off stdout.

    Warnings are no progress: on a busy machine MLflow may say that it waits for its database.
    """
    code = (
        "from types import SimpleNamespace as S\n"
        "from nlgraft.tracking.mlflow_tracker import MlflowTracker\n"
        f"t = MlflowTracker('sqlite:///{tmp_path}/deep/er/mlflow.db', 'e')\n"
        "o = S(metric='m', direction='minimize', sign=-1)\n"
        "yaml = lambda is_public: ''\n"
        "s = S(variant='n', overrides=[], description='', system='s', seeds=[1], data={},\n"
        "      to_yaml=yaml, objective=o)\n"
        "t.start_study(s, 'f', [])\n"
        "t.finish_study({}, '')\n"
        "assert t.close() == 0\n"
    )
    done = python("-c", code, env={"PYTHONPATH": "platform", "OMP_NUM_THREADS": "1"})
    assert done.stdout == ""
    assert not re.search(r"\b(INFO|DEBUG)\b|View run|Context impl", done.stderr)
    with closing(sqlite3.connect(tmp_path / "deep/er/mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_commits_wait_for_the_disk_only_without_a_write_ahead_log(tmp_path, empty_database):
    from sqlalchemy import create_engine

    from nlgraft.tracking.connection import _relax_commits

    for mode, synchronous in (("wal", 1), ("delete", 2)):  # 1 is NORMAL, 2 is FULL
        path = tmp_path / f"{mode}.db"
        shutil.copy(empty_database, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={mode}")
        _relax_commits(path)
        engines = [create_engine(f"sqlite:///{path}"), create_engine(f"sqlite:///{path}.other")]
        levels = [engine.connect().exec_driver_sql("PRAGMA synchronous").scalar() for engine in engines]
        assert levels == [synchronous, 2]
