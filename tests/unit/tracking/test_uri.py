from pathlib import Path

import pytest

from nlgraft.errors import StudyError
from nlgraft.tracking.uri import check_uri, public_text, sqlite_path


@pytest.mark.parametrize(
    "uri",
    ["sqlite:///m.db", "http://h:5000", "https://h", "postgresql://u:p@h/d", "databricks", "databricks://p"],
)
def test_what_mlflow_can_write_to_is_taken(uri):
    assert check_uri(uri) == uri


def test_a_file_store_is_refused_naming_the_way_out():
    with pytest.raises(StudyError) as caught:
        check_uri("file:///data/mlruns")
    (problem,) = caught.value.problems
    assert problem.path == "tracking.uri"
    assert "mlflow migrate-filestore --source /data/mlruns --target sqlite:///mlflow.db" in problem.message


def test_an_empty_uri_is_refused():
    with pytest.raises(StudyError, match="empty"):
        check_uri(" ")


def test_where_a_sqlite_database_lies():
    assert sqlite_path("sqlite:////data/m.db") == Path("/data/m.db")
    assert sqlite_path("sqlite:///m.db?timeout=5") == Path.cwd() / "m.db"
    assert sqlite_path("sqlite+pysqlite:////data/m.db") == Path("/data/m.db")
    assert sqlite_path("sqlite:///:memory:") is None
    assert sqlite_path("http://h") is None


def test_messages_that_quote_a_uri_show_no_password_and_one_line():
    text = "request to https://ann:secret@host/api failed\nwith much more"
    assert public_text(text) == "request to https://ann:***@host/api failed"
