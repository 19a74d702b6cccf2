"""One stage on a Ray Train worker group.

Train's own results and checkpoints are not used: the stage publishes to the artifact store and keeps its
training state there, so a restarted group continues from the last saved state. Reports travel through a
mailbox actor, because only the process that started the group can report to Tune.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train import FailureConfig, PreemptionError, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nlgraft.basics.errors import HostFault, TrialFailed
from nlgraft.evaluation.shares import SHARE, Share
from nlgraft.execution.cluster import WorkerGroup
from nlgraft.execution.cluster_watch import Losses, is_any_lost
from nlgraft.execution.sweep_board import Mailbox
from nlgraft.pipeline.stage import KillReason, Reporter, Stage, TrialStopped, Worker
from nlgraft.pipeline.store import StorePlace
from nlgraft.pipeline.trial import THREADS, RecordingReporter, end_of, execute_stage
from nlgraft.study.planning.cost import num_fitting

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_ANSWER_S = 60.0
_PREEMPTION_POLL_S = 2.0
_NODE_LABEL = "ray.io/node-id"
_PREEMPTED = "a node of the group is about to be taken away"


@dataclass(eq=False)
class _MailReporter:
    """Reporter of one worker: only rank 0 posts reports; every rank may read stop requests."""

    _mailbox: Any
    _rank: int

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Post to the mailbox."""
        if self._rank == 0:
            plain = {name: float(value) for name, value in metrics.items()}
            ray.get(self._mailbox.post.remote(stage, step, plain))

    def should_stop(self) -> str | None:
        """Read the group's stop request."""
        return ray.get(self._mailbox.stop_reason.remote())


def _train_loop(config: dict[str, Any]) -> None:
    """Run the stage on one worker of the group."""
    context = ray.train.get_context()
    mailbox = config["mailbox"]
    stage: Stage = pickle.loads(config["stage"])
    THREADS.set(config["num_threads"])
    rank, size = context.get_world_rank(), context.get_world_size()
    here = ray.get_runtime_context()
    ray.get(mailbox.join.remote(rank, size, here.current_actor, here.get_node_id()))
    if stage.workers == "first" and rank:
        return
    device = str(get_device()) if config["is_gpu"] else "cpu"
    if config["is_gpu"]:
        torch.accelerator.set_device_index(device)  # FSDP and gathered objects take the current one
    if stage.workers == "share":
        SHARE.set(Share(rank, size))  # a training sets it where it evaluates
    # In a thread, since it waits for all workers, and a stage may report on any of them.
    threading.Thread(target=_watch_for_preemption, args=(mailbox, rank), daemon=True).start()
    try:
        execute_stage(
            stage,
            config["place"].open(),
            reporter=_MailReporter(mailbox, rank),
            worker=Worker(
                rank=rank,
                world_size=size,
                device=device,
                is_sharded=config["is_sharded"],
            ),
        )
    except TrialStopped as stopped:
        if rank == 0:
            ray.get(mailbox.post_end.remote(stopped, ""))
    except Exception as error:
        # If a worker is lost, the collectives of the others fail as well, in the words of their library.
        if _are_alive(ray.get(mailbox.workers.remote())):
            end = end_of(error, stage.name, config["place"].open())
            detail = here.get_node_id() if isinstance(end, HostFault) else traceback.format_exc()
            ray.get(mailbox.post_end.remote(end, detail))
        raise


def _watch_for_preemption(mailbox: Any, rank: int) -> None:
    """Let the stage save its state and end once a node of the group is about to be taken away."""
    with suppress(RayError):  # the group is being ended
        while ray.train.get_preemption_info() is None:
            time.sleep(_PREEMPTION_POLL_S)
        if rank == 0:
            ray.get(mailbox.request_stop.remote(_PREEMPTED))


def _are_alive(workers: list[Any]) -> bool:
    """Return True if all actors answer; Ray answers for a dead one at once, for one out of reach never."""
    try:
        ray.get([worker.__ray_ready__.remote() for worker in workers], timeout=_ANSWER_S)
    except (RayActorError, GetTimeoutError):
        return False
    return True


def run_on_workers(
    stage: Stage,
    place: StorePlace,
    group: WorkerGroup,
    reporter: RecordingReporter,
    losses: Losses,
    report_waiting: Callable[[bool], object],
) -> None:
    """Compute one stage on a worker group and wait for it.

    Args:
        stage: A stage of workers, whose inputs are in the store.
        place: The artifact store, reachable from every worker.
        reporter: Receives the reports of rank 0 and answers whether to stop.
        losses: Those of the trial so far; it gets those of the group.
        report_waiting: Called with True when the group has no worker, with False when it has one.

    Raises:
        TrialStopped: The group ended at the reporter's request, or the store failed on a worker, or the
            disks of so many hosts that the others have no place for the group.
        TrialFailed: The stage raised on a worker.
        RuntimeError: Workers were lost more often than is allowed.
    """
    faulty: set[str] = set()
    while True:
        # On this node: losing another one must cost no more than its workers.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(Mailbox)
        mailbox = actor.options(num_cpus=0, scheduling_strategy=here).remote()
        # Lost workers are counted here and not by Train, which would retry an error of the stage as well.
        trainer = _new_trainer(stage, place, group, mailbox, losses.number, faulty)
        failure = _fit(trainer, reporter, mailbox, report_waiting)
        posted, nodes = ray.get([mailbox.end.remote(), mailbox.nodes.remote()])
        ray.kill(mailbox)  # else one actor of each attempt would stay as long as the driver
        end, detail = posted or (None, "")
        if isinstance(end, TrialFailed):
            raise end from RuntimeError(detail)
        if isinstance(end, HostFault):
            faulty.add(detail)
            if not _has_place(group, faulty):
                raise TrialStopped(KillReason(str(end)))
            _log.warning("stage %s goes on without a host: %s", stage.name, end)
            continue
        is_preempted = isinstance(end, TrialStopped) and end.reason == _PREEMPTED
        if end is not None and not is_preempted:
            raise end
        if end is None and failure is None:
            return
        is_announced = is_preempted or isinstance(failure, PreemptionError)
        losses.add(is_preemption=is_announced or is_any_lost(nodes))
        reporter.num_preemptions = losses.num_preemptions
        _log.warning("stage %s: a worker was lost, %s: %s", stage.name, losses, failure or _PREEMPTED)
        if losses.reason_to_end is not None:
            raise RuntimeError(f"{losses.reason_to_end}; the last time: {failure or _PREEMPTED}")


def _has_place(group: WorkerGroup, without: Collection[str]) -> bool:
    """Tell if the other nodes hold a group, whatever else is on them now."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in without]
    shape = group.resources.of_workers(1)
    num_places = sum(num_fitting(shape, node["Resources"]) for node in nodes)
    return num_places >= group.resources.min_workers


def _fit(
    trainer: TorchTrainer,
    reporter: Reporter,
    mailbox: Any,
    report_waiting: Callable[[bool], object],
) -> BaseException | None:
    """Run one Train run to its end, forwarding reports and stop requests; return its failure, if any."""
    failures: list[BaseException] = []
    report_waiting(True)
    is_waiting_for_workers = True

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    # In a thread, because `fit` blocks while reports and stop requests have to pass.
    thread = threading.Thread(target=fit, name="train", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        _forward(mailbox, reporter)
        if is_waiting_for_workers and ray.get(mailbox.nodes.remote()):
            report_waiting(False)
            is_waiting_for_workers = False
    # Once more: rank 0 may have posted after the last look.
    _forward(mailbox, reporter)
    if is_waiting_for_workers:  # it failed before any worker began
        report_waiting(False)
    return failures[0] if failures else None


def _new_trainer(
    stage: Stage,
    place: StorePlace,
    group: WorkerGroup,
    mailbox: Any,
    losses: int,
    faulty: Collection[str],
) -> TorchTrainer:
    resources = group.resources
    shape = {name: amount for name, amount in resources.of_workers(1).items() if amount}
    least, most = resources.min_workers, resources.max_workers
    has_gpus = resources.gpus_per_worker > 0
    return TorchTrainer(
        _train_loop,
        train_loop_config={
            "stage": pickle.dumps(stage),
            "place": place,
            "mailbox": mailbox,
            "num_threads": resources.cpus_per_worker,
            "is_gpu": has_gpus,
            "is_sharded": resources.sharding == "full",
        },
        torch_config=TorchConfig(backend="nccl" if has_gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=most if least == most else (least, most),
            elastic_resize_monitor_interval_s=group.growth_s,
            use_gpu=has_gpus,
            resources_per_worker=shape,
            placement_strategy="SPREAD" if group.is_spread else "PACK",
            label_selector={_NODE_LABEL: f"!in({','.join(sorted(faulty))})"} if faulty else None,
        ),
        run_config=RunConfig(
            # Train resumes implicitly by run name: the fingerprint lets a stage resume only itself.
            name=f"{stage.name}-{stage.fingerprint[:16]}-{losses + len(faulty)}",
            storage_path=group.run_directory,
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),
        ),
    )


def _forward(mailbox: Any, reporter: Reporter) -> None:
    for stage, step, metrics in ray.get(mailbox.drain.remote()):
        reporter.report(stage, step, metrics)
    reason = reporter.should_stop()
    if reason is not None:
        ray.get(mailbox.request_stop.remote(reason))
