"""A trial inside a Tune actor: what it reports, when it stops, and what it leaves."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray.exceptions import RayError
from ray.train import PreemptionError, PreemptionInfo

from nlgraft.basics.errors import HostFault, StageBusy, TrialFailed
from nlgraft.execution import distributed_stages, trainable
from nlgraft.execution.cluster import WorkerGroup
from nlgraft.execution.cluster_watch import Losses
from nlgraft.execution.distributed_stages import run_on_workers
from nlgraft.execution.sweep_board import LEFT_OUT, Mailbox, Outcome
from nlgraft.execution.trainable import (
    OUTCOME,
    REASON,
    REPORT,
    STEP,
    TRIAL_ID,
    VALUE,
    TrialSpec,
    TuneReporter,
    run_tune_trial,
)
from nlgraft.pipeline.stage import KillReason, NullReporter, Stage, StageGraph, TrialStopped
from nlgraft.pipeline.store import StorePlace
from nlgraft.pipeline.trial import RecordingReporter, TrialRecord
from nlgraft.study.data.study import Resources, WorkerRange


class Board:
    """A board whose specs, and whose answer to stop requests, are given; the answer may be an error."""

    def __init__(self, answer=None, specs=(), lost_on=()):
        self.outcomes = []
        self.stop_reason = SimpleNamespace(remote=lambda batch_id: (batch_id, answer))
        self.begin = SimpleNamespace(remote=lambda batch_id, node: [specs[0], list(lost_on), False])
        self.advance = SimpleNamespace(remote=self._advance)
        self.is_left_out = SimpleNamespace(remote=lambda batch_id: None)
        self._specs = specs

    def _advance(self, batch_id, outcome):
        self.outcomes.append(outcome)
        return self._specs[len(self.outcomes)] if len(self.outcomes) < len(self._specs) else None


@pytest.fixture
def sent(monkeypatch):
    results = []
    monkeypatch.setattr(trainable.tune, "report", results.append)

    def get(ref):
        if ref is None or isinstance(ref, (bytes, str, list)):
            return ref
        if isinstance(ref[1], Exception):
            raise ref[1]
        return ref[1] and f"{ref[0]}: {ref[1]}"

    here = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(trainable.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(trainable.ray, "get", get)
    return results


def spec(tmp_path, watched="dev/loss", num_workers=1, key="k"):
    graph = StageGraph(Stage(name="train", run="a.b:c"))
    group = WorkerGroup(Resources(workers=num_workers, max_failures=0), "")
    return TrialSpec(
        graph, {"lr": 1}, StorePlace(str(tmp_path / "store")), "t1", key, group, "train", watched
    )


def test_reports_without_dev_metrics_are_sent_once_a_second(tmp_path, sent, monkeypatch):
    now = SimpleNamespace(s=50.0)
    monkeypatch.setattr(
        trainable, "time", SimpleNamespace(monotonic=lambda: now.s, time=lambda: 1000.0 + now.s)
    )
    reporter = TuneReporter(spec(tmp_path), Board())
    for now.s, stage, metrics in [
        (50.0, "train", {"train/loss": 4.0}),
        (50.5, "train", {"train/loss": 3.0}),  # too soon
        (50.6, "train", {"dev/loss": 2.0}),
        (51.5, "train", {"train/loss": 2.0}),  # too soon after that one
        (51.6, "train", {"train/loss": 1.0}),
        (51.7, "other", {"dev/loss": 9.0}),  # of another stage: not judged
    ]:
        reporter.report(stage, 7, metrics)
    reports = [json.loads(result[REPORT]) for result in sent]
    assert [(report["stage"], report["metrics"]) for report in reports] == [
        ("train", {"train/loss": 4.0}),
        ("train", {"dev/loss": 2.0}),
        ("train", {"train/loss": 1.0}),
        ("other", {"dev/loss": 9.0}),
    ]
    assert [result.get(VALUE) for result in sent] == [None, 2.0, None, None]
    assert {result[STEP] for result in sent} == {7}
    assert {report["key"] for report in reports} == {"k"}
    assert reports[0]["unix_ms"] == 1_050_000


def test_a_trial_that_tune_ends_is_killed_and_says_no_more(tmp_path, monkeypatch):
    calls = []

    def end(result):
        calls.append(result)
        raise SystemExit

    monkeypatch.setattr(trainable.tune, "report", end)
    reporter = TuneReporter(spec(tmp_path), Board())
    reporter.send({"a": 1})
    reporter.send({"a": 2})
    assert calls == [{"a": 1}]
    assert reporter.should_stop() == "the sweep ended before the trial"
    assert isinstance(reporter.should_stop(), KillReason)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "end, result",
    [
        ("finished", Outcome("ended")),
        ("stopped", Outcome("ended")),
        ("killed", Outcome("killed", "disk full")),
        (TrialFailed("train", "no"), Outcome("ended")),
        (StageBusy("abc", "another"), Outcome("busy", "another")),
    ],
)
def test_the_board_hears_how_a_trial_ended(
    tmp_path,
    sent,
    monkeypatch,
    end,
    result,
    num_workers,
):
    run_options = {}

    def run(graph, store, **options):
        run_options.update(options)
        if isinstance(end, Exception):
            raise end
        return TrialRecord(fingerprint="f", config={}, seed=1, state=end, reason="disk full")

    monkeypatch.setattr(trainable, "run_trial", run)
    monkeypatch.setattr(trainable.THREADS, "set", lambda number: None)
    board = Board(specs=[pickle.dumps(spec(tmp_path, num_workers=num_workers))])
    run_tune_trial({TRIAL_ID: "t1"}, board)
    assert board.outcomes == [result]
    assert sent == [{OUTCOME: "ended"}]
    assert (run_options["config"], run_options["is_waiting"]) == ({"lr": 1}, False)
    assert (run_options["distribute"] is None) == (num_workers == 1)


def test_a_trial_whose_code_is_not_on_the_node_is_not_tried_again(sent):
    board = Board(specs=[b"cnowhere\nnothing\n."])
    run_tune_trial({TRIAL_ID: "t1"}, board)
    [outcome] = board.outcomes
    assert outcome.kind == "lost"
    assert "is its code on every node?" in outcome.reason
    assert "No module named 'nowhere'" in outcome.reason


@pytest.mark.parametrize(
    ("lost_on", "preemptions"), [([], 0), (["gone"] * 7, 7), (["gone", "here"], 1), (["here"] * 2, None)]
)
def test_a_lost_process_counts_as_a_failure_if_its_node_is_still_there(
    tmp_path,
    sent,
    monkeypatch,
    lost_on,
    preemptions,
):
    """One failure is allowed. The next trial of the batch begins without the losses of this one."""
    recorded = []

    def run(graph, store, **options):
        recorded.append(options["reporter"].num_preemptions)
        return TrialRecord(fingerprint="f", config={}, seed=1, state="finished")

    monkeypatch.setattr(trainable, "run_trial", run)
    monkeypatch.setattr(trainable, "is_any_lost", lambda nodes: nodes != ["here"])
    monkeypatch.setattr(trainable.THREADS, "set", lambda number: None)
    spent = replace(spec(tmp_path), group=WorkerGroup(Resources(max_failures=1), ""))
    board = Board(specs=[pickle.dumps(spent)] * 2, lost_on=lost_on)
    run_tune_trial({TRIAL_ID: "t1"}, board)
    assert recorded == ([0] if preemptions is None else [preemptions, 0])
    first, _ = board.outcomes
    if preemptions is None:
        assert first.kind == "lost"
        assert first.reason.endswith("a worker was lost 2 times, resources.max_failures allows 1")


def test_a_worker_that_cannot_reach_the_board_says_so(sent, monkeypatch):
    board = Board()
    board.begin = SimpleNamespace(remote=lambda batch_id, node: ("", RayError()))
    run_tune_trial({TRIAL_ID: "t1"}, board)
    assert sent == [{OUTCOME: "killed", REASON: "lost contact with the driver of the sweep (RayError)"}]


def test_a_trial_on_a_host_whose_disk_is_full_is_left_to_others(sent, tmp_path, monkeypatch):
    """A fault that comes back while nobody else computes kills it; see the test of the board."""

    def run(*arguments, **options):
        raise HostFault("host one cannot use /cache: No space left on device")

    monkeypatch.setattr(trainable, "run_trial", run)
    for may_leave, ends in ((["yes"], [LEFT_OUT, "ended"]), ([], ["ended"])):
        board = Board(specs=[pickle.dumps(spec(tmp_path))])
        board.leave_out = SimpleNamespace(remote=lambda batch_id, is_new, may=may_leave: may)
        sent.clear()
        run_tune_trial({TRIAL_ID: "t1"}, board)
        assert [result[OUTCOME] for result in sent] == ends
        assert [outcome.kind for outcome in board.outcomes] == ([] if may_leave else ["killed"])
        reason = sent[0][REASON] if may_leave else board.outcomes[0].reason
        assert "host one cannot use /cache" in reason


# A stage on several workers.


def test_a_new_group_takes_the_place_of_the_old_one_whatever_their_sizes():
    """Else the dead of the old group would make an error of the new one look like a loss."""
    mailbox = Mailbox()
    for rank in range(3):
        mailbox.join(rank, 3, f"old {rank}", f"node {rank}")
    mailbox.join(1, 2, "new 1", "node 4")
    mailbox.join(0, 2, "new 0", "node 0")
    assert sorted(mailbox.workers()) == ["new 0", "new 1"]
    assert sorted(mailbox.nodes()) == ["node 0", "node 4"]
    mailbox.join(0, 1, "newest", "node 0")
    assert mailbox.workers() == ["newest"]


ANNOUNCED = PreemptionError(PreemptionInfo(None, {"b": [1]}))
LOST = RuntimeError("connection reset by peer")


@pytest.fixture
def fits(monkeypatch):
    """Failure, posted error and nodes of the Train runs to come; node b is lost."""
    ends = []
    posted = []

    def fit(*arguments):
        failure, error, nodes = ends.pop(0)
        posted[:] = [error and (error, "b"), nodes]
        return failure

    actor = SimpleNamespace(
        options=lambda **options: actor,
        remote=lambda: actor,
        end=SimpleNamespace(remote=lambda: None),
        nodes=SimpleNamespace(remote=lambda: None),
    )
    fake = SimpleNamespace(
        remote=lambda kind: actor,
        get=lambda ref: posted,
        kill=lambda mailbox: None,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a" * 56),
    )
    monkeypatch.setattr(distributed_stages, "ray", fake)
    monkeypatch.setattr(distributed_stages, "_fit", fit)
    monkeypatch.setattr(distributed_stages, "is_any_lost", lambda nodes: "b" in nodes)
    return ends


def run(max_failures=0):
    losses, reporter = Losses(max_failures), RecordingReporter(NullReporter())
    stage = Stage(name="train", run="a.b:c", workers="train")
    group = WorkerGroup(Resources(workers=WorkerRange(min=1, max=4), max_failures=max_failures), "")
    run_on_workers(stage, StorePlace("store"), group, reporter, losses, lambda is_waiting_for_workers: None)
    return losses, reporter


def test_lost_nodes_are_counted_apart_from_lost_processes(fits):
    fits += [
        (LOST, None, ["a", "b"]),  # the node vanished
        (ANNOUNCED, None, ["a"]),  # it was announced, and the training did not hear of it in time
        (
            None,
            TrialStopped("a node of the group is about to be taken away"),
            ["a"],
        ),  # it saved its state and ended
        (LOST, None, ["a"]),  # a process alone
        (None, None, ["a"]),
    ]
    losses, reporter = run(max_failures=1)
    assert (losses.num_failures, losses.num_preemptions, reporter.num_preemptions) == (1, 3, 3)
    assert fits == []


def test_an_error_or_an_end_of_the_stage_is_no_loss(fits):
    fits += [(LOST, TrialFailed("train", "ValueError: no"), ["b"]), (None, TrialStopped("rung 1"), ["a"])]
    with pytest.raises(TrialFailed, match="ValueError: no"):
        run()
    with pytest.raises(TrialStopped, match="rung 1"):
        run()


@pytest.mark.parametrize(
    ("workers", "num_workers"), [(4, 4), (WorkerRange(min=4, max=4), 4), (WorkerRange(min=1, max=4), (1, 4))]
)
def test_train_gets_the_range(tmp_path, monkeypatch, workers, num_workers):
    kwargs = {}
    monkeypatch.setattr(distributed_stages, "TorchTrainer", lambda loop, **options: kwargs.update(options))
    group = WorkerGroup(Resources(workers=workers), str(tmp_path))
    stage = Stage(name="train", run="a.b:c", workers="train")
    distributed_stages._new_trainer(stage, StorePlace("store"), group, None, 0, ())
    scaling = kwargs["scaling_config"]
    assert scaling.num_workers == num_workers
    # else Train would retry itself, without bound, and nobody would count
    assert kwargs["run_config"].failure_config.max_preemption_failures == 0
