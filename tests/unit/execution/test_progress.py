"""What a person sees of a running sweep, in a log and in a terminal."""

import io
from dataclasses import replace

import pytest

from nlgraft.commands.progress import Progress
from nlgraft.execution.events import (
    CellSearched,
    Notice,
    Outlook,
    SweepStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
)
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial

GRAPH = StageGraph(Stage(name="training", run="a:b"))
TRIAL = SweepTrial(cell=Cell({}, {}, True, "baseline"), seed=1, config={}, graph=GRAPH)
METRICS = {"dev/bleu": 20.0, "dev/loss": 3.0, "test/bleu": 21.5, "test/chrf": 50.0}
ENDED = TrialRecord(fingerprint=GRAPH.fingerprint, config={}, seed=1, state="finished", metrics=METRICS)


@pytest.fixture
def screen():
    return Screen()


class Screen:
    """A log with a clock that is set by hand."""

    def __init__(self):
        self.now_s = 0.0
        self.stream = io.StringIO()
        self.progress = Progress(self.stream, ["test/bleu", "dev/bleu"], lambda: self.now_s)

    def show(self, *events):
        for event in events:
            self.progress.show(event)
        return self.stream.getvalue().splitlines()

    def picture(self):
        return self.progress._picture().plain.splitlines()


def test_the_start_is_not_silent(screen):
    assert screen.picture() == ["starting ...", "0:00 so far"]
    screen.now_s = 12
    assert screen.show(Notice("starting Ray on this machine")) == ["starting Ray on this machine"]
    assert screen.picture() == ["starting Ray on this machine ...", "0:12 so far"]


def test_the_best_values_of_a_search_are_shown_as_overrides_are_written(screen):
    """Read back, `intermediate=None` would be text."""
    params = {"intermediate": None, "is_shared": True, "method": "vipi", "train.peak_lr": 0.001}
    assert screen.show(CellSearched(TRIAL.cell, params)) == [
        "searched  baseline: best: intermediate=null, is_shared=true, method=vipi, train.peak_lr=0.001"
    ]


KILLED = replace(ENDED, state="killed", reason="interrupted", metrics={})


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ENDED, "finished  baseline, seed 1: dev/bleu 20 [1 of 1 trial, 0:00 so far]"),
        (KILLED, "killed    baseline, seed 1: interrupted [0 of 1 trial, 0:00 so far]"),
    ],
)
def test_the_end_of_a_trial_shows_no_test_score_and_a_killed_one_is_not_done(screen, record, line):
    lines = screen.show(SweepStarted(1, 0, 1), TrialEnded(TRIAL, record))
    assert lines == ["1 trial planned, 0 finished before, 1 at once", line]


def test_steps_waiting_and_the_time_left_are_said(screen):
    report = TrialProgress(TRIAL, "training", 300, {"train/loss": 2.5}, 0, num_steps=2000)
    outlook = Outlook(1, {"upstream": 3}, left_s=90.0)
    lines = screen.show(SweepStarted(4, 1, 2, 3), TrialStarted(TRIAL), report, outlook)
    assert lines[0].startswith("4 trials planned, 1 finished before, 3 stages")
    assert lines[-1] == "waiting   3 trials for upstream, which is being computed"
    assert screen.picture() == [
        "baseline, seed 1: training step 300 of 2000, train/loss 2.5",
        "waiting: 3 trials for upstream, which is being computed",
        "0 of 4 trials, 0:00 so far, about 2 min left",
    ]
    screen.now_s = 30
    assert screen.picture()[-1] == "0 of 4 trials, 0:30 so far, about 60 s left"
    fewer = Outlook(1, {"upstream": 2}, left_s=90.0)
    assert screen.show(fewer)[-1] == lines[-1], "said once"
    screen.now_s = 61
    assert screen.show(report)[-1].startswith("running   baseline, seed 1: training step 300 of 2000,")
    assert len(screen.show(report)) == len(screen.show(report)), "at most once a minute"


def test_a_time_that_is_unknown_or_over_is_no_number(screen):
    screen.show(SweepStarted(4, 0, 2), TrialStarted(TRIAL), Outlook(1, {}, left_s=None))
    assert screen.picture()[-1] == "0 of 4 trials, 0:00 so far, time left unknown"
    screen.show(Outlook(1, {}, left_s=5.0))
    screen.now_s = 30
    assert screen.picture()[-1] == "0 of 4 trials, 0:30 so far, about to end"


def test_nobody_waits_for_a_stage_while_all_workers_are_busy(screen):
    screen.show(SweepStarted(4, 0, 1), Outlook(1, {"upstream": 3}, left_s=None))
    assert "waiting" not in screen.stream.getvalue()
