"""The model of a training step on several workers, by hand."""

from math import pi, sqrt
from types import SimpleNamespace

import pytest

from nlgraft.pipeline.stage import Stage, Work
from nlgraft.pipeline.store import StageCost
from nlgraft.study.data.plan import StepTime, expected_maximum
from nlgraft.study.planning.cost import step_times
from nlgraft.study.planning.planner import plan
from nlgraft.study.public import Study


@pytest.mark.parametrize("number, known", [(1, 0.0), (2, 1 / sqrt(pi)), (3, 1.5 / sqrt(pi)), (8, 1.4236)])
def test_the_slowest_of_some_normal_draws(number, known):
    """Closed forms, and the table of Teichroew (1956) for eight."""
    assert expected_maximum(number) == pytest.approx(known, abs=1e-4)


def test_one_and_two_workers_are_what_was_measured_and_more_follow_the_formula():
    step = StepTime("training", one_s=0.8, two_s=0.55, line_s=0.1)  # so the slower is waited for 0.05 s
    assert step.parts(1) == pytest.approx({"compute": 0.8, "all-reduce": 0.0, "waiting": 0.0})
    assert step.parts(2) == pytest.approx({"compute": 0.4, "all-reduce": 0.1, "waiting": 0.05})
    assert step.parts(3) == pytest.approx({"compute": 0.8 / 3, "all-reduce": 0.4 / 3, "waiting": 0.075})
    assert "0.475 s (0.267 compute, 0.133 all-reduce, 0.075 waiting), 1.7 times as fast" in step.describe(3)


def test_without_a_time_of_two_workers_it_says_so_and_nobody_waits():
    step = StepTime("training", one_s=0.8, two_s=None, line_s=0.1)
    assert step.parts(8) == pytest.approx({"compute": 0.1, "all-reduce": 0.175, "waiting": 0.0})
    assert step.describe(8).endswith("0.8 s with one worker, not timed with two workers")


def test_two_on_one_machine_may_be_quicker_than_a_line_between_them():
    assert StepTime("training", one_s=0.8, two_s=0.41, line_s=0.1).parts(2)["waiting"] == 0.0


def training(**options):
    return Stage(name="training", run="m:f", config={}, is_distributed=True, work=Work(**options))


def test_a_step_is_a_share_of_a_stage_s_time_and_gradients_are_as_large_as_the_weights():
    stage = training(num_steps=100, tokens_per_step=1000, num_parameters=12_500_000)
    costs = {"training": StageCost(70.0, 1.0, 3, {1: 80.0, 2: 50.0, 4: 1.0})}
    [step] = step_times([stage, stage], costs)
    assert step == StepTime(
        "training", one_s=0.8, two_s=0.5, line_s=pytest.approx(0.04)
    )  # 400 Mbit, 10 Gbit/s
    assert step_times([stage], {"training": StageCost(70.0, 1.0, 3, {2: 50.0})}) == []
    assert step_times([training(num_steps=None, tokens_per_step=9, num_parameters=9)], costs) == []


def test_a_plan_without_such_times_says_what_is_missing(study: Study):
    store = SimpleNamespace(finished=lambda fingerprints: set(), durations=dict)
    notes = plan(study, store, num_nodes=8).notes
    assert [note for note in notes if note.startswith("no step on 8 nodes is modelled: the store has no")]


def test_a_plan_shows_measured_and_modelled_times_and_what_is_assumed(study: Study, monkeypatch):
    step = StepTime("finetune", one_s=0.8, two_s=0.55, line_s=0.1)
    monkeypatch.setattr("nlgraft.study.planning.planner.step_times", lambda stages, costs: [step])
    found = plan(study, num_nodes=3)
    assert dict(found.facts())["step of finetune, 3 nodes"] == step.describe(3)
    assert found.to_json()["step_times"] == [step.to_json(3)]
    [assumed] = [note for note in found.notes if "modelled" in note]
    assert "10 Gbit/s" in assumed
