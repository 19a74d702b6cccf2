"""What Tune asks for and reports, and what the queue hears of it."""

import json
from types import SimpleNamespace

import pytest

from nlgraft.execution import tune_searcher
from nlgraft.execution.sweep_board import LEFT_OUT, Outcome
from nlgraft.execution.trainable import OUTCOME, REASON, REPORT, STEP, TRIAL_ID, VALUE
from nlgraft.execution.tune_searcher import TuneSearcher
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord


class Queue:
    """A queue of prepared trials that notes what it is told."""

    def __init__(self, *trials, num_following=0, num_idle=0):
        self.trials = list(trials)
        self.num_following = num_following
        self.num_idle = num_idle
        self.calls = []
        self.stop_reason = None
        self.is_done = False

    def take(self):
        return self.trials.pop(0) if self.trials else None

    def take_following(self, first):
        return [self.trials.pop(0) for _ in self.trials[: self.num_following]]

    def check_budget(self):
        self.calls.append("check_budget")

    def lost(self, trial, reason, stages=()):
        return (reason, list(stages)) if stages else f"lost: {reason}"

    def __getattr__(self, name):
        return lambda trial, *args, **kwargs: self.calls.append(
            (name, trial.fingerprint, *args, *kwargs.values())
        )


def trial(name):
    return SimpleNamespace(fingerprint=name, key=name, graph=SimpleNamespace(stages=[]))


class Bench:
    def __init__(self, store, *trials, max_batches=100, **options):
        self.queue, self.requests, self.checks = Queue(*trials, **options), [], []
        self.ended = {}
        self.num_begun = {}
        self.freed = []
        self.assigned = {}
        self.searcher = TuneSearcher(self.queue, store, self, self.checks.append, max_batches)

    def assign(self, batch_id, trials):
        self.assigned[batch_id] = "".join(trial.fingerprint for trial in trials)

    def withdraw(self, batch_id):
        self.requests.append((batch_id, "withdraw"))
        return self.num_begun[batch_id]

    def outcomes(self, batch_id):
        self.freed.append(batch_id)
        return self.ended.get(batch_id, [])

    def request_stop(self, batch_id, reason):
        self.requests.append((batch_id, reason))


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")


def test_it_hands_out_trials_until_the_queue_is_done(store):
    bench = Bench(store, trial("x"))
    assert bench.searcher.suggest("t1") == {TRIAL_ID: "t1"}
    assert bench.assigned == {"t1": "x"}
    assert bench.searcher.suggest("t2") is None
    bench.queue.is_done = True
    assert bench.searcher.suggest("t3") == "FINISHED"
    assert bench.checks == [False] * 3
    assert bench.searcher.trial_of("t1").fingerprint == "x"
    assert bench.searcher.trial_of("t2") is None


def test_reports_reach_the_queue(store):
    bench = Bench(store, trial("x"))
    bench.searcher.suggest("t1")
    event = {"key": "x", "stage": "train", "step": 3, "metrics": {"dev/loss": 0.5}, "unix_ms": 1000}
    report = {REPORT: json.dumps(event), STEP: 3}
    bench.searcher.on_trial_result("t1", report)
    assert bench.queue.calls == [("progress", "x", "train", 3, {"dev/loss": 0.5}, 1000)]
    bench.searcher.on_trial_result("t1", {**report, VALUE: 0.5})
    assert bench.queue.calls[2:] == [("intermediate", "x", 0.5, 3)]
    bench.searcher.on_trial_result("t1", {OUTCOME: "ended"})
    bench.searcher.on_trial_result("unknown", report)
    assert len(bench.queue.calls) == 3


LOST = "lost: the worker process died: out of memory, a crash in native code, or the trial left Python"
ENDED, RECORDED = {OUTCOME: "ended"}, Outcome("ended")


@pytest.mark.parametrize(
    "outcomes, result, is_error, call",
    [
        ([Outcome("busy", "another")], ENDED, False, ("defer", "x", "another")),
        ([Outcome("killed", "disk full")], ENDED, False, ("kill", "x", "disk full")),
        ([Outcome("lost", "too often")], ENDED, False, ("end", "x", "lost: too often")),
        ([RECORDED], ENDED, False, ("end", "x", "record")),
        ([RECORDED], None, True, ("end", "x", "record")),  # lost after it had told its end
        ([], ENDED, True, ("end", "x", LOST)),
        ([], None, False, ("end", "x", LOST)),
        ([], {}, False, ("end", "x", LOST)),
        ([], {OUTCOME: "killed", REASON: "no driver"}, False, ("kill", "x", "no driver")),
    ],
)
def test_the_end_of_a_trial(
    store,
    outcomes,
    result,
    is_error,
    call,
):
    record = TrialRecord(fingerprint="x", config={}, seed=1, state="finished")
    store.records.write("trials", "x", record.to_json())
    bench = Bench(store, trial("x"))
    bench.searcher.suggest("t1")
    bench.ended["t1"] = outcomes
    bench.searcher.on_trial_complete("unknown", result)
    bench.searcher.on_trial_complete("t1", result, error=is_error)
    expected = record if call[2] == "record" else call[2]
    assert bench.queue.calls == [(*call[:2], expected)]
    assert bench.searcher.trial_of("t1") is None
    assert bench.freed == ["t1"]
    assert bench.checks == [False] + [True] * is_error


def test_of_a_batch_whose_process_died_one_trial_is_lost_and_the_rest_goes_back(store):
    record = TrialRecord(fingerprint="a", config={}, seed=1, state="finished")
    store.records.write("trials", "a", record.to_json())
    bench = Bench(store, *map(trial, "abcd"), num_following=3)
    bench.searcher.suggest("t1")
    assert bench.assigned == {"t1": "abcd"}
    bench.ended["t1"] = [RECORDED]
    bench.searcher.on_trial_complete("t1", None, error=True)
    assert bench.queue.calls == [
        ("end", "a", record),
        ("end", "b", LOST),
        ("give_back", "d"),  # each goes to the front
        ("give_back", "c"),
    ]


def test_a_sweep_that_stops_ends_what_runs_and_takes_back_the_rest_of_a_batch(store):
    bench = Bench(store, *map(trial, "abc"), num_following=2)
    bench.searcher.suggest("t1")
    bench.queue.stop_reason = "the budget is spent"
    bench.num_begun["t1"] = 1
    bench.searcher.suggest("t2")
    assert bench.requests == [("t1", "withdraw"), ("t1", "the budget is spent")]
    assert bench.queue.calls == [("give_back", "c"), ("give_back", "b")]
    bench.ended["t1"] = [Outcome("killed", "the budget is spent")]
    bench.searcher.on_trial_complete("t1", ENDED)
    assert bench.queue.calls[2:] == [("kill", "a", "the budget is spent")]


def test_an_idle_worker_gets_what_has_not_begun_of_a_batch_that_takes_long(store, monkeypatch):
    clock = SimpleNamespace(s=100.0)
    monkeypatch.setattr(tune_searcher, "time", SimpleNamespace(monotonic=lambda: clock.s))
    bench = Bench(store, *map(trial, "abcd"), num_following=3, num_idle=1)
    bench.searcher.suggest("t1")
    bench.num_begun["t1"] = 2
    assert bench.searcher.suggest("t2") is None
    assert bench.requests == [], "short batches are left alone"
    clock.s += 60.0
    assert bench.searcher.suggest("t2") is None
    assert bench.searcher.suggest("t2") is None
    assert bench.requests == [("t1", "withdraw")]
    assert bench.queue.calls == [("give_back", "d"), ("give_back", "c")]


def test_trials_of_a_host_that_is_left_out_run_elsewhere(store):
    """The batch keeps its place, without trials, until none is left."""
    bench = Bench(store, trial("a"), trial("b"), trial("c"), num_following=2)
    bench.searcher.suggest("t1")
    bench.num_begun["t1"] = 1
    bench.searcher.on_trial_result("t1", {OUTCOME: LEFT_OUT, REASON: "full"})
    assert bench.queue.calls == [("give_back", "c", ""), ("give_back", "b", "full")]
    bench.queue.is_done = True
    assert bench.searcher.suggest("t2") == "FINISHED"
    assert bench.requests[-1] == ("t1", "no trial is left")
    bench.ended["t1"] = [RECORDED]
    bench.searcher.on_trial_complete("t1", {OUTCOME: "ended"})
    assert [call[:2] for call in bench.queue.calls[2:]] == [("end", "a")]
