"""The Ray Tune sweep over what is planned and not finished."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

from nlgraft.execution.cluster import (
    DRIVER_SHARE,
    HEAD_RESOURCE,
    check_fit,
    connected,
    is_local,
    local_capacity,
)
from nlgraft.execution.events import Event, Observer, TrialEnded, Unit
from nlgraft.execution.optuna_study import CellSearch
from nlgraft.execution.prune_checkpoints import remove_stopped_checkpoints
from nlgraft.execution.trial_queue import WorkQueue
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study, TrialScheduler
from nlgraft.study.planning.selection import search_key
from nlgraft.study.reading.system import load_system


class Interrupted(BaseException):
    """A signal asked the driver to end.

    Args:
        signum: The signal's number.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep did.

    Attributes:
        num_run: Trials that ran.
        num_reused: Trials that were finished before.
        num_failed: Trials that failed, now or before.
        stop_reason: Why the sweep ended before its time, or None.
    """

    num_run: int
    num_reused: int
    num_failed: int
    stop_reason: str | None


def run_sweep(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    observe: Observer,
    address: str | None = None,
    stop_requested: Callable[[], str | None] = lambda: None,
) -> SweepOutcome:
    """Run every trial of a study that the store does not hold yet.

    Args:
        study: The study.
        store: The artifact store.
        cells: The cells to run.
        observe: Receives every event, in order, in this thread.
        address: A running Ray cluster; None starts a local one when there is something to run.
        stop_requested: Asked often; a reason ends the sweep early.

    Returns:
        Counts of what happened.

    Raises:
        CapacityError: A trial can never fit; nothing was started.
        Interrupted: A signal arrived; running trials are recorded as killed.
    """
    ended: list[TrialEnded] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialEnded):
            ended.append(event)
        observe(event)

    if is_local(address):
        max_concurrent = check_fit(study.resources, local_capacity(), "this machine")
        queue = _new_queue(study, store, cells, note, max_concurrent, stop_requested)
        if not queue.is_done:
            with connected(None, study.resources):
                _drive(study, store, queue, max_concurrent)
    else:
        with connected(address, study.resources) as capacity:
            max_concurrent = check_fit(study.resources, capacity, "the cluster")
            queue = _new_queue(study, store, cells, note, max_concurrent, stop_requested)
            if not queue.is_done:
                _drive(study, store, queue, max_concurrent)
    if queue.stop_reason is None:  # a sweep that was ended early is gone on with
        remove_stopped_checkpoints(store, ended)
    return SweepOutcome(queue.num_run, queue.num_reused, queue.num_failed, queue.stop_reason)


def _new_queue(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    observe: Observer,
    max_concurrent: int,
    stop_requested: Callable[[], str | None],
) -> WorkQueue:
    def new_search(cell: Cell) -> CellSearch:
        assert study.search is not None
        name = f"{study.name}/{cell.label}@{search_key(study, cell)[:8]}"
        return CellSearch(name, study.search, study.objectives, _optuna_url(store))

    queue = WorkQueue(study, store, list(cells), new_search, observe, max_concurrent, stop_requested)
    queue.open()
    return queue


def _optuna_url(store: ArtifactStore) -> str | None:
    """Optuna's database: in a local store; with a remote one it is rebuilt from the proposals."""
    if not store.is_local:
        return None
    root = Path(store.uri)
    root.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{root / 'optuna.db'}"


def _watched(study: Study, graph: StageGraph) -> tuple[str, str | None]:
    """The stage and the metric that the trial scheduler judges: the last training stage's."""
    training = [stage.name for stage in graph.stages if stage.is_distributed]
    scheduler = _trial_scheduler(study)
    if scheduler is None or not training:
        return "", None
    return training[-1], scheduler.metric or study.objectives[0].metric


def _trial_scheduler(study: Study) -> TrialScheduler | None:
    spec = study.search.trial_scheduler if study.search is not None else None
    return None if spec is None or spec.name == "none" else spec


def _drive(study: Study, store: ArtifactStore, queue: WorkQueue, max_concurrent: int) -> None:
    import ray
    from ray import tune

    from nlgraft.execution.scheduling import CooperativeScheduler, scheduler_for
    from nlgraft.execution.trainable import Board, Order, run_order
    from nlgraft.execution.tune_searcher import WorkSearcher
    from nlgraft.execution.worker_group import WorkerGroup

    resources = study.resources
    board: Any = cast(Any, Board).remote()
    directory = str(Path(store.uri) / "ray") if store.is_local else store.uri.rstrip("/") + "/ray"
    group = WorkerGroup(
        resources.workers,
        resources.cpus_per_worker,
        resources.gpus_per_worker,
        resources.max_failures,
        directory,
    )

    def order_for(unit: Unit, trial_id: str) -> dict[str, Any]:
        stage, metric = _watched(study, unit.graph) if unit.kind == "search" else ("", None)
        order = Order(unit.graph, unit.config, store.uri, trial_id, group, stage, metric)
        return {"order": order.to_text()}

    def ask_to_stop(trial_id: str, reason: str) -> None:
        ray.get(board.request_stop.remote(trial_id, reason))

    searcher = WorkSearcher(queue, store, order_for, ask_to_stop)
    scheduler = None
    spec = _trial_scheduler(study)
    if spec is not None:
        mode = _mode(study, spec.metric or study.objectives[0].metric)

        def group_of(trial: Any) -> str | None:
            unit = searcher.unit_of(trial.trial_id)
            return unit.cell.key if unit is not None and unit.kind == "search" else None

        scheduler = CooperativeScheduler(
            group_of,
            lambda: scheduler_for(spec, mode),
            lambda trial, reason: ask_to_stop(trial.trial_id, reason),
        )
    shape = (
        {"CPU": resources.cpus_per_worker, "GPU": resources.gpus_per_worker}
        if resources.workers == 1
        else {HEAD_RESOURCE: DRIVER_SHARE}
    )
    trainable = tune.with_resources(tune.with_parameters(run_order, board=board), shape)
    with tempfile.TemporaryDirectory(prefix="nlg-tune-") as scratch:
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=f"{study.name}-{int(time.time())}",
                storage_path=scratch if store.is_local else directory,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=resources.max_failures),
            ),
        )
        with _signals_raise() as received:
            try:
                tuner.fit()
            except BaseException:
                # Ray's compiled code may turn what a signal handler raises into an error of its own
                if not received:
                    raise
                interrupted = Interrupted(received[0])
                _mark_killed(queue, str(interrupted))
                raise interrupted from None


def _mode(study: Study, metric: str) -> str:
    direction = load_system(study.system).metrics[metric].direction
    return "max" if direction == "maximize" else "min"


def _mark_killed(queue: WorkQueue, reason: str) -> None:
    """Record the running trials as killed, so that status and tracking do not show them running for ever."""
    queue.stop(reason)
    for unit in queue.running:
        queue.kill(unit, reason)


@contextmanager
def _signals_raise() -> Iterator[list[int]]:
    """Turn the first SIGTERM or SIGINT into ``Interrupted``; the second one ends the process at once.

    Yields:
        The number of the signal that arrived, or nothing.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        for name in before:
            signal.signal(name, signal.SIG_DFL)
        received.append(signum)
        raise Interrupted(signum)

    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    for name in before:
        signal.signal(name, handle)
    try:
        yield received
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
