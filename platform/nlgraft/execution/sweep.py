"""The Ray Tune sweep over the trials of a study that are not complete."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import ClusterError, StageBusy
from nlgraft.basics.pacing import Pacer, Wait
from nlgraft.basics.wording import count, duration
from nlgraft.execution.cluster import (
    DRIVER_SHARE,
    HEAD_RESOURCE,
    WorkerGroup,
    check_fit,
    connected,
    is_local,
    local_capacity,
)
from nlgraft.execution.cluster_watch import MAX_PREEMPTIONS, ClusterWatch, memory_shortage, places_of_driver
from nlgraft.execution.events import Driver, Event, Notice, TrialEnded
from nlgraft.execution.interruption import Interrupted, raising_interrupted
from nlgraft.execution.optuna_study import open_search
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import one_line
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Study, TrialScheduler
from nlgraft.study.reading.system_import import system_of


@dataclass(frozen=True)
class SweepOutcome:
    """Counts of a sweep.

    Attributes:
        num_run: Trials that this sweep ran.
        num_reused: Trials that an earlier run had completed.
        num_failed: Trials that failed, now or earlier.
        stop_reason: Reason why the sweep ended early, or None.
    """

    num_run: int
    num_reused: int
    num_failed: int
    stop_reason: str | None


def run_sweep(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    driver: Driver,
    address: str | None = None,
) -> SweepOutcome:
    """Run every trial of a study that the store does not hold yet.

    Args:
        cells: The cells to run.
        driver: Receives every event, may end the sweep, and grants seeds at planned looks.
        address: A running Ray cluster; None starts a local one if there is something to run.

    Raises:
        CapacityError: A trial can never fit; nothing was started.
        Interrupted: A signal arrived; running trials are recorded as killed.
        ClusterError: The cluster cannot be joined, or was lost; likewise.
    """
    ended: list[TrialEnded] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialEnded) and event.record.state != "finished":
            ended.append(event)
        driver.observe(event)

    def open_queue(max_concurrent: int) -> TrialQueue:
        queue = TrialQueue(
            study,
            store,
            list(cells),
            partial(open_search, study, store),
            replace(driver, observe=note),
            max_concurrent,
        )
        queue.open()
        return queue

    if is_local(address):
        # Before Ray is started: a completed study, or one that can never fit, must not cost that time.
        queue = open_queue(check_fit(study.resources, local_capacity(), "this machine"))
        if not queue.is_done:
            driver.observe(Notice("starting Ray on this machine"))
            with connected(None, study.resources):
                _TuneSweep(study, store, queue, driver, None).run()
    else:
        driver.observe(Notice("joining the Ray cluster"))
        with connected(address, study.resources) as capacity:
            queue = open_queue(check_fit(study.resources, capacity, "the cluster"))
            if not queue.is_done:
                _TuneSweep(study, store, queue, driver, address or os.environ["RAY_ADDRESS"]).run()
    if queue.stop_reason is None:  # an interrupted sweep resumes and may want its checkpoints
        prune_checkpoints(store, ended)
    return SweepOutcome(queue.num_run, queue.num_reused, queue.num_failed, queue.stop_reason)


_LOOK_PAUSE_S = 5.0
_LOOK_SHARE = 0.1
"""Share of the driver's time; the first look, which starts the board's process, takes a second."""

_BATCHES_PER_TUNER = 2_000
"""Tune keeps 7 kB of every batch that it ran until it ends; a new one starts within seconds."""


class _TuneSweep:
    """Ray Tune over a trial queue, on the Ray cluster that this process is connected to."""

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        queue: TrialQueue,
        driver: Driver,
        address: str | None,
    ) -> None:
        # Imports ray.tune, which takes seconds that a completed study need not pay.
        from nlgraft.execution.sweep_board import DriverBoard

        self._study = study
        self._store = store
        self._queue = queue
        self._trial_scheduler = None if study.search is None else study.search.active_scheduler
        self._group = WorkerGroup(study.resources, store.child_uri("ray"))
        self._wait = Wait(lambda line: driver.observe(Notice(line)))
        self._wait_timeout_s = driver.wait_timeout_s
        self._looks = Pacer(_LOOK_PAUSE_S, _LOOK_SHARE)
        self._board = DriverBoard(self._encode)
        self._watch = ClusterWatch(places_of_driver(), address)
        self._check_signals: Callable[[], None] = lambda: None
        self._searcher = self._new_searcher()

    def run(self) -> None:
        """Run until the queue is done.

        Raises:
            Interrupted: A signal arrived; running trials are recorded as killed.
            ClusterError: The cluster was lost; likewise.
        """
        with self._store.scratch("tune") as scratch:
            scheduler = self._new_scheduler()
            try:
                with raising_interrupted() as self._check_signals, self._watch:
                    while True:
                        self._new_tuner(scratch, scheduler).fit()
                        if not self._searcher.is_spent or self._queue.is_done:
                            break
                        self._searcher = self._new_searcher()
            except BaseException as error:
                # whatever failed, a lost cluster or a lack of memory explains it better
                loss = self._watch.loss or memory_shortage(error)
                ended = loss or error
                # Otherwise status and MLflow would show them as running for ever.
                has_own_words = isinstance(ended, Interrupted | ClusterError)
                reason = str(ended) if has_own_words else one_line(ended)
                self._queue.stop(reason)
                for trial in self._queue.running:
                    self._queue.kill(trial, reason)
                if loss is not None:
                    raise loss from None
                raise
            finally:
                self._queue.close()
                self._board.close()

    def _check(self, is_suspect: bool) -> None:
        """Raise if the sweep cannot go on; see `TuneSearcher`."""
        self._check_signals()
        self._watch.check(is_suspect=is_suspect)
        if self._looks.is_due:
            with self._looks.turn():
                self._look_for_places()

    def _look_for_places(self) -> None:
        """Report what keeps trials from running, and end the sweep if none has run for too long."""
        import ray
        from ray.exceptions import RayError
        from ray.util import placement_group_table

        shape = self._study.resources.of_workers(1)
        try:
            num_unplaced = unplaced(placement_group_table(), shape, self._board.num_waiting())
            free = ray.available_resources()
        except RayError:  # whether the cluster is lost is for the watch to say
            return
        # Waiting for a place takes precedence: that is what somebody can change.
        reason, is_idle = self._queue.awaited_of_others, True
        if num_unplaced:
            reason = place_text(num_unplaced, shape, free)
            is_idle = num_unplaced >= self._searcher.num_batches
        waited_s = self._wait.poll(reason)
        if is_idle and self._wait_timeout_s is not None and waited_s > self._wait_timeout_s:
            raise ClusterError(
                f"no trial could run for {duration(waited_s)} (--wait-timeout): {reason}. Run the same "
                "command again to go on"
            )

    def _new_searcher(self) -> Any:
        from nlgraft.execution.tune_searcher import TuneSearcher

        return TuneSearcher(self._queue, self._store, self._board, self._check, _BATCHES_PER_TUNER)

    def _new_tuner(self, scratch: Path, scheduler: Any) -> Any:
        from ray import tune

        from nlgraft.execution.trainable import run_tune_trial
        from nlgraft.execution.tune_searcher import BriefResults

        resources = self._study.resources
        # A trial with a worker group only drives it, and must not take the CPUs of its workers.
        is_alone = resources.max_workers == 1
        shape = resources.of_workers(1) if is_alone else {HEAD_RESOURCE: DRIVER_SHARE}
        trainable = tune.with_parameters(run_tune_trial, board=self._board.actor)
        return tune.Tuner(
            tune.with_resources(trainable, shape),
            tune_config=tune.TuneConfig(
                search_alg=self._searcher,
                scheduler=scheduler,
                num_samples=-1,  # until the searcher says that it has finished
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=f"{self._study.name}-{int(time.time())}",
                storage_path=str(scratch) if self._store.is_local else self._group.run_directory,
                callbacks=[BriefResults()],
                verbose=0,
                # The trial itself counts its losses, by kind, whenever its process begins anew.
                failure_config=tune.FailureConfig(max_failures=resources.max_failures + MAX_PREEMPTIONS),
            ),
        )

    def _new_scheduler(self) -> Any:
        from nlgraft.execution.tune_searcher import CooperativeScheduler, scheduler_for

        spec = self._trial_scheduler
        if spec is None:
            return None
        metric = system_of(self._study).metrics[self._judged_metric(spec)]
        mode = "max" if metric.direction == "maximize" else "min"

        def search_cell(tune_trial: Any) -> str | None:
            trial = self._searcher.trial_of(tune_trial.trial_id)
            # Replicates are never stopped early.
            return trial.cell.key if trial is not None and trial.kind == "search" else None

        return CooperativeScheduler(
            search_cell,
            lambda: scheduler_for(spec, mode),
            lambda trial, reason: self._board.request_stop(trial.trial_id, reason),
        )

    def _encode(self, trial: SweepTrial, batch_id: str) -> bytes:
        from nlgraft.execution.trainable import TrialSpec

        trainings = [stage.name for stage in trial.graph.stages if stage.is_training]
        stage, metric = "", None
        if trial.kind == "search" and trainings and self._trial_scheduler is not None:
            stage, metric = trainings[-1], self._judged_metric(self._trial_scheduler)
        spec = TrialSpec(
            trial.graph, trial.config, self._store.place, batch_id, trial.key, self._group, stage, metric
        )
        return pickle.dumps(spec)

    def _judged_metric(self, spec: TrialScheduler) -> str:
        return spec.metric or self._study.objective.metric


def unplaced(
    groups: Mapping[str, Mapping[str, Any]],
    shape: Mapping[str, float],
    num_waiting: int,
) -> int:
    """Count the trials of a sweep that wait for their place.

    Args:
        groups: Ray's table of the placement groups of all jobs.
        shape: Resources of each of their bundles.
        num_waiting: Trials of this sweep whose process, or whose worker group, has not begun. One with a
            range of workers has not even a placement group before there is room for the fewest.
    """
    bundle_shape = {name: amount for name, amount in shape.items() if amount}
    states = Counter(
        group["state"]
        for group in groups.values()
        if all(bundle == bundle_shape for bundle in group["bundles"].values())
    )
    num_pending = states["PENDING"] + states["RESCHEDULING"]
    return min(num_waiting, max(num_pending, num_waiting - states["CREATED"]))


def place_text(
    num_trials: int,
    shape: Mapping[str, float],
    free: Mapping[str, float],
) -> str:
    """Describe what trials wait for that have no place on the cluster."""
    each = ", ".join(f"{amount:g} {name}" for name, amount in shape.items() if amount)
    free_text = ", ".join(f"{free.get(name, 0.0):g} {name}" for name, amount in shape.items() if amount)
    return (
        f"{count(num_trials, 'trial')} without a place on the cluster: each worker needs {each}, free are "
        f"{free_text} in all; other jobs hold the rest, or no node has so much at once (`ray status`)"
    )


# Removal of training state that no trial will resume, left by trials that a trial scheduler has stopped.


_log = logging.getLogger(__name__)


def prune_checkpoints(store: ArtifactStore, ended: Iterable[TrialEnded]) -> int:
    """Remove the checkpoints of stopped search trials once all trials of a sweep have ended.

    A stopped proposal is on record and never runs again. The checkpoints of stages that a failed or killed
    trial shares are kept, since the next sweep runs that trial again, and so are those of stages that another
    sweep is computing. A stage that is wanted later after all is computed from its start.

    Args:
        ended: The end of each trial of the sweep that did not finish, those of earlier sweeps included.

    Returns:
        Number of stages whose checkpoints were removed.
    """
    stopped: dict[str, Stage] = {}
    needed: set[str] = set()
    for event in ended:
        stages = {stage.fingerprint: stage for stage in event.trial.graph.stages}
        if event.trial.kind == "search" and event.record.state == "stopped":
            stopped |= stages
        elif event.record.state != "finished":
            needed |= set(stages)
    num_removed = 0
    for fingerprint, stage in stopped.items():
        if fingerprint in needed or store.checkpoints(stage).newest_step() is None:
            continue
        try:
            # Another sweep may be about to resume from them.
            with store.leases.acquire(fingerprint, "a sweep that prunes checkpoints"):
                store.checkpoints(stage).clear()
        except StageBusy:
            continue
        num_removed += 1
    if num_removed:
        _log.info("removed the checkpoints of %d stages of stopped trials", num_removed)
    return num_removed
