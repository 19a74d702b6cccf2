import os
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import artifact_root
from nlgraft.tracking import connection
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from nlgraft.tracking.uri import check_uri, public_text


@pytest.mark.parametrize(
    "uri",
    ["sqlite:///m.db", "http://h:5000", "https://h", "databricks", "databricks://p"],
)
def test_what_mlflow_can_write_to_is_taken(uri):
    assert check_uri(uri) == uri


@pytest.mark.parametrize("uri", ["postgresql://u:geheim@h/d", "postgresql+psycopg2://u:geheim@h/d"])
def test_a_database_without_its_driver_is_refused_with_what_to_install(uri, monkeypatch):
    for driver in ("psycopg", "psycopg2"):  # of SQLAlchemy 2.1 by default, and of 2.0
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(
        StudyError, match=r"driver psycopg2?, .*pip install 'nlgraft\[postgresql\]'"
    ) as caught:
        check_uri(uri)
    assert "geheim" not in str(caught.value)


def test_a_database_with_its_driver_is_taken(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", ModuleType("psycopg2"))
    assert check_uri("postgresql+psycopg2://u:p@h/d") == "postgresql+psycopg2://u:p@h/d"


@pytest.mark.parametrize(
    ("uri", "root", "location"),
    [
        ("postgresql://h/d", "/store/mlflow-artifacts", "file:///store/mlflow-artifacts/a_study"),
        ("postgresql://h/d", "s3://bucket/mlflow-artifacts", "s3://bucket/mlflow-artifacts/a_study"),
        ("http://h:5000", "/store/mlflow-artifacts", None),  # the server's
    ],
)
def test_artifacts_of_a_database_do_not_land_in_the_working_directory(uri, root, location, monkeypatch):
    created = []

    class Client:
        def __init__(self, tracking_uri):
            pass

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, artifact_location, tags):
            created.append(artifact_location)
            return "1"

    monkeypatch.setattr(connection, "MlflowClient", Client)
    connection.connect(uri, "a study", "0" * 64, {}, root)
    assert created == [location]


def test_an_empty_uri_is_refused():
    with pytest.raises(StudyError, match="empty"):
        check_uri(" ")


def test_messages_that_quote_a_uri_show_no_password_and_one_line():
    text = "request to https://ann:secret@host/api failed\nwith much more"
    assert public_text(text) == "request to https://ann:***@host/api failed"


def test_keys_of_an_object_store_do_not_enter_mlflow():
    store = ArtifactStore.open("s3://KEY:geheim@bucket/nlgraft?endpoint_override=minio:9000&scheme=http")
    assert artifact_root(store) == "s3://bucket/nlgraft/mlflow-artifacts"


@pytest.mark.parametrize(
    "kind", ["pipe", "device", "link to a device", "link to itself", "directory", "text", "below a file"]
)
def test_what_is_no_database_is_refused_and_stays_what_it_is(kind, tmp_path):
    path = tmp_path / "mlflow.db"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case "link to a device":
            path.symlink_to("/dev/null")
        case "link to itself":
            path.symlink_to(path)
        case "directory":
            path.mkdir()
        case "text":
            path.write_text("my notes")
        case "below a file":
            (tmp_path / "notes").write_text("")
            path = tmp_path / "notes" / "mlflow.db"
    with pytest.raises(
        StudyError, match=r"no (regular file|SQLite database|directory)|leads to itself"
    ) as caught:
        MlflowTracker(f"sqlite:///{path}", "demo")
    assert [problem.path for problem in caught.value.problems] == ["tracking.uri"]
    assert kind != "pipe" or path.is_fifo()


def test_an_absent_and_an_empty_file_become_a_database_beside_which_nothing_goes(tmp_path):
    (tmp_path / "empty.db").touch()
    (tmp_path / "absent.db.new").write_text("mine")
    (tmp_path / "link.db").symlink_to("target.db")
    for name in ("absent.db", "empty.db", "link.db"):
        uri = check_uri(f"sqlite:///{tmp_path / name}")
        connection.connect(uri, "a study", "0" * 64, {})
        assert check_uri(uri) == uri
    assert (tmp_path / "absent.db.new").read_text() == "mine"
    assert (tmp_path / "link.db").is_symlink()


def test_a_process_that_is_stopped_while_it_makes_the_schema_blocks_nobody_and_replaces_nothing(
    tmp_path, monkeypatch
):
    """One holds the lock and does not go on; wakes when the other has written."""
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.3)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    is_made, is_written = threading.Event(), threading.Event()
    make = connection.MlflowClient

    def made_slowly(tracking_uri):
        client = make(tracking_uri=tracking_uri)
        if threading.current_thread() is stopped:
            is_made.set()
            assert is_written.wait(60)
        return client

    stopped = threading.Thread(target=connection.connect, args=(uri, "of the stopped", "0" * 64, {}))
    monkeypatch.setattr(connection, "MlflowClient", made_slowly)
    stopped.start()
    assert is_made.wait(60)
    connection.connect(uri, "of the other", "0" * 64, {})
    is_written.set()
    stopped.join()
    names = {experiment.name for experiment in make(tracking_uri=uri).search_experiments()}
    assert names >= {"of the stopped", "of the other"}
