"""The Python API on a real Ray: waiting, not waiting, one trial without Ray."""

from __future__ import annotations

import io
from typing import Any

import pytest

import nlgraft
from nlgraft import api
from nlgraft.basics.errors import StudyError
from nlgraft.commands.progress import LineReporter
from nlgraft.execution.events import TrialEnded


@pytest.mark.usefixtures("ray_cluster")
def test_a_handle_tells_events_and_gives_the_result(toy_document: dict[str, Any]) -> None:
    study = nlgraft.Study.from_dict(toy_document)
    handle = nlgraft.launch(study, wait=False)
    assert "toy" in repr(handle)
    assert ".result()" in repr(handle)
    ended = [event.record.state for event in handle.events() if isinstance(event, TrialEnded)]
    assert ended == ["finished"] * 4
    assert list(handle.events()) == [], "the events are told once"
    assert handle.status()["counts"]["finished"] == 4
    result = handle.result(timeout_s=60)
    frame = result.frame()
    assert len(frame) == 4
    comparison = result.compare("gain=1.0", "baseline", metric="test/score")
    assert comparison.difference == pytest.approx(10.0)
    assert nlgraft.load(study).to_json()["cells"] == result.to_json()["cells"]
    fewer = nlgraft.launch(study, only=["gain=0.0"])
    assert fewer.invocation.num_reused == 2


def test_one_trial_runs_in_this_process(toy_document: dict[str, Any]) -> None:
    lines = io.StringIO()
    study = nlgraft.Study.from_dict(toy_document)
    record = api.run_one(study, "gain=1.0", 2, LineReporter(lines))
    assert record.metrics["dev/score"] == pytest.approx(13.2)
    assert "training step 3" in lines.getvalue()
    with pytest.raises(StudyError, match="gain"):
        api.run_one(study, "gian=1.0", None, LineReporter(lines))
