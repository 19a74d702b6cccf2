import time

import pytest

from nlgraft.tracking.entries import BestModel, Point, RunEntry, RunKey
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from nlgraft.tracking.writer import Writer
from tests.processes import patient, wait_until


class FakeStore:
    """A store in memory that can be away, refuse one run, or take its time."""

    def __init__(self):
        self.runs = {}
        self.writes = []
        self.is_away = False
        self.refused = set()
        self.delay_s = 0.0
        self.num_connects = 0
        self.num_forgets = 0
        self.orphans = []
        self.asked = []
        self.num_noted = 0
        self.held = None

    def connect(self, *_):
        self.num_connects += 1
        self._answer()
        return self

    def write(self, entry):
        self._answer()
        if entry.key.fingerprint in self.refused:
            raise ValueError("param train.peak_lr changed")
        earlier = self.runs.get(entry.key)
        self.runs[entry.key] = earlier.merge(entry) if earlier else entry
        self.writes.append(entry.key.fingerprint)

    def end_orphans(self, active):
        self._answer()
        self.orphans.append(set(active))
        return 0

    def holds(self, entries):
        self._answer()
        self.asked.append([entry.key.fingerprint for entry in entries])
        return self.asked[-1] == self.held

    def note_held(self):
        self._answer()
        self.num_noted += 1

    def is_reachable(self):
        return not self.is_away

    def forget(self):
        self.num_forgets += 1

    def _answer(self):
        time.sleep(self.delay_s)
        if self.is_away:
            raise ConnectionError("refused")


def entry(fingerprint="a", **fields):
    return RunEntry(key=RunKey("trial", "c", fingerprint), **fields)


def point(step):
    return Point("train/loss", 1.0, 1000 + step, step)


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def writer(store):
    return Writer(store.connect, set, "the store", first_pause_s=0.01)


def test_runs_are_written_in_the_order_they_came(store, writer):
    for fingerprint in "abc":
        writer.put(entry(fingerprint))
    writer.start(60)
    assert writer.close(60) == 0
    assert store.writes == ["a", "b", "c"]


def test_a_store_that_is_away_is_warned_of_once_and_told_everything_in_order_later(store, writer, caplog):
    """Training does not stop; buffered and replayed in order."""
    store.is_away = True
    writer.put(RunEntry(key=RunKey("study", "", "study"), tags={"state": "running"}, status="RUNNING"))
    began = time.monotonic()
    writer.start(60)
    assert time.monotonic() - began < patient(20)  # found away, not waited for
    for step in range(100):
        writer.put(entry("trial", curve=[point(step)]))
    writer.put(entry("trial", status="FINISHED"))
    time.sleep(0.2)
    assert caplog.text.count("does not respond") == 1
    store.is_away = False
    wait_until(lambda: len(store.writes) == 2)
    assert writer.close(60) == 0
    assert store.writes == ["study", "trial"]
    (trial,) = [run for key, run in store.runs.items() if key.fingerprint == "trial"]
    assert [p.step for p in trial.curve] == list(range(100))
    assert trial.status == "FINISHED"
    assert "responds again" in caplog.text


def test_close_tries_once_more_and_says_what_is_missing(store, writer, caplog):
    store.is_away = True
    writer.put(entry("a"))
    writer.put(entry("b"))
    writer.start(60)
    began = time.monotonic()
    assert writer.close(60) == 2
    assert store.num_noted == 0
    assert time.monotonic() - began < patient(10)
    assert "lacks a part of 2 runs" in caplog.text


def test_a_run_that_the_store_refuses_holds_up_no_other(store, writer, caplog):
    store.refused = {"bad"}
    for fingerprint in ("bad", "good"):
        writer.put(entry(fingerprint, name=fingerprint))
    writer.start(60)
    wait_until(lambda: store.writes == ["good"])
    wait_until(lambda: "rejects the trial run bad: param train.peak_lr changed" in caplog.text)
    assert writer.close(60) == 1
    assert caplog.text.count("rejects") == 1


def test_values_of_a_running_trial_are_written_together(store):
    writer = Writer(store.connect, set, "the store", live_pause_s=60)
    writer.start(60)
    writer.put(entry("a", status="RUNNING"))
    writer.put(entry("b", status="FINISHED"))  # held up by no other run
    wait_until(lambda: store.writes == ["b"])
    writer._due_s[entry("a").key] = 0.0  # a minute has passed
    writer.put(entry("c", status="FINISHED"))
    wait_until(lambda: store.writes == ["b", "a", "c"])
    for step in range(50):
        writer.put(entry("a", curve=[point(step)]))
    writer.put(entry("d", status="FINISHED"))
    wait_until(lambda: store.writes == ["b", "a", "c", "d"])
    assert writer.close(60) == 0
    assert store.writes == ["b", "a", "c", "d", "a"]
    assert len(store.runs[entry("a").key].curve) == 50


def test_a_trial_that_ends_soon_is_written_once_and_then_forgotten(store):
    writer = Writer(store.connect, set, "the store", live_pause_s=60)
    writer.start(60)
    for fingerprint in "abc":
        writer.put(entry(fingerprint, status="RUNNING"))
        writer.put(entry(fingerprint, curve=[point(1)]))
        writer.put(entry(fingerprint, status="FINISHED"))
    wait_until(lambda: len(store.writes) == 3)
    assert store.writes == ["a", "b", "c"]
    assert writer.close(60) == 0
    assert not writer._due_s


def test_a_slow_store_delays_no_caller_and_close_keeps_its_time(store, writer):
    """A server that takes 10 s for each answer."""
    store.delay_s = 60.0
    began = time.monotonic()
    writer.start(0.1)
    for step in range(1000):
        writer.put(entry("a", curve=[point(step)]))
    assert writer.close(0.2) == 1
    assert time.monotonic() - began < patient(20)


def test_no_method_of_the_tracker_raises_or_waits_while_mlflow_is_away(store, toy):
    store.is_away = True
    tracker = MlflowTracker("http://127.0.0.1:9", "demo", connect=store.connect)
    began = time.monotonic()
    tracker.start_study(toy.study, toy.fingerprint, toy.cells)
    for trial in toy.trials:
        tracker.trial_started(trial)
        for step in range(100):
            tracker.trial_metrics(trial, step, {"train/loss": 1.0}, step)
        tracker.trial_ended(trial, toy.record(trial))
    tracker.finish_study(toy.result(), "note")
    tracker.interrupt()
    assert time.monotonic() - began < patient(10)
    assert tracker.close(60) == 1 + 2 + 4


def test_nothing_is_written_once_another_driver_has_taken_over(store, caplog):
    owner = [True]
    writer = Writer(store.connect, set, "the store", lambda: owner[0], first_pause_s=0.01)
    writer.start(60)
    writer.put(entry("a"))
    wait_until(lambda: store.writes == ["a"])
    owner[0] = False
    writer.put(entry("b"))
    writer.put(entry("c"))
    assert writer.close(60) == 0
    assert store.writes == ["a"]
    assert "lacks" not in caplog.text


@pytest.mark.parametrize("held, written", [(["a", "b"], ["c"]), (["a"], ["a", "b", "c"])])
def test_trials_of_earlier_runs_are_asked_for_at_once_and_written_unless_all_are_there(
    store, writer, held, written
):
    store.held = held
    writer.put_earlier([entry("a", status="FINISHED"), entry("b", status="FINISHED")])
    writer.start(60)
    wait_until(lambda: store.asked)
    writer.put(entry("c", status="FINISHED"))
    assert writer.close(60) == 0
    assert store.asked == [["a", "b"]]
    assert sorted(store.writes) == written
    assert store.num_noted == 1


def test_trials_of_earlier_runs_are_not_lost_while_the_store_is_away(store, writer):
    store.is_away = True
    writer.start(60)
    writer.put_earlier([entry("a", status="FINISHED")])
    time.sleep(0.1)
    store.is_away = False
    assert writer.close(60) == 0
    assert store.writes == ["a"]


def test_ended_trials_are_written_several_at_a_time(store):
    writer = Writer(store.connect, set, "the store", first_pause_s=0.01, num_at_once=4)
    store.delay_s = 0.05
    store.refused = {"7"}
    for number in range(100):
        writer.put(entry(str(number), status="FINISHED"))
    began = time.monotonic()
    writer.start(60)
    assert writer.close(60) == 1
    assert time.monotonic() - began < patient(100 * 0.05)
    assert sorted(store.writes, key=int) == [str(number) for number in range(100) if number != 7]


def test_results_are_written_before_the_trials_for_which_there_may_be_no_time(store, writer):
    store.delay_s = 0.05
    for number in range(100):
        writer.put(entry(str(number), status="FINISHED"))
    model = BestModel("90", lambda: None)
    writer.put(RunEntry(key=RunKey("cell", "c", "cell"), status="FINISHED"))
    writer.put(RunEntry(key=RunKey("study", "", "study"), status="FINISHED", model=model))
    writer.start(60)
    missing = writer.close(1.0)
    assert 0 < missing <= 100
    written = list(store.writes)
    assert written.index("90") < written.index("cell") < written.index("study")
