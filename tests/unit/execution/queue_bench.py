"""A queue of trials without Ray, with all that it says, and studies for it."""

import contextlib

from nlgraft.basics.errors import TrialFailed
from nlgraft.execution.events import Driver, Event, TrialEnded
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial, trial_record
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study


class Bench:
    """A queue with everything it says."""

    def __init__(
        self,
        document,
        max_concurrent=2,
        **callbacks,
    ):
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

    def open_optuna(self, cell):
        return OptunaStudy(cell.label, self.study.search, self.study.objective, None)

    def take(self):
        self.clock_s += 10.0  # past every pause
        return self.queue.take()

    def start(self):
        """Take the next trial, which there must be."""
        trial = self.take()
        assert trial is not None
        return trial

    def run(self, trial):
        record = self.run_only(trial)
        self.queue.end(trial, record)
        return record

    def run_only(self, trial):
        """Run a trial as its worker does; the queue does not hear of it."""
        with contextlib.suppress(TrialFailed):
            run_trial(
                trial.graph, self.store, reporter=NullReporter(), config=dict(trial.config), is_waiting=False
            )
        record = trial_record(self.store, trial.fingerprint)
        assert record is not None
        return record

    def run_all(self):
        while not self.queue.is_done:
            self.run(self.start())
        return self

    def ended(self):
        return [event for event in self.events if isinstance(event, TrialEnded)]


def short_study(toy_document, num_seeds):
    toy_document["factors"] = {}
    toy_document["seeds"] = list(range(1, num_seeds + 1))
    return toy_document


def with_looks(document):
    return document | {"seeds": [1, 2, 3, 4, 5], "sequential": {"looks": [3, 4, 5]}}
