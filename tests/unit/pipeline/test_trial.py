"""One trial: what runs, what is shared, how it ends and what is left of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_stages import alone, number, total

from nlgraft.basics.errors import StageBusy, TrialFailed
from nlgraft.pipeline.stage import KillReason, NullReporter, Stage, StageGraph, Worker
from nlgraft.pipeline.trial import (
    TrialStopped,
    execute_stage,
    finished_record,
    run_trial,
    trial_record,
)
from tests.processes import python


def run(graph, store, **options):
    options = {"reporter": NullReporter(), "config": {"a": 1}, "is_waiting": False, **options}
    return run_trial(graph, store, **options)


def stored_record(graph, store):
    return trial_record(store, graph.fingerprint)


def decisions(record):
    return {stage["fingerprint"]: stage["decision"] for stage in record.stages}


def test_first_run_and_second_run(store):
    graph = total(1, 2)
    record = run(graph, store)
    assert record.state == "finished"
    assert record.metrics == {"test/total": 3.0}
    assert record.signatures == {"test/total": "by hand"}
    assert (record.fingerprint, record.config, record.seed, record.attempt) == (
        graph.fingerprint,
        {"a": 1},
        7,
        1,
    )
    assert record.started_at <= record.ended_at
    assert decisions(record) == dict.fromkeys((stage.fingerprint for stage in graph.stages), "run")
    assert stored_record(graph, store) == finished_record(graph, store) == record
    assert run(graph, store) == record


def test_sharing(store):
    """The second trial runs only what differs."""
    run(total(1, 2), store)
    record = run(total(1, 3), store)
    by_stage = {stage["fingerprint"]: stage for stage in record.stages}
    assert by_stage[number(1).fingerprint]["decision"] == "hit"
    assert by_stage[number(3).fingerprint]["decision"] == "run"
    reason = by_stage[number(3).fingerprint]["reason"]
    assert reason.startswith("changed field value (")
    assert " -> 3) since " in reason
    assert "changed input number1 since" in record.stages[-1]["reason"]
    assert store.manifest(number(3)).reason == reason


def test_what_only_feeds_stored_artifacts_is_not_rebuilt(store):
    graph = total(1, 2)
    failed = replace(run(graph, store), state="failed")
    store.discard(number(1))
    store.records.write("trials", graph.fingerprint, failed.to_json())
    record = run(graph, store)
    assert record.state == "finished"
    assert record.attempt == 2
    assert not store.has(number(1))
    assert [stage["decision"] for stage in record.stages] == ["miss", "hit", "hit"]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_damaged_result_is_made_again(store, damage):
    graph = total(1, 2)
    run(graph, store)
    path = store.fetch(graph.result) / "metrics.json"
    path.chmod(0o644)
    text = path.read_text()
    match damage:
        case "flipped":
            path.write_text(text.replace("3", "4"))
        case "truncated":
            path.write_text(text[:-3])
        case "missing":
            path.unlink()
    record = run(graph, store)
    assert record.metrics == {"test/total": 3.0}
    assert record.stages[-1]["decision"] == "corrupt"
    assert "metrics.json" in record.stages[-1]["reason"]
    assert "corrupt" not in decisions(run(total(1, 2, 3), store)).values()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raising", "raising: ValueError: the reason"),
        ("leaving", "leaving: SystemExit: 3"),
        ("not_finite", "not_finite: FloatingPointError: metric test/bleu is nan"),
        (
            "worded",
            "worded: ContractError: metrics.json: test/bleu.value: Input should be a valid number; write",
        ),
        ("silent", "silent: no result: no stage of the trial wrote a metrics.json"),
        ("absent", "absent: ContractError: stage absent: pipeline_stages has no function 'run_absent'"),
    ],
)
def test_failures_are_named_and_recorded(store, function, reason):
    graph = alone(function)
    with pytest.raises(TrialFailed) as failed:
        run(graph, store)
    assert str(failed.value).startswith(reason)
    assert "\n" not in str(failed.value)
    record = stored_record(graph, store)
    assert (record.state, record.reason) == ("failed", str(failed.value))
    assert finished_record(graph, store) is None
    assert store.leases.busy() == set()
    assert not list(Path(store.uri).glob("tmp/[!.]*"))
    if function == "raising":
        assert record.metrics == {"train/loss": 2.5}
        assert record.curves["train/loss"][0][:2] == [1, 2.5]
        assert record.stages[0]["decision"] == "failed"
        assert record.stages[0]["reason"] == "ValueError: the reason"
        assert "and a second line" in record.stages[0]["traceback"]
        assert "missing" in record.stages[0]["ran_because"]
    with pytest.raises(TrialFailed):
        run(graph, store)
    assert stored_record(graph, store).attempt == 2


def test_interruption_is_recorded_as_killed(store):
    graph = alone("interrupted")
    with pytest.raises(KeyboardInterrupt):
        run(graph, store)
    assert stored_record(graph, store).state == "killed"
    assert store.leases.busy() == set()


class StopsAfter(NullReporter):
    def __init__(self, num_reports):
        self.num_left = num_reports

    def report(self, stage, step, metrics):
        self.num_left -= 1

    def should_stop(self):
        return "ASHA: rung 2" if self.num_left <= 0 else None


def test_stopped_and_resumed(store):
    graph = alone("stepping")
    record = run(graph, store, reporter=StopsAfter(2))
    assert (record.state, record.reason) == ("stopped", "ASHA: rung 2")
    assert record.metrics == {"train/loss": 0.5}
    assert [point[:2] for point in record.curves["train/loss"]] == [[1, 1.0], [2, 0.5]]
    assert record.stages[0]["decision"] == "stopped"
    assert stored_record(graph, store) == record
    assert store.checkpoints(graph.result).newest_step() == 2

    record = run(graph, store)
    assert record.state == "finished"
    assert record.metrics == {"test/first_step": 3.0}
    assert record.curves == {"train/loss": [[3, 0.25, 1000]]}
    assert record.stages[0]["decision"] == "resume"
    assert record.stages[0]["reason"].startswith("from its checkpoint of step 2; missing")
    assert store.checkpoints(graph.result).newest_step() is None


def test_killed_process_leaves_its_checkpoint(store):
    """A process that ends without a word: no record, no artifact, a stale lease, a checkpoint."""
    graph = alone("dying")
    code = (
        "import sys; from pipeline_stages import alone; from nlgraft.pipeline.store import ArtifactStore; "
        "from nlgraft.pipeline.trial import run_trial; from nlgraft.pipeline.stage import NullReporter; "
        "run_trial(alone('dying'), ArtifactStore.open(sys.argv[1]), reporter=NullReporter(), config={}, "
        "is_waiting=False)"
    )
    python("-c", code, store.uri, code=17)
    assert trial_record(store, graph.fingerprint) is None
    assert not store.has(graph.result)
    assert store.checkpoints(graph.result).newest_step() == 1
    store.leases.acquire(graph.fingerprint).release()


def test_busy_stage(store):
    graph = total(1, 2)
    with store.leases.acquire(number(1).fingerprint, "trial 7"):
        with pytest.raises(StageBusy, match="trial 7"):
            run(graph, store)
        assert trial_record(store, graph.fingerprint) is None
        with pytest.raises(StageBusy):
            run(graph, store, is_waiting=False)
        assert run(graph, store, is_waiting=True, reporter=StopsAfter(0)).state == "stopped"
    assert run(graph, store).state == "finished"


def test_distributed_stage_goes_to_the_workers(store):
    """Every rank runs it; rank 0 publishes, what the others wrote is dropped."""
    first = number(1, workers="train")
    graph = StageGraph(
        Stage(name="ranked", run="pipeline_stages:run_ranked", inputs={"a": first}, workers="train")
    )
    requested = []

    def distribute(stage):
        requested.append(stage.name)
        for rank in (1, 0):
            execute_stage(stage, store, reporter=NullReporter(), worker=Worker(rank=rank, world_size=2))

    record = run(graph, store, distribute=distribute)
    assert requested == ["number", "ranked"]
    assert record.metrics == {"test/rank": 0.0}
    assert not list(Path(store.uri).glob("tmp/[!.]*"))


def test_workers_that_publish_nothing(store):
    graph = StageGraph(number(1, workers="train"))
    with pytest.raises(TrialFailed, match="number: ContractError: its workers ended without"):
        run(graph, store, distribute=lambda stage: None)

    def stop(stage):
        raise TrialStopped("as asked")

    assert run(graph, store, distribute=stop).state == "stopped"


def test_failure_after_another_owner_published(store):
    """The artifact is there, which is all that was wanted."""

    def publish_and_raise(stage):
        execute_stage(stage, store, reporter=NullReporter())
        raise RuntimeError("connection lost at the end")

    graph = StageGraph(Stage(name="ranked", run="pipeline_stages:run_ranked", workers="train"))
    assert run(graph, store, distribute=publish_and_raise).state == "finished"


def test_what_another_owner_published_before_the_lease_is_not_made_again(store, monkeypatch):
    acquire = store.leases.acquire

    def acquire_late(fingerprint):
        monkeypatch.undo()
        run(graph, store)
        return acquire(fingerprint)

    graph = StageGraph(Stage(name="ranked", run="pipeline_stages:run_ranked"))
    monkeypatch.setattr(store.leases, "acquire", acquire_late)
    assert decisions(run(graph, store)) == {graph.fingerprint: "hit"}


def test_names_that_collide_are_prefixed(store):
    """The deepest stage keeps the plain name."""
    upstream = alone("stepping", part="upstream").result
    downstream = Stage(name="finetune", run="pipeline_stages:run_stepping", inputs={"a": upstream})
    record = run(StageGraph(downstream), store)
    assert record.metrics == {"stepping/test/first_step": 1.0, "test/first_step": 1.0}
    assert record.curves.keys() == {"stepping/train/loss", "train/loss"}
    other = alone("stepping", part="other").result
    both = Stage(name="finetune", run="pipeline_stages:run_stepping", inputs={"a": upstream, "b": other})
    numbered = [f"stepping-{stage.fingerprint[:8]}/train/loss" for stage in (upstream, other)]
    names = run(StageGraph(both), store).curves.keys()
    assert any(names == {"train/loss", "stepping/train/loss", name} for name in numbered)


def test_a_driver_that_is_gone_kills_a_trial(store):
    class Orphaned(NullReporter):
        def should_stop(self):
            return KillReason("the driver is gone")

    record = run(alone("stepping"), store, reporter=Orphaned())
    assert (record.state, record.reason) == ("killed", "the driver is gone")
    assert stored_record(alone("stepping"), store).state == "killed"


def test_store_that_cannot_be_written(store, monkeypatch):
    """An error of the store is no failure of the trial."""

    def refuse(fingerprint):
        raise OSError(28, "No space left on device", "/store/leases/x")

    graph = total(1, 2)
    monkeypatch.setattr(store.leases, "acquire", refuse)
    record = run(graph, store)
    assert record.reason.startswith("disk full at /store/leases/x")
    assert stored_record(graph, store).state == "killed"


def test_a_finished_record_is_not_overwritten_by_a_later_end(store):
    """Another process finishes the trial while this one waits and is then stopped."""
    graph = total(1, 2)

    class FinishesElsewhere(NullReporter):
        def should_stop(self):
            lease.release()
            run(graph, store)
            return "too late"

    lease = store.leases.acquire(graph.fingerprint)
    assert run(graph, store, is_waiting=True, reporter=FinishesElsewhere()).state == "stopped"
    assert stored_record(graph, store).state == "finished"


def test_full_disk_leaves_no_record_but_the_reason(store, monkeypatch):
    """Neither the record's failure nor a library's wrapping hides it."""

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.records, "write_unless", refuse)
    with pytest.raises(TrialFailed, match="raising: ValueError: the reason"):
        run(alone("raising"), store)

    def wrap(stage):
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    record = run(StageGraph(number(1, workers="train")), store, distribute=wrap)
    assert record.state == "killed"
    assert record.reason.startswith(f"disk full at {store.uri}; free space there (RuntimeError: I/O error")
