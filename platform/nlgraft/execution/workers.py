"""A training stage on a Ray Train worker group.

Train's own results and checkpoints are not used: the stage publishes to the artifact store and keeps its
training state there, so a group that is started again goes on where the last one saved. Reports travel
through a mailbox, because the process that started the group is the one that may speak to Tune.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from typing import Any, cast

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from nlgraft.execution.worker_group import WorkerGroup
from nlgraft.pipeline.stage import Reporter, Stage, TrialStopped
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import execute_stage

_POLL_S = 0.2


class _Mailbox:
    """What rank 0 says, and whether the group should end."""

    def __init__(self) -> None:
        self._reports: list[tuple[str, int, dict[str, float]]] = []
        self._stop_reason: str | None = None
        self._error: bytes | None = None

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


class _MailReporter:
    """Reporter of one worker: rank 0 writes; the training loop asks on rank 0 for all."""

    def __init__(self, mailbox: Any, rank: int) -> None:
        self._mailbox = mailbox
        self._rank = rank

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Post to the mailbox, rank 0 only."""
        if self._rank == 0:
            plain = {name: float(value) for name, value in metrics.items()}
            ray.get(self._mailbox.post.remote(stage, step, plain))

    def should_stop(self) -> str | None:
        """Ask the mailbox."""
        return ray.get(self._mailbox.stop_reason.remote())


def _train_loop(config: dict[str, Any]) -> None:
    """Run the stage on one worker of the group."""
    import torch

    context = ray.train.get_context()
    mailbox = config["mailbox"]
    stage: Stage = pickle.loads(config["stage"])
    torch.set_num_threads(config["num_threads"])
    rank = context.get_world_rank()
    device = "cpu"
    if config["is_gpu"]:
        device = str(get_device())
    try:
        execute_stage(
            stage,
            ArtifactStore.open(config["store_uri"]),
            reporter=_MailReporter(mailbox, rank),
            rank=rank,
            world_size=context.get_world_size(),
            device=device,
        )
    except TrialStopped as stopped:
        if rank == 0:
            ray.get(mailbox.post_error.remote(pickle.dumps(stopped.reason)))
    except Exception as error:
        ray.get(mailbox.post_error.remote(pickle.dumps((type(error).__name__, str(error)))))
        raise


class WorkerStageError(RuntimeError):
    """A training stage failed on a worker; the message is the worker's own."""


def run_on_workers(stage: Stage, store_uri: str, group: WorkerGroup, reporter: Reporter) -> None:
    """Train one stage on a worker group and wait for it.

    Args:
        stage: A distributed stage whose inputs are in the store.
        store_uri: The artifact store, reachable from every worker.
        group: Shape of the group.
        reporter: Where rank 0's reports go, and who may ask to stop.

    Raises:
        TrialStopped: The group ended because it was asked to.
        WorkerStageError: The stage raised on a worker.
        RuntimeError: Workers were lost more often than ``max_failures`` allows.
    """
    failure: BaseException | None = None
    for attempt in range(group.max_failures + 1):
        mailbox: Any = cast(Any, ray.remote(num_cpus=0)(_Mailbox)).remote()
        failure = _fit(stage, store_uri, group, reporter, mailbox, attempt)
        posted: Any = ray.get(mailbox.error.remote())
        ray.kill(mailbox)
        if posted is not None:
            what = pickle.loads(posted)
            if isinstance(what, str):
                raise TrialStopped(what)
            raise WorkerStageError(f"{what[0]}: {what[1]}")
        if failure is None:
            return
    raise RuntimeError(f"lost a worker {group.max_failures + 1} times; the last time: {failure}")


def _fit(
    stage: Stage, store_uri: str, group: WorkerGroup, reporter: Reporter, mailbox: Any, attempt: int
) -> BaseException | None:
    """Run one Train run to its end, passing reports and requests on; give back its failure."""
    resources = {"CPU": group.cpus_per_worker}
    if group.gpus_per_worker:
        resources["GPU"] = group.gpus_per_worker
    trainer = TorchTrainer(
        _train_loop,
        train_loop_config={
            "stage": pickle.dumps(stage),
            "store_uri": store_uri,
            "mailbox": mailbox,
            "num_threads": max(1, int(group.cpus_per_worker)),
            "is_gpu": group.gpus_per_worker > 0,
        },
        torch_config=TorchConfig(backend="nccl" if group.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=group.num_workers,
            use_gpu=group.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            # the fingerprint in the name: Train resumes implicitly, and may resume only the same stage
            name=f"{stage.name}-{stage.fingerprint[:16]}-{attempt}",
            storage_path=group.run_directory,
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    failures: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=fit, name=f"train-{stage.name}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        _pass_on(mailbox, reporter)
    _pass_on(mailbox, reporter)
    return failures[0] if failures else None


def _pass_on(mailbox: Any, reporter: Reporter) -> None:
    for stage, step, metrics in ray.get(mailbox.drain.remote()):
        reporter.report(stage, step, metrics)
    reason = reporter.should_stop()
    if reason is not None:
        ray.get(mailbox.request_stop.remote(reason))
