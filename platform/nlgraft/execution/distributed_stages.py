"""Training of one stage on a Ray Train worker group.

Train's own results and checkpoints are not used: the stage publishes to the artifact store and keeps its
training state there, so a restarted group continues from the last saved state. Reports travel through a
mailbox actor, because only the process that started the group can report to Tune.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Mapping
from typing import Any, cast

import ray
import ray.train
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nlgraft.execution.stall_watch import StallWatch
from nlgraft.execution.worker_group import WorkerGroup
from nlgraft.pipeline.execute import execute_stage
from nlgraft.pipeline.stage import Reporter, Stage, TrialStopped, Worker
from nlgraft.pipeline.store import StorePlace
from nlgraft.pipeline.threads import THREADS

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_ANSWER_S = 60.0
_OTHERS_S = 2.0


class _Mailbox:
    """Messages between the workers of a group and the process that started it."""

    def __init__(self) -> None:
        self._workers: list[Any] = []
        self._reports: list[tuple[str, int, dict[str, float]]] = []
        self._stop_reason: str | None = None
        self._error: bytes | None = None
        self._stacks: list[str] = []

    def join(self, worker: Any) -> None:
        self._workers.append(worker)

    def workers(self) -> list[Any]:
        return self._workers

    def post(self, stage: str, step: int, metrics: dict[str, float]) -> None:
        self._reports.append((stage, step, metrics))

    def drain(self) -> list[tuple[str, int, dict[str, float]]]:
        reports, self._reports = self._reports, []
        return reports

    def request_stop(self, reason: str) -> None:
        self._stop_reason = reason

    def stop_reason(self) -> str | None:
        return self._stop_reason

    def post_error(self, error: bytes) -> None:
        self._error = self._error or error

    def error(self) -> bytes | None:
        return self._error

    def add_stacks(self, stacks: str) -> None:
        self._stacks.append(stacks)

    def stacks(self) -> str:
        return "\n".join(self._stacks)


class _MailReporter:
    """Reporter of one worker: only rank 0 posts reports; every rank may read stop requests."""

    def __init__(self, mailbox: Any, rank: int) -> None:
        self._mailbox = mailbox
        self._rank = rank

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
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
    rank = context.get_world_rank()
    ray.get(mailbox.join.remote(ray.get_runtime_context().current_actor))
    reporter: Reporter = _MailReporter(mailbox, rank)

    def tell_stalled(reason: str, stacks: str) -> None:
        ray.get(mailbox.add_stacks.remote(f"worker {rank}: {reason}\n{stacks}"))
        time.sleep(_OTHERS_S)  # the others wait for the one that stands still, and tell where
        error = ("NoProgress", f"{reason}\n{ray.get(mailbox.stacks.remote())}")
        ray.get(mailbox.post_error.remote(pickle.dumps(error)))

    if config["stall_s"] is not None:
        reporter = StallWatch(reporter, config["stall_s"], {stage.fingerprint}, tell_stalled)
    try:
        execute_stage(
            stage,
            config["place"].open(),
            reporter=reporter,
            worker=Worker(
                rank=rank,
                world_size=context.get_world_size(),
                device=str(get_device()) if config["is_gpu"] else "cpu",
            ),
        )
    except TrialStopped as stopped:
        if rank == 0:
            ray.get(mailbox.post_error.remote(pickle.dumps(stopped.reason)))
    except Exception as error:
        # If a worker is lost, the collectives of the others fail as well, in the words of their library.
        if _are_alive(ray.get(mailbox.workers.remote())):
            ray.get(mailbox.post_error.remote(pickle.dumps((type(error).__name__, str(error)))))
        raise


def _are_alive(workers: list[Any]) -> bool:
    """Return True if all actors answer; Ray answers for a dead one at once, for one out of reach never."""
    try:
        ray.get([worker.__ray_ready__.remote() for worker in workers], timeout=_ANSWER_S)
    except (RayActorError, GetTimeoutError):
        return False
    return True


class WorkerStageError(RuntimeError):
    """A training stage failed on a worker; the message is the worker's own."""


def run_on_workers(stage: Stage, place: StorePlace, group: WorkerGroup, reporter: Reporter) -> None:
    """Train one stage on a worker group and wait for it.

    Args:
        stage: A distributed stage whose inputs are in the store.
        place: The artifact store, reachable from every worker.
        reporter: Receives the reports of rank 0 and answers whether to stop.

    Raises:
        TrialStopped: The group ended at the reporter's request.
        WorkerStageError: The stage raised on a worker.
        RuntimeError: Workers were lost more often than ``max_failures`` allows.
    """
    failure: BaseException | None = None
    for attempt in range(group.max_failures + 1):
        # On this node: losing another one must cost no more than its workers.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        mailbox: Any = cast(Any, ray.remote(_Mailbox)).options(num_cpus=0, scheduling_strategy=here).remote()
        # Lost workers are counted here and not by Train, which would retry an error of the stage as well.
        failure = _fit(stage, place, group, reporter, mailbox, attempt)
        posted: Any = ray.get(mailbox.error.remote())
        ray.kill(mailbox)
        if posted is not None:
            error = pickle.loads(posted)
            if isinstance(error, str):
                raise TrialStopped(error)
            raise WorkerStageError(f"{error[0]}: {error[1]}")
        if failure is None:
            return
        _log.warning("stage %s: a worker was lost, %d times so far: %s", stage.name, attempt + 1, failure)
    raise RuntimeError(
        f"a worker was lost {group.max_failures + 1} times, resources.max_failures allows "
        f"{group.max_failures}; the last time: {failure}"
    )


def _fit(
    stage: Stage, place: StorePlace, group: WorkerGroup, reporter: Reporter, mailbox: Any, attempt: int
) -> BaseException | None:
    """Run one Train run to its end, forwarding reports and stop requests; return its failure, if any."""
    trainer = _new_trainer(stage, place, group, mailbox, attempt)
    failures: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    # In a thread, because `fit` blocks while reports and stop requests have to pass.
    thread = threading.Thread(target=fit, name=f"train-{stage.name}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        _forward(mailbox, reporter)
    # Once more: rank 0 may have posted after the last look.
    _forward(mailbox, reporter)
    return failures[0] if failures else None


def _new_trainer(
    stage: Stage, place: StorePlace, group: WorkerGroup, mailbox: Any, attempt: int
) -> TorchTrainer:
    resources = {"CPU": group.cpus_per_worker}
    if group.gpus_per_worker:
        resources["GPU"] = group.gpus_per_worker
    return TorchTrainer(
        _train_loop,
        train_loop_config={
            "stage": pickle.dumps(stage),
            "place": place,
            "mailbox": mailbox,
            "num_threads": group.num_threads,
            "stall_s": group.stall_s,
            "is_gpu": group.gpus_per_worker > 0,
        },
        torch_config=TorchConfig(backend="nccl" if group.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=group.num_workers,
            use_gpu=group.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            # Train resumes implicitly by run name: the fingerprint lets a stage resume only itself.
            name=f"{stage.name}-{stage.fingerprint[:16]}-{attempt}",
            storage_path=group.run_directory,
            failure_config=FailureConfig(max_failures=0),
        ),
    )


def _forward(mailbox: Any, reporter: Reporter) -> None:
    for stage, step, metrics in ray.get(mailbox.drain.remote()):
        reporter.report(stage, step, metrics)
    reason = reporter.should_stop()
    if reason is not None:
        ray.get(mailbox.request_stop.remote(reason))
