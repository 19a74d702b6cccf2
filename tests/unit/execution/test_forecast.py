"""The time that a sweep still takes, by hand."""

import pytest

from nlgraft.execution.trial_queue import Forecast
from nlgraft.pipeline.stage import Stage, StageGraph, Work
from nlgraft.pipeline.store import StageCost
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial

SECONDS = {"up": 100, "tune": 10, "score": 1}
COSTS = {name: StageCost(seconds, 1.0) for name, seconds in SECONDS.items()}
WORK = Work(num_steps=50, tokens_per_step=1, num_parameters=1)


def trial(seed):
    """up (shared by all) -> tune -> score."""
    up = Stage(name="up", run="a:b", work=WORK)
    tune = Stage(name="tune", run="a:b", inputs={"up": up}, seed=seed)
    score = Stage(name="score", run="a:b", inputs={"tune": tune})
    cell = Cell({}, {}, True, "baseline")
    return SweepTrial(cell=cell, seed=seed, config={}, graph=StageGraph(score))


TRIALS = [trial(seed) for seed in range(4)]
UP = TRIALS[0].graph.find("up")


def record(of, **seconds):
    stages = [
        {"name": name, "fingerprint": of.graph.find(name).fingerprint, "decision": "run", "duration_s": value}
        for name, value in seconds.items()
    ]
    return TrialRecord(fingerprint=of.fingerprint, config={}, seed=0, state="finished", stages=stages)


def test_a_shared_stage_counts_once_and_the_longest_chain_is_the_least():
    forecast = Forecast(2, COSTS)
    # 100 once, 4 x 11 on two workers: 72; but the first trial alone takes 100 + 10 + 1
    assert forecast.left(TRIALS[:1], TRIALS[1:], (), 0) == 111.0
    assert forecast.left((), TRIALS, {UP.fingerprint}, 0) == 22.0
    assert forecast.left((), (), (), 0) == 0.0


def test_what_this_sweep_measured_counts_before_earlier_runs():
    forecast = Forecast(1, COSTS)
    forecast.ended(TRIALS[0], record(TRIALS[0], up=5.0, tune=2.0, score=1.0))
    assert forecast.left((), TRIALS[1:], {UP.fingerprint}, 0) == 9.0
    # trials that a search has not proposed yet are taken to cost what ended ones cost themselves
    assert forecast.left((), TRIALS[1:], {UP.fingerprint}, 2) == 9.0 + 2 * 8.0


def test_the_step_of_a_running_stage_says_how_long_it_takes():
    forecast = Forecast(1, {"tune": COSTS["tune"]})
    assert forecast.left(TRIALS[:1], (), (), 0) is None, "up has not been timed"
    forecast.progress(TRIALS[0], UP, 10, 100.0)
    forecast.progress(TRIALS[0], UP, 20, 105.0)  # half a second a step, thirty are left
    assert forecast.left(TRIALS[:1], (), (), 0) == pytest.approx(15.0 + 10.0)
    assert forecast.left((), TRIALS[1:2], (), 0) == pytest.approx(15.0 + 10.0)


def test_a_training_of_another_kind_is_estimated_by_its_size():
    """The first one takes twice as long as its size says; so will the other, which nobody has timed."""
    other = Stage(name="other", run="a:b", work=Work(num_steps=500, tokens_per_step=1, num_parameters=1))
    cell = Cell({}, {}, True, "baseline")
    trials = [
        TRIALS[0],
        SweepTrial(cell=cell, seed=9, config={}, graph=StageGraph(other)),
    ]
    forecast = Forecast(2, {})
    assert forecast.left(trials, (), (), 0) is None
    forecast.progress(TRIALS[0], UP, 0, 100.0)
    forecast.progress(TRIALS[0], UP, 10, 100.4)  # 0.04 s a step; its size says 0.02 s
    # the other takes 500 x 0.04 s, more than what is left of the first one
    assert forecast.left(trials, (), (), 0) == pytest.approx(20.0)
