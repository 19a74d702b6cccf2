"""The Python API without Ray."""

import io

import pytest

import nlgraft
from nlgraft import api
from nlgraft.basics.errors import StudyError
from nlgraft.commands.progress import LineReporter


def test_one_trial_runs_in_this_process(toy_document):
    lines = io.StringIO()
    study = nlgraft.Study.from_dict(toy_document)
    record = api.run_one(study, "gain=1.0", 2, LineReporter(lines))
    assert record.metrics["dev/score"] == pytest.approx(13.2)
    assert "training step 3" in lines.getvalue()
    with pytest.raises(StudyError, match="gain"):
        api.run_one(study, "gian=1.0", None, LineReporter(lines))
