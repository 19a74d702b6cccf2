"""Worker groups that are lost and replaced, without Ray."""

from types import SimpleNamespace

import pytest
from ray.train import PreemptionError, PreemptionInfo

from nlgraft.basics.errors import TrialFailed
from nlgraft.execution import distributed_stages
from nlgraft.execution.cluster import WorkerGroup
from nlgraft.execution.cluster_watch import Losses
from nlgraft.execution.distributed_stages import run_on_workers
from nlgraft.execution.sweep_board import Mailbox
from nlgraft.pipeline.stage import NullReporter, Stage, TrialStopped
from nlgraft.pipeline.store import StorePlace
from nlgraft.pipeline.trial import RecordingReporter
from nlgraft.study.data.study import Resources, WorkerRange


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
    stage = Stage(name="train", run="a.b:c", is_distributed=True)
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
    stage = Stage(name="train", run="a.b:c", is_distributed=True)
    distributed_stages._new_trainer(stage, StorePlace("store"), group, None, 0, ())
    scaling = kwargs["scaling_config"]
    assert scaling.num_workers == num_workers
    # else Train would retry itself, without bound, and nobody would count
    assert kwargs["run_config"].failure_config.max_preemption_failures == 0
