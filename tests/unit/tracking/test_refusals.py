"""A tracking server that refuses its user is no server that is away."""

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from tests.proxies import listening


@pytest.fixture
def refusing(request):
    """The address of a server that answers every request with one status, as MLflow's basic-auth does."""
    with listening("") as server:
        server.fault = request.param
        yield server.address


@pytest.mark.parametrize("refusing", ["401", "403"], indirect=True)
def test_a_user_whom_the_server_refuses_is_told_before_anything_runs(refusing, toy, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "geheim")
    tracker = MlflowTracker(refusing, "demo")
    with pytest.raises(
        StudyError, match=r"refuses the user 'ada' \(status 40[13]\).*MLFLOW_TRACKING_PASS"
    ) as refusal:
        tracker.start_study(toy.study, toy.fingerprint, toy.cells)
    assert "geheim" not in str(refusal.value)
    assert tracker.close() == 0
    assert caplog.text == ""


@pytest.mark.parametrize("refusing", ["500"], indirect=True)
def test_a_server_that_fails_stops_no_study(refusing, toy, caplog):
    tracker = MlflowTracker(refusing, "demo")
    tracker.start_study(toy.study, toy.fingerprint, toy.cells)
    assert tracker.close() == 3
    assert "training continues" in caplog.text
