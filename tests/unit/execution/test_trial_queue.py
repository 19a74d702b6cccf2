"""The work queue without Ray: order, sharing, failure, budgets, looks."""

from dataclasses import replace

import pytest

from nlgraft.basics.errors import StoreError
from nlgraft.execution.events import LookTaken, Notice, Outlook, SweepStarted
from nlgraft.execution.status import RunningRecord, read_status
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import trial_record
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from tests.unit.execution.queue_bench import Bench, with_looks


def test_every_trial_is_handed_out_once_and_reused_afterwards(toy_document):
    first = Bench(toy_document).run_all()
    assert [event.trial.name for event in first.ended()] == [
        "baseline, seed 1",
        "baseline, seed 2",
        "gain=1.0, seed 1",
        "gain=1.0, seed 2",
    ]
    again = Bench(toy_document)
    assert again.queue.is_done
    assert again.events[0] == SweepStarted(num_trials=4, num_reused=4, max_concurrent=2)
    begun = again.ended()[0].trial.graph.result
    again.store.checkpoints(begun).save(1, lambda directory: (directory / "state").touch())
    assert Bench(toy_document).events[0].num_resumed == 0, "it has ended"
    again.store.remove(f"records/trials/{begun.fingerprint}.json")
    assert Bench(toy_document).events[0].num_resumed == 1
    assert [event.record.metrics for event in again.ended()] == [
        event.record.metrics for event in first.ended()
    ]


def test_many_waiting_trials_do_not_slow_down_the_next_one(toy_document, monkeypatch):
    """Looking up what the store holds goes through every trial that waits, so it has a share of the time."""
    toy_document["seeds"] = list(range(200))
    bench = Bench(toy_document)
    looked_up = []
    finished = ArtifactStore.finished

    def slow_look(store, fingerprints):
        batch = list(fingerprints)
        looked_up.append(len(batch))
        bench.clock_s += 1.0
        return finished(store, batch)

    monkeypatch.setattr(ArtifactStore, "finished", slow_look)
    for _ in range(30):
        trial = bench.queue.take()  # without a pause: trials that end at once
        bench.run(trial)
    assert len(looked_up) == 1
    bench.clock_s += 60.0  # 1 s is 2 % of 50 s
    bench.queue.take()
    assert len(looked_up) == 2


def test_a_stage_in_work_holds_back_those_who_need_it(toy_document):
    bench = Bench(toy_document, max_concurrent=4)
    trial = bench.start()
    assert bench.take() is None, "the others need the upstream stage that the first one computes"
    assert bench.events[-1] == Outlook(1, {"upstream": 3}, left_s=None)
    upstream = trial.graph.find("upstream")
    scratch = bench.store.new_scratch(upstream)
    (scratch / "upstream.json").write_text("0")
    bench.store.publish(upstream, scratch)
    second = bench.start()
    assert second.seed == 2


def test_a_failed_stage_fails_those_who_need_it_without_running_them(toy_document):
    toy_document["factors"]["behaviour"] = {
        "target": "behaviour",
        "levels": ["good", "raise"],
        "baseline": "good",
    }
    bench = Bench(toy_document).run_all()
    states = {(event.trial.name, event.record.state) for event in bench.ended()}
    assert ("behaviour=raise, seed 1", "failed") in states
    assert ("gain=1.0, seed 2", "finished") in states
    reasons = [event.record.reason for event in bench.ended() if event.record.state == "failed"]
    assert all("this arm cannot work" in reason for reason in reasons)
    assert bench.queue.num_failed == 2


def test_a_shared_stage_that_failed_fails_the_others_at_once(toy_document):
    toy_document["budget"] = {"max_failed_fraction": 1.0}
    bench = Bench(toy_document)
    trial = bench.start()
    stage = {"name": "upstream", "fingerprint": trial.graph.find("upstream").fingerprint}
    failed = bench.queue.lost(trial, "upstream: no memory")
    bench.queue.end(trial, replace(failed, stages=[{**stage, "decision": "failed"}]))
    assert bench.take() is None
    assert bench.queue.is_done
    reasons = [(event.record.state, event.record.reason) for event in bench.ended()]
    assert reasons == [("failed", "upstream: no memory")] * 4
    counts = read_status(bench.study, bench.store)["counts"]
    assert (counts["failed"], counts["waiting"]) == (4, 0)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [({"max_failed_fraction": 0.5}, "max_failed_fraction"), ({"wall_clock": 15}, "wall clock")],
)
def test_failures_and_a_wall_clock_stop_the_sweep(toy_document, budget, reason):
    toy_document["base"]["behaviour"] = "raise" if "failed" in reason else "good"
    bench = Bench(toy_document | {"budget": budget})
    bench.run(bench.start())
    assert bench.take() is None
    assert bench.queue.is_done
    assert reason in str(bench.queue.stop_reason)


def test_a_budget_of_trials_lets_what_runs_end(toy_document):
    toy_document["budget"] = {"trials": 1}
    bench = Bench(toy_document)
    trial = bench.start()
    assert bench.take() is None
    bench.run(trial)
    assert bench.take() is None
    assert bench.queue.is_done
    assert any(isinstance(event, Notice) for event in bench.events)


@pytest.mark.parametrize(
    ("resources", "budget", "num_takes"),
    [
        # Two trials at once, of two cores each, for ten seconds between two looks.
        ({"cpus_per_worker": 2}, {"cpu_hours": 100 / 3600}, 4),
        ({"gpus_per_worker": 0.5}, {"gpu_hours": 25 / 3600}, 4),
        ({"gpus_per_worker": 0.5}, {"gpu_hours": 26 / 3600}, 5),
    ],
)
def test_hours_count_what_all_trials_hold(toy_document, resources, budget, num_takes):
    apart = {"target": "upstream", "levels": [0, 1], "baseline": 0}  # no shared stage to wait for
    changes = {"resources": resources, "budget": budget, "factors": {"gain": apart}, "seeds": [1]}
    bench = Bench(toy_document | changes)
    bench.start()
    for _ in range(num_takes - 1):
        assert bench.queue.stop_reason is None
        bench.take()
    assert "-hours is spent" in str(bench.queue.stop_reason)


def test_hours_of_earlier_runs_count(toy_document):
    bench = Bench(toy_document)
    trial = bench.start()
    bench.run(trial)
    record = trial_record(bench.store, trial.fingerprint)
    record = replace(record, ended_at=record.started_at + 7200)
    bench.store.records.write("trials", trial.fingerprint, record.to_json())
    again = Bench(toy_document | {"budget": {"cpu_hours": 2}})
    assert again.take() is None
    assert again.queue.stop_reason == "the budget of 2 CPU-hours is spent"
    status = read_status(again.study, again.store)
    assert status["hours"] == {"CPU": (2, 2)}


def test_a_sweep_that_others_keep_from_computing_waits_though_it_looks_again_and_again(
    toy_document,
):
    """Else `--wait-timeout` would begin anew with each look, and never be over."""
    toy_document["seeds"] = [1]
    toy_document["factors"] = {}
    bench = Bench(toy_document)
    assert bench.queue.awaited_of_others is None
    for _ in range(3):
        trial = bench.start()
        bench.queue.defer(trial, "another sweep")
        reason = bench.queue.awaited_of_others
        assert "another sweep is computing" in reason
        bench.clock_s += 6.0
        trial = bench.queue.take()
        assert bench.queue.awaited_of_others == reason, "it looks once more"
        bench.queue.defer(trial, "another sweep")
    trial = bench.start()
    bench.clock_s += 20.0
    assert bench.queue.awaited_of_others is None, "it computes"
    bench.run(trial)
    assert bench.queue.awaited_of_others is None


def test_a_damaged_trial_record_is_no_result(toy_document, tmp_path):
    toy_document["seeds"] = [1]
    toy_document["factors"] = {}
    Bench(toy_document).run_all()
    [path] = tmp_path.glob("store/records/trials/*.json")
    path.write_text("{}")
    again = Bench(toy_document)
    assert not again.queue.is_done
    again.run_all()
    assert [event.record.state for event in again.ended()] == ["finished"]


@pytest.mark.parametrize("refused", [["write_unless"], ["read", "write_unless"]])
def test_a_trial_is_killed_by_a_store_that_takes_no_record_of_it(toy_document, monkeypatch, refused):
    bench = Bench(toy_document)
    trial = bench.start()

    def refuse(*_):
        raise StoreError("out of reach, or no space left on it")

    with monkeypatch.context() as patch:
        for name in refused:
            patch.setattr(bench.store.records, name, refuse)
        bench.queue.kill(trial, "disk full at /store")
    assert [event.record.state for event in bench.ended()] == ["killed"]
    assert bench.queue.is_done
    again = Bench(toy_document).run_all()
    assert {event.record.state for event in again.ended()} == {"finished"}


def test_each_look_is_taken_when_all_granted_replicates_have_ended(toy_document):
    document = with_looks(toy_document)
    keys = [cell.key for cell in cells(Study.from_dict(document))]
    grants = [dict(zip(keys, counts, strict=True)) for counts in ((4, 4), (5, 4), (5, 4))]
    taken = []

    def grant():
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


def test_status_counts_the_replicates_that_looks_have_granted(toy_document):
    document = with_looks(toy_document)
    study = Study.from_dict(document)
    store = ArtifactStore.open(study.storage.path)
    assert read_status(study, store)["counts"]["planned"] == 6
    first = cells(study)[0].key
    RunningRecord(study, store).observe(LookTaken({first: 5}, 2))
    assert [row["counts"]["planned"] for row in read_status(study, store)["cells"]] == [5, 3]
