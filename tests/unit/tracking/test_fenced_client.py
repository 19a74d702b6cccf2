"""A driver that has lost its study writes nothing more to MLflow, whatever it was about to do."""

import pytest
from mlflow import MlflowClient

from nlgraft.basics.errors import StudyLockedError
from nlgraft.tracking.connection import connect, fenced_client

ANOTHER = "another driver writes this study"


@pytest.fixture
def uri(tmp_path):
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_each_request_that_writes_asks_and_reading_does_not(uri):
    is_ours = True
    client = connect(uri, "study", "f" * 64, {}, may_write=lambda: is_ours).client
    experiment = client.get_experiment_by_name("study").experiment_id
    run = client.create_run(experiment, tags={"by": "older"})
    is_ours = False
    before = client.get_run(run.info.run_id).to_dictionary()
    for write in (
        lambda: client.create_run(experiment),
        lambda: client.set_tag(run.info.run_id, "by", "older, later"),
        lambda: client.log_metric(run.info.run_id, "dev/score", 1.0),
        lambda: client.set_terminated(run.info.run_id, "KILLED"),
        lambda: client.log_text(run.info.run_id, "text", "a.txt"),
        lambda: client.delete_run(run.info.run_id),
        lambda: client.set_experiment_tag(experiment, "by", "older, later"),
    ):
        with pytest.raises(StudyLockedError, match=ANOTHER):
            write()
    assert client.get_run(run.info.run_id).to_dictionary() == before
    assert len(client.search_runs([experiment])) == 1
    assert list(client.list_artifacts(run.info.run_id)) == []


def test_a_run_that_was_created_by_a_request_on_its_way_is_deleted(uri):
    """Stopped between the question and the request: the other driver has created the run by now."""
    plain = MlflowClient(uri)
    experiment = plain.create_experiment("study")
    answers = iter([True, False])
    with pytest.raises(StudyLockedError, match=ANOTHER):
        fenced_client(plain, lambda: next(answers)).create_run(experiment)
    assert plain.search_runs([experiment]) == []
