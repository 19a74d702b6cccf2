"""The time that a sweep still takes, by hand."""

from types import SimpleNamespace

import pytest

from nlgraft.execution.events import SweepTrial
from nlgraft.execution.forecast import Forecast
from nlgraft.pipeline.stage import Stage, StageGraph, Work
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import Cell

SECONDS = {"up": 100, "tune": 10, "score": 1}
COSTS = {name: SimpleNamespace(mean_duration_s=seconds) for name, seconds in SECONDS.items()}
WORK = Work(num_steps=50, tokens_per_step=1, num_parameters=1)


def trial(seed):
    """up (shared by all) -> tune -> score."""
    up = Stage(name="up", run="a:b", work=WORK)
    tune = Stage(name="tune", run="a:b", inputs={"up": up}, seed=seed)
    score = Stage(name="score", run="a:b", inputs={"tune": tune})
    cell = Cell({}, {}, True, "baseline")
    return SweepTrial(kind="replicate", cell=cell, seed=seed, config={}, graph=StageGraph(score))


TRIALS = [trial(seed) for seed in range(4)]
UP = TRIALS[0].graph.find("up")


def record(of, **seconds):
    stages = [{"name": name, "decision": "run", "duration_s": value} for name, value in seconds.items()]
    return TrialRecord(fingerprint=of.fingerprint, config={}, seed=0, state="finished", stages=stages)


def test_a_shared_stage_counts_once_and_the_longest_chain_is_the_least():
    forecast = Forecast(2, COSTS)
    # 100 once, 4 x 11 on two workers: 72; but the first trial alone takes 100 + 10 + 1
    assert forecast.left(TRIALS[:1], TRIALS[1:], (), 0, 0.0) == (111.0, False)
    assert forecast.left((), TRIALS, {UP.fingerprint}, 0, 0.0) == (22.0, False)
    assert forecast.left((), (), (), 0, 0.0) == (0.0, False)


def test_what_this_sweep_measured_counts_before_earlier_runs():
    forecast = Forecast(1, COSTS)
    forecast.ended(TRIALS[0], record(TRIALS[0], up=5.0, tune=2.0, score=1.0))
    assert forecast.left((), TRIALS[1:], {UP.fingerprint}, 0, 0.0) == (9.0, False)
    # trials that a search has not proposed yet are taken to cost what ended ones cost themselves
    assert forecast.left((), TRIALS[1:], {UP.fingerprint}, 2, 0.0) == (9.0 + 2 * 8.0, False)


def test_the_step_of_a_running_stage_says_how_long_it_takes():
    forecast = Forecast(1, {"tune": COSTS["tune"]})
    left_s, is_bound = forecast.left(TRIALS[:1], (), (), 0, 0.0)
    assert (left_s, is_bound) == (10.0, True), "neither up nor score has been timed"
    forecast.progress(TRIALS[0], UP, 10, 100.0)
    forecast.progress(TRIALS[0], UP, 20, 105.0)  # half a second a step, thirty are left
    assert forecast.left(TRIALS[:1], (), (), 0, 105.0)[0] == pytest.approx(15.0 + 10.0)
    assert forecast.left(TRIALS[:1], (), (), 0, 109.0)[0] == pytest.approx(11.0 + 10.0)
    assert forecast.left((), TRIALS[1:2], (), 0, 109.0)[0] == pytest.approx(11.0 + 10.0)
