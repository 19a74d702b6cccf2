"""The work queue without Ray: order, sharing, failure, budgets, search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from nlgraft.errors import StoreError, StudyLockedError, TrialFailed
from nlgraft.execution.events import (
    CellSearched,
    Driver,
    Event,
    LookTaken,
    Notice,
    Outlook,
    SweepStarted,
    SweepTrial,
    TrialEnded,
    TrialStarted,
)
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.execution.status import RunningRecord, read_status
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.execute import execute_stage
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial, trial_record
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.public import Study

ANY = TypeAdapter(dict[str, Any])


class Bench:
    """A queue with everything it says."""

    def __init__(
        self,
        document: dict[str, Any],
        max_concurrent: int = 2,
        **asked: Callable[[], Any],
    ) -> None:
        self.study = Study.from_dict(document)
        self.store = ArtifactStore.open(self.study.storage.path)
        self.events: list[Event] = []
        self.clock_s = 0.0
        self.queue = TrialQueue(
            self.study,
            self.store,
            cells(self.study),
            self.open_optuna,
            Driver(self.events.append, clock=lambda: self.clock_s, **asked),
            max_concurrent,
        )
        self.queue.open()

    def open_optuna(self, cell: Cell) -> OptunaStudy:
        assert self.study.search is not None
        return OptunaStudy(cell.label, self.study.search, self.study.objectives, None)

    def take(self) -> SweepTrial | None:
        self.clock_s += 10.0  # past every pause
        return self.queue.take()

    def run(self, trial: SweepTrial) -> TrialRecord:
        record = self.run_only(trial)
        self.queue.end(trial, record)
        return record

    def run_only(self, trial: SweepTrial) -> TrialRecord:
        """Run a trial as its worker does; the queue does not hear of it."""
        with contextlib.suppress(TrialFailed):
            run_trial(
                trial.graph, self.store, reporter=NullReporter(), config=dict(trial.config), is_waiting=False
            )
        record = trial_record(self.store, trial.fingerprint)
        assert record is not None
        return record

    def run_all(self) -> None:
        while not self.queue.is_done:
            trial = self.take()
            assert trial is not None
            self.run(trial)

    def ended(self) -> list[TrialEnded]:
        return [event for event in self.events if isinstance(event, TrialEnded)]


def test_every_trial_is_handed_out_once_and_reused_afterwards(toy_document: dict[str, Any]) -> None:
    first = Bench(toy_document)
    first.run_all()
    assert [event.trial.name for event in first.ended()] == [
        "baseline, seed 1",
        "baseline, seed 2",
        "gain=1.0, seed 1",
        "gain=1.0, seed 2",
    ]
    again = Bench(toy_document)
    assert again.queue.is_done
    assert again.events[0] == SweepStarted(num_trials=4, num_reused=4, max_concurrent=2)
    assert [event.record.metrics for event in again.ended()] == [
        event.record.metrics for event in first.ended()
    ]


def test_many_waiting_trials_do_not_slow_down_the_next_one(
    toy_document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking up what the store holds goes through every trial that waits, so it has a share of the time."""
    toy_document["seeds"] = list(range(200))
    bench = Bench(toy_document)
    looked_up: list[int] = []
    finished = ArtifactStore.finished

    def slow_look(store: ArtifactStore, fingerprints: Iterable[str]) -> set[str]:
        wanted = list(fingerprints)
        looked_up.append(len(wanted))
        bench.clock_s += 1.0
        return finished(store, wanted)

    monkeypatch.setattr(ArtifactStore, "finished", slow_look)
    for _ in range(30):
        trial = bench.queue.take()  # without a pause: trials that end at once
        assert trial is not None
        bench.run(trial)
    assert len(looked_up) == 1
    bench.clock_s += 60.0  # 1 s is 2 % of 50 s
    bench.queue.take()
    assert len(looked_up) == 2


def test_a_stage_in_work_holds_back_those_who_need_it(toy_document: dict[str, Any]) -> None:
    bench = Bench(toy_document, max_concurrent=4)
    trial = bench.take()
    assert trial is not None
    assert bench.take() is None, "the others need the upstream stage that the first one computes"
    assert bench.events[-1] == Outlook(1, {"upstream": 3}, left_s=None)
    upstream = trial.graph.find("upstream")
    scratch = bench.store.new_scratch(upstream)
    (scratch / "upstream.json").write_text("0")
    bench.store.publish(upstream, scratch)
    second = bench.take()
    assert second is not None
    assert second.seed == 2


def test_no_more_than_max_concurrent(toy_document: dict[str, Any]) -> None:
    toy_document["factors"] = {"upstream": {"target": "upstream", "levels": [0, 1, 2], "baseline": 0}}
    bench = Bench(toy_document, max_concurrent=2)
    assert bench.take() is not None
    assert bench.take() is not None
    assert bench.take() is None


def test_a_failed_stage_fails_those_who_need_it_without_running_them(toy_document: dict[str, Any]) -> None:
    toy_document["factors"]["behaviour"] = {
        "target": "behaviour",
        "levels": ["good", "raise"],
        "baseline": "good",
    }
    bench = Bench(toy_document)
    bench.run_all()
    states = {(event.trial.name, event.record.state) for event in bench.ended()}
    assert ("behaviour=raise, seed 1", "failed") in states
    assert ("gain=1.0, seed 2", "finished") in states
    reasons = [event.record.reason for event in bench.ended() if event.record.state == "failed"]
    assert all("this arm cannot work" in reason for reason in reasons)
    assert bench.queue.num_failed == 2


def test_a_shared_stage_that_failed_fails_the_others_at_once(toy_document: dict[str, Any]) -> None:
    toy_document["budget"] = {"max_failed_fraction": 1.0}
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    stage = {"name": "upstream", "fingerprint": trial.graph.find("upstream").fingerprint}
    failed = bench.queue.lost(trial, "upstream: no memory")
    bench.queue.end(trial, replace(failed, stages=[{**stage, "decision": "failed"}]))
    assert bench.take() is None
    assert bench.queue.is_done
    reasons = [(event.record.state, event.record.reason) for event in bench.ended()]
    assert reasons == [("failed", "upstream: no memory")] * 4
    counts = read_status(bench.study, bench.store)["counts"]
    assert (counts["failed"], counts["waiting"]) == (4, 0)


def test_status_counts_what_has_finished(toy_document: dict[str, Any]) -> None:
    bench = Bench(toy_document)
    for _ in range(3):
        trial = bench.take()
        assert trial is not None
        bench.run(trial)
    found = read_status(bench.study, bench.store)
    expected = {"planned": 4, "waiting": 1, "running": 0, "finished": 3, "stopped": 0, "failed": 0}
    assert found["counts"] == expected
    assert [row["counts"]["finished"] for row in found["cells"]] == [2, 1]
    assert not found["is_running"]


def test_failed_trials_run_again(toy_document: dict[str, Any]) -> None:
    toy_document["base"]["behaviour"] = "nan"
    Bench(toy_document).run_all()
    again = Bench(toy_document)
    assert again.take() is not None


def test_max_failed_fraction_stops_the_sweep(toy_document: dict[str, Any]) -> None:
    toy_document["base"]["behaviour"] = "raise"
    toy_document["budget"] = {"max_failed_fraction": 0.5}
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    bench.run(trial)
    assert bench.take() is None
    assert bench.queue.is_done
    assert "max_failed_fraction" in str(bench.queue.stop_reason)


def test_wall_clock_and_trial_budgets(toy_document: dict[str, Any]) -> None:
    toy_document["budget"] = {"wall_clock": 15}
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    bench.run(trial)
    assert bench.take() is None
    assert "wall clock" in str(bench.queue.stop_reason)

    toy_document["budget"] = {"trials": 1}
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    assert bench.take() is None
    bench.run(trial)
    assert bench.take() is None
    assert bench.queue.is_done
    assert any(isinstance(event, Notice) for event in bench.events)


def test_a_busy_stage_defers_a_trial(toy_document: dict[str, Any]) -> None:
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    bench.queue.defer(trial, "another sweep")
    other = bench.queue.take()
    assert other is not None
    assert other.key != trial.key, "the deferred one comes back after a pause"


@pytest.fixture
def search_document(toy_document: dict[str, Any]) -> dict[str, Any]:
    toy_document["factors"] = {"upstream": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["search"] = {
        "sampler": {"name": "random", "seed": 3},
        "space": {"gain": {"type": "float", "low": 0.0, "high": 1.0}},
        "trials": 3,
    }
    return toy_document


def test_search_proposes_equally_and_replicates_the_best(search_document: dict[str, Any]) -> None:
    bench = Bench(search_document)
    bench.run_all()
    searched = [event for event in bench.events if isinstance(event, CellSearched)]
    assert [event.cell.label for event in searched] == ["baseline", "upstream=1"]
    kinds = [(event.trial.cell.label, event.trial.kind) for event in bench.ended()]
    for label in ("baseline", "upstream=1"):
        assert kinds.count((label, "search")) == 3
        assert kinds.count((label, "replicate")) == 2
    for event in searched:
        gains = [
            e.trial.params["gain"]
            for e in bench.ended()
            if e.trial.kind == "search" and e.trial.cell == event.cell
        ]
        assert event.params == {"gain": max(gains)}
    seeds = {
        kind: {e.trial.seed for e in bench.ended() if e.trial.kind == kind}
        for kind in ("search", "replicate")
    }
    assert not seeds["search"] & seeds["replicate"], "the selected model is not tested"


def test_nothing_is_proposed_beyond_the_budget_while_all_proposals_run(
    search_document: dict[str, Any],
) -> None:
    search_document["factors"] = {"noise": {"target": "noise", "levels": [0.0], "baseline": 0.0}}
    search_document["search"]["space"] = {"upstream": {"type": "int", "low": 0, "high": 1000}}
    bench = Bench(search_document, max_concurrent=9)
    assert all(bench.take() is not None for _ in range(3))
    assert bench.take() is None
    assert not bench.queue.is_done


def test_an_interrupted_search_makes_the_same_proposals(
    search_document: dict[str, Any], tmp_path: Path
) -> None:
    search_document["search"]["sampler"] = {"name": "tpe", "seed": 5}
    whole = Bench(search_document)
    whole.run_all()
    search_document["storage"] = {"path": str(tmp_path / "second")}
    cut = Bench(search_document)
    for _ in range(2):
        trial = cut.take()
        assert trial is not None
        cut.run(trial)
    assert cut.take() is not None, "this one is lost with its driver"
    resumed = Bench(search_document)
    resumed.run_all()

    def proposals(bench: Bench) -> set[tuple[str, int | None, float]]:
        ended = [event.trial for event in bench.ended() if event.trial.kind == "search"]
        return {(trial.cell.label, trial.number, trial.params["gain"]) for trial in ended}

    assert proposals(resumed) == proposals(whole)


@pytest.mark.parametrize("content", [None, "", '{"number": 0,', "{}", "[]"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_or_damaged_proposal_is_made_again(
    search_document: dict[str, Any], tmp_path: Path, number: int, content: str | None
) -> None:
    search_document["factors"] = {}
    whole = Bench(search_document)
    whole.run_all()
    [path] = tmp_path.glob(f"store/records/proposals/*/0000{number}.json")
    path.unlink() if content is None else path.write_text(content)
    again = Bench(search_document)
    for _ in range(10):
        if again.queue.is_done:
            break
        trial = again.take()
        assert trial is not None
        again.run(trial)
    assert again.queue.is_done

    def outcome(bench: Bench) -> dict[str, float]:
        return {event.trial.name: event.record.metrics["dev/score"] for event in bench.ended()}

    assert outcome(again) == outcome(whole)


def test_a_damaged_trial_record_is_no_result(toy_document: dict[str, Any], tmp_path: Path) -> None:
    toy_document["seeds"] = [1]
    toy_document["factors"] = {}
    Bench(toy_document).run_all()
    [path] = tmp_path.glob("store/records/trials/*.json")
    path.write_text("{}")
    again = Bench(toy_document)
    assert not again.queue.is_done
    again.run_all()
    assert [event.record.state for event in again.ended()] == ["finished"]


def test_a_trial_is_killed_by_a_store_that_takes_no_record_of_it(
    toy_document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None

    def refuse(*_: Any) -> None:
        raise StoreError("the store cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "write_record", refuse)
        bench.queue.kill(trial, "disk full at /store")
    assert [event.record.state for event in bench.ended()] == ["killed"]
    assert bench.queue.is_done
    again = Bench(toy_document)
    again.run_all()
    assert {event.record.state for event in again.ended()} == {"finished"}


def test_a_killed_proposal_stays_open_and_runs_again(search_document: dict[str, Any], tmp_path: Path) -> None:
    """A search runs no failed trial again, so one whose driver or store is gone must not count as failed."""
    search_document["search"]["sampler"] = {"name": "tpe", "seed": 5}
    whole = Bench(search_document)
    whole.run_all()
    search_document["storage"] = {"path": str(tmp_path / "second")}
    cut = Bench(search_document)
    trial = cut.take()
    assert trial is not None
    cut.queue.kill(trial, "disk full at /store")
    assert cut.queue.is_done
    assert cut.queue.stop_reason == "disk full at /store"
    assert (cut.queue.num_run, cut.queue.num_failed) == (0, 0)
    counts = read_status(cut.study, cut.store)["counts"]
    assert (counts["finished"], counts["failed"]) == (0, 0)
    resumed = Bench(search_document)
    resumed.run_all()
    params = [
        {(e.trial.kind, e.trial.cell.label, e.trial.number, str(e.trial.params)) for e in bench.ended()}
        for bench in (whole, resumed)
    ]
    assert params[0] == params[1]
    assert {event.record.state for event in resumed.ended()} == {"finished"}


def test_a_driver_that_lost_its_lock_changes_nothing_any_more(search_document: dict[str, Any]) -> None:
    is_lost: list[bool] = []

    def poll() -> None:
        if is_lost:
            raise StudyLockedError("taken over")

    bench = Bench(search_document, poll=poll)
    ran, running = bench.take(), bench.take()
    assert ran is not None
    assert running is not None
    record = bench.run(ran)
    before = [bench.store.list_records(kind, ANY) for kind in ("trials", "proposals")]
    is_lost.append(True)
    for change in (
        bench.take,
        lambda: bench.queue.end(running, record),
        lambda: bench.queue.kill(running, "SIGTERM"),
        lambda: bench.queue.lost(running, "gone"),
        lambda: bench.queue.intermediate(running, 1.0, 1),
    ):
        with pytest.raises(StudyLockedError):
            change()
    assert [bench.store.list_records(kind, ANY) for kind in ("trials", "proposals")] == before


def test_killed_trials_are_recorded_and_run_again(toy_document: dict[str, Any]) -> None:
    bench = Bench(toy_document)
    trial = bench.take()
    assert trial is not None
    bench.queue.stop("SIGTERM")
    bench.queue.kill(trial, "SIGTERM")
    assert bench.queue.is_done
    record = trial_record(bench.store, trial.fingerprint)
    assert record is not None
    assert record.state == "killed"
    assert Bench(toy_document).take() is not None


def with_looks(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"seeds": [1, 2, 3, 4, 5], "sequential": {"looks": [3, 4, 5]}}


def test_each_look_is_taken_when_all_granted_replicates_have_ended(toy_document: dict[str, Any]) -> None:
    document = with_looks(toy_document)
    keys = [cell.key for cell in cells(Study.from_dict(document))]
    grants = [dict(zip(keys, counts, strict=True)) for counts in ((4, 4), (5, 4), (5, 4))]
    taken: list[int] = []

    def grant() -> Mapping[str, int]:
        taken.append(len(bench.ended()))
        return grants[len(taken) - 1]

    bench = Bench(document, grant=grant)
    assert isinstance(bench.events[0], SweepStarted)
    assert bench.events[0].num_trials == 6
    bench.run_all()
    assert taken == [6, 8, 9]
    looks = [event for event in bench.events if isinstance(event, LookTaken)]
    assert [look.num_new for look in looks] == [2, 1]
    assert looks[-1].granted == grants[-1]
    assert [event.trial.seed for event in bench.ended()] == [1, 2, 3, 1, 2, 3, 4, 4, 5]
    again = Bench(document, grant=lambda: grants[-1])
    assert again.queue.is_done
    assert again.queue.num_reused == 9


def test_a_search_ends_before_the_first_look(search_document: dict[str, Any]) -> None:
    document = with_looks(search_document)
    taken: list[int] = []

    def grant() -> Mapping[str, int]:
        taken.append(len(bench.ended()))
        return {}

    bench = Bench(document, grant=grant)
    bench.run_all()
    assert taken == [2 * (3 + 3)]


def test_status_counts_the_replicates_that_looks_have_granted(toy_document: dict[str, Any]) -> None:
    document = with_looks(toy_document)
    study = Study.from_dict(document)
    store = ArtifactStore.open(study.storage.path)
    assert read_status(study, store)["counts"]["planned"] == 6
    first = cells(study)[0].key
    RunningRecord(study, store).observe(LookTaken({first: 5}, 2))
    assert [row["counts"]["planned"] for row in read_status(study, store)["cells"]] == [5, 3]


def short_study(toy_document: dict[str, Any], num_seeds: int) -> dict[str, Any]:
    toy_document["factors"] = {}
    toy_document["seeds"] = list(range(1, num_seeds + 1))
    return toy_document


def timed(bench: Bench, trial: SweepTrial, seconds: float) -> None:
    """End a trial whose record says that it took so long."""
    record = replace(bench.run_only(trial), started_at=1000.0, ended_at=1000.0 + seconds)
    bench.queue.end(trial, record)


def seeds(trials: Iterable[SweepTrial]) -> list[int]:
    return [trial.seed for trial in trials]


def after_four_short_ones(bench: Bench) -> SweepTrial:
    """The next trial, once there are durations to expect of it."""
    for _ in range(4):
        trial = bench.take()
        assert trial is not None
        timed(bench, trial, 0.001)
    trial = bench.take()
    assert trial is not None
    return trial


def test_trials_are_handed_out_several_at_a_time_once_some_like_them_were_short(
    toy_document: dict[str, Any],
) -> None:
    bench = Bench(short_study(toy_document, 40))
    for _ in range(4):
        trial = bench.take()
        assert trial is not None
        assert bench.queue.take_following(trial) == []
        timed(bench, trial, 0.06)
    first = bench.take()
    assert first is not None
    following = bench.queue.take_following(first)
    assert seeds([first, *following]) == [5, 6, 7, 8, 9, 10, 11, 12]  # 8 of .06 s in half a second
    assert (len(bench.queue.running), bench.queue.num_idle) == (8, 1)
    second = bench.take()
    assert second is not None
    assert seeds([second, *bench.queue.take_following(second)])[0] == 13
    assert bench.queue.num_idle == 0
    assert bench.take() is None
    timed(bench, first, 0.06)
    for trial in reversed(following):
        bench.queue.give_back(trial)
    again = bench.take()
    assert again is not None
    assert seeds([again, *bench.queue.take_following(again)]) == [6, 7, 8, 9, 10, 11, 12, 21]


@pytest.mark.parametrize("seconds", [0.3, 100.0])
def test_one_long_trial_ends_batches(toy_document: dict[str, Any], seconds: float) -> None:
    bench = Bench(short_study(toy_document, 40))
    for duration_s in (0.01, 0.01, 0.01, seconds):
        trial = bench.take()
        assert trial is not None
        timed(bench, trial, duration_s)
    trial = bench.take()
    assert trial is not None
    assert bench.queue.take_following(trial) == []


def test_what_waits_is_divided_among_the_workers_and_a_budget_holds(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 10))
    first = after_four_short_ones(bench)
    assert seeds(bench.queue.take_following(first)) == [6, 7, 8], "5 are left for 2 workers"
    toy_document["budget"] = {"trials": 6}
    toy_document["storage"]["path"] += "-two"
    bench = Bench(short_study(toy_document, 10))
    first = after_four_short_ones(bench)
    assert seeds(bench.queue.take_following(first)) == [6], "a budget of 6 trials"


def test_an_interrupted_sweep_keeps_what_its_workers_have_finished_before_it_heard(
    toy_document: dict[str, Any],
) -> None:
    bench = Bench(short_study(toy_document, 3))
    shared = bench.take()
    assert shared is not None
    bench.run(shared)
    finished, lost = bench.take(), bench.take()
    assert finished is not None
    assert lost is not None
    bench.run_only(finished)
    for trial in bench.queue.running:
        bench.queue.kill(trial, "a signal")
    assert bench.queue.is_done
    states = {event.trial.seed: event.record.state for event in bench.ended()}
    assert states == {1: "finished", 2: "finished", 3: "killed"}
    stored = [trial_record(bench.store, trial.fingerprint) for trial in (finished, lost)]
    assert [record.state for record in stored if record is not None] == ["finished", "killed"]
    assert Bench(toy_document).queue.num_reused == 2


def test_a_trial_whose_process_dies_after_its_end_has_finished(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 3))
    shared = bench.take()
    assert shared is not None
    bench.run(shared)
    finished, lost = bench.take(), bench.take()
    assert finished is not None
    assert lost is not None
    record = bench.run_only(finished)
    assert bench.queue.lost(finished, "out of memory") == record
    assert bench.queue.lost(lost, "out of memory").state == "failed"
    stored = [trial_record(bench.store, trial.fingerprint) for trial in (finished, lost)]
    assert [one.state for one in stored if one is not None] == ["finished", "failed"]


def test_a_trial_that_the_others_wait_for_borrows_the_cpus_of_an_idle_worker(
    toy_document: dict[str, Any],
) -> None:
    bench = Bench(short_study(toy_document, 3))
    borrower = bench.take()
    assert borrower is not None
    assert bench.take() is None
    assert bench.queue.lend() is None, "they have only begun to wait"
    bench.clock_s += 2.0
    upstream = borrower.graph.find("upstream")
    assert bench.queue.lend() == (borrower, upstream.fingerprint)
    assert bench.queue.num_idle == 0
    assert bench.queue.lend() is None, "no further worker is idle"
    assert bench.queue.stage_of_loan(borrower) == upstream.fingerprint
    execute_stage(upstream, bench.store, reporter=NullReporter())
    bench.clock_s += 10.0
    assert bench.queue.stage_of_loan(borrower) is None, "it computes on, but nobody waits any more"
    assert bench.take() is None, "the CPUs are not back yet"
    bench.queue.end_loan(is_refused=False)
    assert bench.take() is not None


def test_a_worker_on_another_node_is_not_asked_again_at_once(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 3))
    assert bench.take() is not None
    assert bench.queue.lend() is None
    bench.clock_s += 2.0
    assert bench.queue.lend() is not None
    bench.queue.end_loan(is_refused=True)
    bench.clock_s += 30.0
    assert bench.queue.lend() is None
    bench.clock_s += 31.0
    assert bench.queue.lend() is not None


def test_a_trial_that_nobody_waits_for_borrows_nothing(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 1))
    assert bench.take() is not None
    for _ in range(3):
        assert bench.take() is None
        assert bench.queue.lend() is None


def test_nothing_is_lent_while_another_trial_could_start(toy_document: dict[str, Any]) -> None:
    toy_document["factors"] = {"gain": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["seeds"] = [1, 2]
    bench = Bench(toy_document)
    first = bench.take()
    assert first is not None
    for _ in range(3):  # the other upstream training has not started
        bench.clock_s += 10.0
        assert bench.queue.lend() is None
    assert bench.take() is not None
    assert bench.queue.lend() is None, "both workers compute"


def test_lent_cpus_are_wanted_back_when_another_trial_can_start(toy_document: dict[str, Any]) -> None:
    toy_document["factors"] = {"gain": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["seeds"] = [1, 2]
    bench = Bench(toy_document, max_concurrent=3)
    first, second = bench.take(), bench.take()
    assert first is not None
    assert second is not None
    assert bench.take() is None
    assert bench.queue.lend() is None
    bench.clock_s += 2.0
    lent = bench.queue.lend()
    assert lent is not None
    borrower, _ = lent
    assert borrower in (first, second)
    other = second if borrower == first else first
    bench.run(other)
    bench.clock_s += 10.0
    assert bench.queue.stage_of_loan(borrower) is None, "what waited for the other one can start"


@pytest.mark.parametrize("sampler, num_following", [("random", 7), ("tpe", 0)])
def test_a_search_proposes_ahead_only_if_results_change_no_proposal(
    toy_document: dict[str, Any], sampler: str, num_following: int
) -> None:
    toy_document["factors"] = {}
    toy_document["search"] = {
        "sampler": {"name": sampler, "seed": 1},
        "space": {"gain": {"type": "float", "low": 0.0, "high": 1.0}},
        "trials": 40,
    }
    bench = Bench(toy_document)
    for _ in range(4):
        trial = bench.take()
        assert trial is not None
        timed(bench, trial, 0.06)
    first = bench.take()
    assert first is not None
    following = bench.queue.take_following(first)
    assert [trial.number for trial in following] == list(range(5, 5 + num_following))


def test_the_record_of_what_runs_is_written_rarely_and_never_stays_behind(
    toy_document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(short_study(toy_document, 40), max_concurrent=40)
    first = bench.take()
    assert first is not None
    bench.run(first)
    written: list[int] = []
    monkeypatch.setattr(
        ArtifactStore, "write_record", lambda self, kind, key, document: written.append(len(document))
    )
    clock_s = 0.0
    record = RunningRecord(bench.study, bench.store, lambda: clock_s)
    assert written == [0]
    while (trial := bench.take()) is not None:
        record.observe(TrialStarted(trial))
        clock_s += 0.1
        record.flush()
    assert len(written) <= 9, "39 trials within 3.9 s"
    clock_s += 0.5
    record.flush()
    record.flush()
    assert (written[-1], len(written)) == (39, len(set(written))), "the last word, and no word twice"
    record.close()
    assert written[-1] == 0
