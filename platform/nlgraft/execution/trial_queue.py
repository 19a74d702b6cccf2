"""Which trial runs next: the pure logic of a sweep, without Ray.

The store is the truth. What is finished is never handed out; a trial that needs a stage which a running trial
is computing waits in this queue and so holds no worker; a trial whose stage has failed fails with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from nlgraft.execution.cell_searches import Searches
from nlgraft.execution.events import (
    Notice,
    Observer,
    SweepStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
    Unit,
)
from nlgraft.execution.optuna_study import CellSearch
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import finished_record
from nlgraft.pipeline.trial_record import TrialRecord, TrialState
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import REPLICATE_SPLITS
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system import load_system

_BUSY_PAUSE_S = 5.0
_STORE_POLL_S = 0.5


class WorkQueue:
    """Hands out the trials of a study, one at a time, and takes their ends.

    **Order.** Replicates by cells and seeds; proposals from the cell that has the fewest running.

    **Failure.** Nothing here raises for a trial that fails: it is recorded and the others go on, until the
    study's budget says otherwise.

    Args:
        study: The study.
        store: The artifact store.
        cells: The cells to run.
        new_search: Builds the Optuna side of a cell's search.
        observe: Receives every event, in order.
        max_concurrent: How many trials may run at once.
        stop_requested: Asked before each trial; a reason ends the sweep early.
        clock: Seconds that only grow; replaced in tests.
    """

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        cells: list[Cell],
        new_search: Callable[[Cell], CellSearch],
        observe: Observer,
        max_concurrent: int,
        stop_requested: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._store = store
        self._cells = cells
        self._observe = observe
        self._max_concurrent = max_concurrent
        self._stop_requested = stop_requested
        self._clock = clock
        self._system = load_system(study.system)
        self._waiting: list[Unit] = []
        self._not_before: dict[str, float] = {}
        self._running: dict[str, Unit] = {}
        self._claimed: dict[str, str] = {}
        self._present: set[str] = set()
        self._polled_s = -_STORE_POLL_S
        self._failed_stages: dict[str, str] = {}
        self._searches = (
            Searches(study, study.search, store, cells, new_search) if study.search is not None else None
        )
        self._deadline_s = None if study.budget.wall_clock_s is None else clock() + study.budget.wall_clock_s
        self._stop_reason: str | None = None
        self._last_notice = ""
        self._num_started = 0
        self.num_run = 0
        self.num_reused = 0
        self.num_failed = 0

    def open(self) -> None:
        """Find what is planned and not finished; report the rest as reused."""
        reused: list[tuple[Unit, TrialRecord]] = []
        num_unproposed = 0
        if self._searches is not None:
            self._waiting, reused = self._searches.resume()
            num_unproposed = self._searches.num_unproposed
        else:
            for cell in self._cells:
                reused += self._enqueue_replicates(cell, {})
        planned = len(self._waiting) + len(reused) + num_unproposed
        self._observe(SweepStarted(planned, len(reused), self._max_concurrent))
        for unit, record in reused:
            self._take_reused(unit, record)
        self._replicate_best()

    @property
    def is_done(self) -> bool:
        """True when nothing runs and nothing can be handed out any more."""
        if self._running:
            return False
        return self._stop_reason is not None or (
            not self._waiting and (self._searches is None or self._searches.is_over)
        )

    @property
    def stop_reason(self) -> str | None:
        """Why the sweep ends before its time, or None."""
        return self._stop_reason

    @property
    def running(self) -> list[Unit]:
        """The trials that were handed out and have not ended."""
        return list(self._running.values())

    def stop(self, reason: str) -> None:
        """Hand out nothing more.

        Args:
            reason: Why, for the report.
        """
        if self._stop_reason is None:
            self._stop_reason = reason
            self._observe(Notice(f"no further trial is started: {reason}"))

    def take(self) -> Unit | None:
        """Hand out the next trial whose stages nobody else is computing.

        Returns:
            A trial, now counted as running, or None when nothing can start now.
        """
        if self._deadline_s is not None and self._clock() >= self._deadline_s:
            self.stop(f"the budget of {self._study.budget.wall_clock_s:g} s wall clock is spent")
        requested = self._stop_requested()
        if requested is not None:
            self.stop(requested)
        budget = self._study.budget.trials
        if budget is not None and self._num_started >= budget and not self._running:
            self.stop(f"the budget of {budget} trials is spent")
        if budget is not None and self._num_started >= budget:
            return None
        if self._stop_reason is not None or len(self._running) >= self._max_concurrent:
            return None
        self._poll_store()
        self._fail_doomed()
        for unit in self._waiting:
            if self._is_ready(unit):
                self._waiting.remove(unit)
                return self._start(unit)
        unit = None if self._searches is None else self._searches.propose()
        if unit is None:
            return None
        if self._is_ready(unit):
            return self._start(unit)
        self._waiting.append(unit)
        return None

    def progress(self, unit: Unit, stage: str, step: int, metrics: Mapping[str, float], unix_ms: int) -> None:
        """Take a report of a running trial."""
        self._observe(TrialProgress(unit, stage, step, metrics, unix_ms))

    def intermediate(self, unit: Unit, value: float, step: int) -> None:
        """Take an intermediate value of the objective of a search trial."""
        if self._searches is not None and unit.kind == "search":
            self._searches.intermediate(unit, value, step)

    def defer(self, unit: Unit, owner: str) -> None:
        """Take a trial back that found one of its stages being computed by another sweep.

        Args:
            unit: The trial.
            owner: Who computes the stage.
        """
        self._release(unit)
        self._num_started -= 1
        self._not_before[unit.key] = self._clock() + _BUSY_PAUSE_S
        self._waiting.append(unit)
        notice = f"{unit.name} waits for a stage that {owner} is computing"
        if notice != self._last_notice:
            self._observe(Notice(notice))
            self._last_notice = notice

    def end(self, unit: Unit, record: TrialRecord) -> None:
        """Take the end of a trial.

        Args:
            unit: The trial.
            record: What is remembered of it.
        """
        self._release(unit)
        self.num_run += 1
        if record.state == "failed":
            self.num_failed += 1
            self._remember_failure(record)
        self._observe(TrialEnded(unit, record))
        if self._searches is not None and unit.kind == "search":
            self._searches.end(unit, record)
            self._replicate_best()
        self._check_failures()

    def kill(self, unit: Unit, reason: str) -> None:
        """Record a running trial as killed from outside; it is run again by the next sweep.

        Args:
            unit: The trial.
            reason: Who killed it.
        """
        self._release(unit)
        self._observe(TrialEnded(unit, self._write_record(unit, "killed", reason)))

    def lost(self, unit: Unit, reason: str) -> TrialRecord:
        """Record a trial whose process died without a word.

        Args:
            unit: The trial.
            reason: What is known of it.

        Returns:
            The record, state ``failed``.
        """
        return self._write_record(unit, "failed", reason)

    def _write_record(self, unit: Unit, state: TrialState, reason: str) -> TrialRecord:
        now = time.time()
        record = TrialRecord(
            fingerprint=unit.fingerprint,
            config=dict(unit.config),
            seed=unit.seed,
            state=state,
            reason=reason,
            started_at=now,
            ended_at=now,
            host=socket.gethostname(),
        )
        self._store.write_record("trials", unit.fingerprint, record.to_json())
        return record

    def _enqueue_replicates(self, cell: Cell, params: Mapping) -> list[tuple[Unit, TrialRecord]]:
        config = resolve_config(self._study, cell, dict(params))
        document = config.model_dump(mode="json")
        reused = []
        for seed in self._study.seeds:
            graph = self._system.stage_graph(config, seed=seed, splits=REPLICATE_SPLITS)
            unit = Unit(
                kind="replicate", cell=cell, seed=seed, config=document, graph=graph, params=dict(params)
            )
            record = finished_record(graph, self._store)
            if record is None:
                self._waiting.append(unit)
            else:
                reused.append((unit, record))
        return reused

    def _take_reused(self, unit: Unit, record: TrialRecord) -> None:
        self.num_reused += 1
        if record.state == "failed":
            self.num_failed += 1
        self._observe(TrialEnded(unit, record, is_reused=True))

    def _replicate_best(self) -> None:
        """Enqueue the replicates of every cell whose search has just ended."""
        for searched in self._searches.newly_over() if self._searches is not None else ():
            self._observe(searched)
            if searched.params is not None:
                for unit, record in self._enqueue_replicates(searched.cell, searched.params):
                    self._take_reused(unit, record)

    def _is_ready(self, unit: Unit) -> bool:
        if self._not_before.get(unit.key, 0.0) > self._clock():
            return False
        return not any(
            stage.fingerprint in self._claimed and stage.fingerprint not in self._present
            for stage in unit.graph.stages
        )

    def _start(self, unit: Unit) -> Unit:
        self._running[unit.key] = unit
        self._num_started += 1
        for stage in unit.graph.stages:
            if stage.fingerprint not in self._present:
                self._claimed[stage.fingerprint] = unit.key
        self._observe(TrialStarted(unit))
        return unit

    def _release(self, unit: Unit) -> None:
        self._running.pop(unit.key, None)
        self._claimed = {stage: key for stage, key in self._claimed.items() if key != unit.key}
        self._polled_s = self._clock() - _STORE_POLL_S

    def _poll_store(self) -> None:
        """Learn which claimed or wanted stages have been published since."""
        if self._clock() - self._polled_s < _STORE_POLL_S:
            return
        wanted = {stage.fingerprint for unit in self._waiting for stage in unit.graph.stages}
        wanted |= set(self._claimed)
        self._present |= self._store.finished(wanted - self._present)
        self._polled_s = self._clock()

    def _remember_failure(self, record: TrialRecord) -> None:
        """Keep the stage that failed: every trial that needs it would fail in the same way."""
        for stage in record.stages:
            if stage["decision"] == "failed":
                self._failed_stages[stage["fingerprint"]] = record.reason

    def _fail_doomed(self) -> None:
        for unit in list(self._waiting):
            doom = [s for s in unit.graph.stages if s.fingerprint in self._failed_stages]
            if doom and not any(stage.fingerprint in self._claimed for stage in unit.graph.stages):
                self._waiting.remove(unit)
                self._running[unit.key] = unit
                self.end(unit, self.lost(unit, self._failed_stages[doom[0].fingerprint]))

    def _check_failures(self) -> None:
        limit = self._study.budget.max_failed_fraction
        ended = self.num_run + self.num_reused
        if self.num_failed > limit * ended:
            self.stop(
                f"{self.num_failed} of {ended} ended trials failed, "
                f"more than budget.max_failed_fraction = {limit:g}"
            )
