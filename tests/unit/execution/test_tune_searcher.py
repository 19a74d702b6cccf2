"""What Tune asks for and reports, and what the queue hears of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nlgraft.execution.report_keys import METRICS, OUTCOME, OWNER, REASON, STAGE, STEP, UNIX_MS, VALUE
from nlgraft.execution.tune_searcher import TuneSearcher
from nlgraft.pipeline.stage import KillReason
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord


class Queue:
    """A queue of prepared trials that notes what it is told."""

    def __init__(self, *trials: Any) -> None:
        self.trials = list(trials)
        self.told: list[Any] = []
        self.stop_reason: str | None = None
        self.is_done = False

    def take(self) -> Any:
        return self.trials.pop(0) if self.trials else None

    def check_budget(self) -> None:
        self.told.append("check_budget")

    def lost(self, trial: Any, reason: str) -> str:
        return f"lost: {reason}"

    def __getattr__(self, name: str) -> Any:
        return lambda trial, *args: self.told.append((name, trial.fingerprint, *args))


def trial(name: str) -> Any:
    return SimpleNamespace(fingerprint=name)


class Bench:
    def __init__(self, store: ArtifactStore, *trials: Any, max_trials: int = 100) -> None:
        self.queue, self.requests, self.checks, self.forgotten = Queue(*trials), [], [], []
        self.searcher = TuneSearcher(self.queue, store, self, max_trials)

    def config_for(self, trial: Any, trial_id: str) -> dict[str, Any]:
        return {"spec": f"{trial.fingerprint} under {trial_id}"}

    def forget(self, trial_id: str) -> None:
        self.forgotten.append(trial_id)

    def request_stop(self, trial_id: str, reason: str) -> None:
        self.requests.append((trial_id, reason))

    def check(self, **flags: bool) -> None:
        self.checks.append(flags)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore.open(tmp_path / "store")


def test_it_hands_out_trials_until_the_queue_is_done(store: ArtifactStore) -> None:
    bench = Bench(store, trial("x"))
    assert bench.searcher.suggest("t1") == {"spec": "x under t1"}
    assert bench.searcher.suggest("t2") is None
    bench.queue.is_done = True
    assert bench.searcher.suggest("t3") == "FINISHED"
    assert bench.checks == [{}] * 3
    assert bench.searcher.trial_of("t1").fingerprint == "x"
    assert bench.searcher.trial_of("t2") is None


def test_it_hands_out_no_more_than_it_may(store: ArtifactStore) -> None:
    bench = Bench(store, trial("x"), trial("y"), trial("z"), max_trials=2)
    assert [bench.searcher.suggest("t1"), bench.searcher.suggest("t2")] == [
        {"spec": "x under t1"},
        {"spec": "y under t2"},
    ]
    assert bench.searcher.is_spent
    assert bench.searcher.suggest("t3") is None  # two are running
    assert bench.queue.told == ["check_budget"]
    bench.searcher.on_trial_complete("t1", error=True)
    bench.searcher.on_trial_complete("t2", error=True)
    assert bench.searcher.suggest("t3") == "FINISHED"
    assert [left.fingerprint for left in bench.queue.trials] == ["z"]


def test_what_runs_is_asked_once_to_end_when_the_queue_stops(store: ArtifactStore) -> None:
    bench = Bench(store, trial("x"), trial("y"))
    bench.searcher.suggest("t1")
    assert bench.requests == []
    bench.queue.stop_reason = "the budget is spent"
    bench.searcher.suggest("t2")
    bench.searcher.suggest("t3")
    assert bench.requests == [("t1", "the budget is spent")]
    assert isinstance(bench.requests[0][1], KillReason)


def test_reports_reach_the_queue(store: ArtifactStore) -> None:
    bench = Bench(store, trial("x"))
    bench.searcher.suggest("t1")
    report = {STAGE: "train", STEP: 3, METRICS: json.dumps({"dev/loss": 0.5}), UNIX_MS: 1000}
    bench.searcher.on_trial_result("t1", report)
    assert bench.queue.told == [("progress", "x", "train", 3, {"dev/loss": 0.5}, 1000)]
    bench.searcher.on_trial_result("t1", {**report, VALUE: 0.5})
    assert bench.queue.told[2:] == [("intermediate", "x", 0.5, 3)]
    bench.searcher.on_trial_result("t1", {OUTCOME: "ended"})
    bench.searcher.on_trial_result("unknown", report)
    assert len(bench.queue.told) == 3


LOST = "lost: the worker process died: out of memory, a crash in native code, or the trial left Python"


@pytest.mark.parametrize(
    "result, is_error, told",
    [
        ({OUTCOME: "busy", OWNER: "another"}, False, ("defer", "x", "another")),
        ({OUTCOME: "killed", REASON: "disk full"}, False, ("kill", "x", "disk full")),
        ({OUTCOME: "ended"}, False, ("end", "x", "record")),
        ({OUTCOME: "ended"}, True, ("end", "x", LOST)),
        (None, False, ("end", "x", LOST)),
        ({}, False, ("end", "x", LOST)),
    ],
)
def test_the_end_of_a_trial(
    store: ArtifactStore, result: dict[str, Any] | None, is_error: bool, told: tuple[str, ...]
) -> None:
    record = TrialRecord(fingerprint="x", config={}, seed=1, state="finished")
    store.write_record("trials", "x", record.to_json())
    bench = Bench(store, trial("x"))
    bench.searcher.suggest("t1")
    bench.searcher.on_trial_complete("unknown", result)
    bench.searcher.on_trial_complete("t1", result, error=is_error)
    expected = record if told[2] == "record" else told[2]
    assert bench.queue.told == [(*told[:2], expected)]
    assert bench.searcher.trial_of("t1") is None
    assert bench.forgotten == ["t1"]
    assert bench.checks == [{}] + [{"is_suspect": True}] * is_error


def test_tune_pickles_nothing_of_it(store: ArtifactStore) -> None:
    assert Bench(store).searcher.__getstate__() == {}
