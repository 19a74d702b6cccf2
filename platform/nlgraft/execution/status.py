"""What ``status`` and ``watch`` show: records of the store, and what a live driver says of its trials."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter

from nlgraft.basics.errors import StoreError
from nlgraft.basics.pacing import Pacer
from nlgraft.execution.events import Event, LookTaken, Outlook, TrialEnded, TrialProgress, TrialStarted
from nlgraft.execution.planned_trials import planned_trials
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, is_dev_curve
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import read_granted, record_granted, study_key

STATES = ("planned", "waiting", "running", "finished", "stopped", "failed")
_KIND = "studies"
_PAUSE_S = 0.5
_STEP_PAUSE_S = 5.0
_MAX_POINTS = 200

_RUNNING = TypeAdapter(dict[str, Any])


class RunningRecord:
    """Record of the running trials and how far they are, which ``nlgraft status`` reads in another process.

    It is written at most every half second, since a sweep of short trials would write it a hundred times a
    second, and every five seconds where only the steps of trainings have moved.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._store = store
        self._writes = Pacer(_PAUSE_S, clock=clock)
        self._key = study_key(study)
        self._steps = Pacer(_STEP_PAUSE_S, clock=clock)
        self._running: dict[str, dict[str, Any]] = {}
        self._outlook: dict[str, Any] = {}
        self._is_written = False
        self.flush()

    def observe(self, event: Event) -> None:
        """Update the record by an event of the sweep."""
        if isinstance(event, TrialProgress | Outlook):
            self._observe_steps(event)
            return
        if isinstance(event, TrialStarted):
            trial = event.trial
            names = {"cell": trial.cell.key, "name": trial.name}
            self._running[trial.key] = names | {"started_at": time.time()}
        elif isinstance(event, TrialEnded) and not event.is_reused:
            self._running.pop(event.trial.key, None)
        elif isinstance(event, LookTaken):
            record_granted(self._study, self._store, event.granted)
        else:
            return
        self._is_written = False
        self.flush()

    def _observe_steps(self, event: TrialProgress | Outlook) -> None:
        if isinstance(event, Outlook):
            self._outlook = {"held_back": dict(event.held_back), "left_s": event.left_s, "at": time.time()}
        elif (trial := self._running.get(event.trial.key)) is not None:
            trial |= {"stage": event.stage, "step": event.step, "num_steps": event.num_steps}
            # Of all metrics, records of many trials would have megabytes, every five seconds.
            for name, value in event.metrics.items():
                if not is_dev_curve(name):
                    continue
                points = trial.setdefault("curves", {}).setdefault(name, [])
                points.append([event.step, value])
                if len(points) > _MAX_POINTS:
                    del points[1::2]  # half of them, evenly
        if self._steps.is_due:
            self._is_written = False
            self.flush()

    def flush(self) -> None:
        """Write the record if it has changed and the pause is over; called often."""
        if not self._is_written and self._writes.is_due:
            self._write()

    def close(self) -> None:
        """Record that nothing runs any more."""
        self._running, self._outlook = {}, {}
        self._write()

    def _write(self) -> None:
        self._is_written = True
        # Whether the sweep can go on is not for its status to decide.
        document = {"trials": self._running, "outlook": self._outlook}
        with self._writes.turn(), self._steps.turn(), suppress(StoreError):
            self._store.records.write(_KIND, self._key, document)


def read_status(study: Study, store: ArtifactStore) -> dict[str, Any]:
    """Count the trials of each cell by state.

    Returns:
        ``{"study", "is_running", "workers", "counts": {...}, "preemptions", "trial_s", "hours",
        "running": [...], "outlook": {...}, "cells": [{"cell", "label", "counts", "preemptions",
        "reasons"}]}``. ``planned`` counts all trials of a cell, of replicates those that planned looks have
        granted, and the other states add up to it. ``preemptions`` are the nodes that the last attempts of
        trials have lost, ``trial_s`` the time that ended trials took together, ``hours`` is
        `Study.budget_hours` of all. ``running`` has the name, cell, stage, step and dev curves (``[step,
        value]``) of each running trial, ``outlook`` the seconds that are left and which stages are awaited
        by how many trials.
    """
    key = study_key(study)
    is_running = store.leases.is_study_locked(key)
    # What a killed driver left says nothing about now.
    document = (store.records.read(_KIND, key, _RUNNING) if is_running else None) or {}
    trials: list[dict[str, Any]] = list(document.get("trials", {}).values())
    running = Counter(trial["cell"] for trial in trials)
    study_cells = cells(study)
    planned = planned_trials(study, store, study_cells, has_graphs=False)
    records: dict[str, list[TrialRecord]] = defaultdict(list)
    for cell, record in planned.recorded:
        records[cell.key].append(record)
    for trial, record in planned.ended:
        # A finished trial whose artifact was removed runs again.
        if record.state != "finished" or store.has(trial.graph.result):
            records[trial.cell.key].append(record)
    num_searched = 0 if study.search is None else study.search.trials
    granted = read_granted(study, store)
    rows = [
        _cell_status(
            cell,
            records[cell.key],
            granted.get(cell.key, study.first_seeds) + num_searched,
            running[cell.key],
        )
        for cell in study_cells
    ]
    total = {state: sum(row["counts"][state] for row in rows) for state in STATES}
    trial_s = sum(record.duration_s for ended in records.values() for record in ended)
    running_s = sum(time.time() - trial["started_at"] for trial in trials)
    return {
        "study": study.variant,
        "is_running": is_running,
        "workers": [study.resources.min_workers, study.resources.max_workers],
        "counts": total,
        "preemptions": sum(row["preemptions"] for row in rows),
        "trial_s": trial_s,
        "hours": study.budget_hours(trial_s + running_s),
        "running": trials,
        "outlook": document.get("outlook", {}),
        "cells": rows,
    }


def _cell_status(
    cell: Cell, records: Sequence[TrialRecord], num_planned: int, num_running: int
) -> dict[str, Any]:
    states = Counter(record.state for record in records)
    ended = {state: states[state] for state in ("finished", "stopped", "failed")}
    num_remaining = num_planned - sum(ended.values())
    counts = {
        "planned": num_planned,
        "waiting": max(0, num_remaining - num_running),
        "running": min(num_running, num_remaining),
        **ended,
    }
    return {
        "cell": dict(cell.levels),
        "label": cell.label,
        "counts": counts,
        "preemptions": sum(record.num_preemptions for record in records),
        "reasons": [record.reason for record in records if record.state == "failed"],
    }
