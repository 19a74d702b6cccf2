"""A queue of trials without Ray, with all that it says, and studies for it."""

import contextlib
from collections.abc import Callable
from typing import Any

from nlgraft.basics.errors import TrialFailed
from nlgraft.execution.events import Driver, Event, TrialEnded
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, run_trial, trial_record
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.public import Study


class Bench:
    """A queue with everything it says."""

    def __init__(
        self,
        document: dict[str, Any],
        max_concurrent: int = 2,
        **callbacks: Callable[[], Any],
    ) -> None:
        self.study = Study.from_dict(document)
        self.store = ArtifactStore.open(self.study.storage.path)
        self.events: list[Event] = []
        self.clock_s = 0.0
        self.queue = TrialQueue(
            self.study,
            self.store,
            cells(self.study),
            self.open_optuna,
            Driver(self.events.append, clock=lambda: self.clock_s, **callbacks),
            max_concurrent,
        )
        self.queue.open()

    def open_optuna(self, cell: Cell) -> OptunaStudy:
        assert self.study.search is not None
        return OptunaStudy(cell.label, self.study.search, self.study.objective, None)

    def take(self) -> SweepTrial | None:
        self.clock_s += 10.0  # past every pause
        return self.queue.take()

    def start(self) -> SweepTrial:
        """Take the next trial, which there must be."""
        trial = self.take()
        assert trial is not None
        return trial

    def run(self, trial: SweepTrial) -> TrialRecord:
        record = self.run_only(trial)
        self.queue.end(trial, record)
        return record

    def run_only(self, trial: SweepTrial) -> TrialRecord:
        """Run a trial as its worker does; the queue does not hear of it."""
        with contextlib.suppress(TrialFailed):
            run_trial(
                trial.graph, self.store, reporter=NullReporter(), config=dict(trial.config), is_waiting=False
            )
        record = trial_record(self.store, trial.fingerprint)
        assert record is not None
        return record

    def run_all(self) -> None:
        while not self.queue.is_done:
            self.run(self.start())

    def ended(self) -> list[TrialEnded]:
        return [event for event in self.events if isinstance(event, TrialEnded)]


def short_study(toy_document: dict[str, Any], num_seeds: int) -> dict[str, Any]:
    toy_document["factors"] = {}
    toy_document["seeds"] = list(range(1, num_seeds + 1))
    return toy_document


def with_looks(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"seeds": [1, 2, 3, 4, 5], "sequential": {"looks": [3, 4, 5]}}
