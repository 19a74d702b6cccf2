"""Tune's schedulers decide per cell, and a decision to stop becomes a request."""

from types import SimpleNamespace

import pytest

from nlgraft.execution.trainable import STEP, VALUE
from nlgraft.execution.tune_searcher import CooperativeScheduler


class Inner:
    """A scheduler that notes what it is told and stops every trial from step 3 on."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda controller, trial, *result: self.calls.append((name, trial.trial_id))

    def on_trial_result(self, controller, trial, result):
        self.calls.append(("on_trial_result", trial.trial_id))
        return "STOP" if result[STEP] >= 3 else "PAUSE"


@pytest.fixture
def parts():
    """A scheduler of trials named after their cells, its inner ones in order, and what it requests."""
    inner = []
    requests = []

    def new():
        inner.append(Inner())
        return inner[-1]

    scheduler = CooperativeScheduler(
        lambda trial: trial.trial_id[0] if trial.trial_id[0] != "-" else None,
        new,
        lambda trial, reason: requests.append((trial.trial_id, reason)),
    )
    return scheduler, inner, requests


def test_a_stop_is_requested_once_and_tune_goes_on(parts):
    scheduler, inner, requests = parts
    trial = SimpleNamespace(trial_id="a1")
    results = [{STEP: 2, VALUE: 1.0}, {STEP: 3}, {STEP: 4, VALUE: 1.0}, {STEP: 5, VALUE: 1.0}]
    assert [scheduler.on_trial_result(None, trial, result) for result in results] == ["CONTINUE"] * 4
    assert requests == [("a1", "stopped by the trial scheduler at step 4")]
    assert inner[0].calls == [("on_trial_result", "a1")] * 2
    assert scheduler.__getstate__() == {}


def test_every_cell_has_a_scheduler_of_its_own_and_replicates_have_none(parts):
    scheduler, inner, requests = parts
    trials = [SimpleNamespace(trial_id=name) for name in ("a1", "b1", "a2", "-1")]
    for trial in trials:
        scheduler.on_trial_add(None, trial)
        assert scheduler.on_trial_result(None, trial, {STEP: 1, VALUE: 0.5}) == "CONTINUE"
        scheduler.on_trial_complete(None, trial, {STEP: 2, VALUE: 0.5})
        scheduler.on_trial_complete(None, trial, {"without": "a value"})
        scheduler.on_trial_error(None, trial)
        scheduler.on_trial_remove(None, trial)
    names = ["on_trial_add", "on_trial_result", "on_trial_complete", "on_trial_error", "on_trial_remove"]
    assert inner[0].calls == [(name, trial) for trial in ("a1", "a2") for name in names]
    assert inner[1].calls == [(name, "b1") for name in names]
    assert (len(inner), requests) == (2, [])
