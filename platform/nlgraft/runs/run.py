"""One run of a study: lock, sweep, tracking, result and report; in this thread or in one of its own."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

from nlgraft.basics.errors import ClusterError, NlgraftError, StudyLockedError
from nlgraft.basics.pacing import Wait
from nlgraft.basics.wording import without_credentials
from nlgraft.execution.events import Driver, Event, Notice, Observer, TrialEnded, TrialProgress, TrialStarted
from nlgraft.pipeline.integrity import store_errors
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell
from nlgraft.study.data.system import REPLICATE_SPLITS, SEARCH_SPLITS
from nlgraft.study.planning.planner import check_cells
from nlgraft.study.planning.selection import read_granted
from nlgraft.study.public import Study
from nlgraft.study.reading.system_import import system_of

if TYPE_CHECKING:
    from nlgraft.analysis.study_result import StudyResult
    from nlgraft.execution.interruption import StudyLock
    from nlgraft.execution.status import RunningRecord
    from nlgraft.execution.sweep import SweepOutcome
    from nlgraft.tracking.mlflow_tracker import MlflowTracker

Grant: TypeAlias = Callable[[], Mapping[str, int]]
_LOCK_PAUSE_S = 2.0
_Outcome = TypeVar("_Outcome")


def tracking_uri(
    study: Study,
    store: ArtifactStore,
    explicit: str | None,
) -> str:
    """Choose the MLflow tracking URI of a study.

    In this order: the explicit one, the study's, ``MLFLOW_TRACKING_URI``, a SQLite file beside a local store.
    """
    return explicit or study.tracking.uri or default_tracking_uri(store)


def default_tracking_uri(store: ArtifactStore) -> str:
    """Return the tracking URI where none is given: ``MLFLOW_TRACKING_URI``, or a SQLite file."""
    if chosen := os.environ.get("MLFLOW_TRACKING_URI"):
        return chosen
    root = Path(store.uri).resolve() if store.is_local else Path.cwd()
    return f"sqlite:///{root / 'mlflow.db'}"


def experiment_name(study: Study) -> str:
    """Name of the MLflow experiment of a study."""
    return study.tracking.experiment or study.variant


def report_directory(study: Study, store: ArtifactStore) -> Path:
    """Return the directory of the report: in a local store, else below the working directory."""
    # Reports are files for people; an object store would have to be downloaded first.
    root = Path(store.uri) if store.is_local else Path.cwd()
    return root / "reports" / study.variant


def artifact_root(store: ArtifactStore) -> str:
    """Return where MLflow's artifacts go if it writes to a database without a server: beside the store's.

    Without the store's keys and options, which MLflow would keep in its database and does not understand.
    """
    place = store.child_uri("mlflow-artifacts")
    if store.is_local:
        return place
    parts = urlsplit(place)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def read_result(study: Study, store: ArtifactStore) -> StudyResult:
    """Read the results that a store holds of a study, able to tell which searched setting mattered."""
    from nlgraft.analysis.study_result import StudyResult

    result = StudyResult.read(study, store)
    result.importance = _importance
    return result


def _importance(*arguments: Any) -> dict[str, float]:
    from nlgraft.execution.optuna_study import importances  # loads Optuna, which most reports do without

    return importances(*arguments)


@dataclass(frozen=True)
class Place:
    """Where the trials of a run run, and who receives their events.

    Attributes:
        store: The store.
        address: A running Ray cluster; None starts a local one if there is something to run.
        tracking_uri: MLflow tracking URI; None for the default.
        on_event: Receives every event of the sweep.
    """

    store: ArtifactStore
    address: str | None = None
    tracking_uri: str | None = None
    on_event: Observer | None = None


@dataclass(eq=False)
class Run:
    """One run of a study; a second run reuses everything that the first one completed.

    Attributes:
        study: The study.
        cells: The cells to run.
        place: Where it runs.
        wait_timeout_s: Longest wait for the lock, and while no trial can run for want of a place or of a
            stage that another sweep computes; None refuses a locked study at once, and waits for the others
            without limit.
        is_next_look: True to go on with the undecided questions, up to the seeds of their next look.
    """

    study: Study
    cells: Sequence[Cell]
    place: Place
    wait_timeout_s: float | None = None
    is_next_look: bool = False

    def __post_init__(self) -> None:
        self.on_event = self.place.on_event
        self.store = self.place.store
        self._uri = tracking_uri(self.study, self.store, self.place.tracking_uri)
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Start no further trial and ask the running ones to end themselves."""
        self._is_stopping.set()

    def result(self) -> StudyResult:
        """Run to the end, write the report and return the result.

        Raises:
            CapacityError: A trial can never fit the cluster; nothing was started.
            StudyLockedError: Another driver runs this study on this store, or has taken it over.
            Interrupted: A signal arrived; running trials are recorded as killed.
            ClusterError: The Ray cluster cannot be joined, or was lost.
            DataError: A corpus cannot be used; nothing was started.
            NlgraftError: There is no next look.
        """
        return self._locked(self._sweep_and_report)

    def sweep(self, grant: Grant, note: Callable[[], str]) -> SweepOutcome:
        """Run the trials, scored on dev alone, as long as seeds are granted; nothing is analysed or reported.

        Args:
            grant: Takes a look, as in `Driver`.
            note: Returns the text that MLflow shows with the study; called at the end.

        Raises:
            As `result`.
        """

        def run(tracker: MlflowTracker, running: RunningRecord, lock: StudyLock) -> SweepOutcome:
            outcome = self._sweep(tracker, running, lock, grant, SEARCH_SPLITS)
            tracker.finish_study({}, note())
            return outcome

        return self._locked(run)

    def _locked(self, work: Callable[[MlflowTracker, RunningRecord, StudyLock], _Outcome]) -> _Outcome:
        """Do the work of a run under the study's lock, with MLflow opened and closed."""
        self._notify("checking the data")
        from nlgraft.execution.interruption import Interrupted, raising_interrupted
        from nlgraft.execution.status import RunningRecord
        from nlgraft.tracking.mlflow_tracker import MlflowTracker

        # Before the lock: a study with unusable text should not keep others waiting.
        for warning in check_cells(self.study, self.cells, self.store).warnings:
            self._notify(f"warning: {warning}")
        with raising_interrupted(), self._lock() as lock:
            self.store = lock.protect(self.store)
            # Under the lock, and before any trial of this run has leases or checkpoints.
            self.store.remove_abandoned()
            self.store.mark()
            tracker = MlflowTracker(
                self._uri,
                experiment_name(self.study),
                artifact_root=artifact_root(self.store),
                store_id=self.store.identity(),
            )
            running = RunningRecord(self.study, self.store)
            try:
                return work(tracker, running, lock)
            except (Interrupted, ClusterError) as ended:
                tracker.interrupt(str(ended))
                raise
            except Exception:
                lock.check()  # if the lock is lost, that is the error to report
                raise
            finally:
                if lock.is_held():
                    running.close()
                    tracker.close()
                else:  # both belong to the driver that has taken over
                    tracker.abandon()

    def _lock(self) -> StudyLock:
        """Take the lock of the study, waiting for it as long as is allowed."""
        from nlgraft.execution.interruption import StudyLock

        wait = Wait(self._notify)
        while True:
            try:
                return StudyLock(self.study, self.store)
            except StudyLockedError as locked:
                waited_s = wait.poll(str(locked))
                if self.wait_timeout_s is None or waited_s > self.wait_timeout_s:
                    raise
            if self._is_stopping.wait(_LOCK_PAUSE_S):
                raise StudyLockedError(f"{self.study.variant}: stopped while it waited for its lock")

    def _notify(self, message: str) -> None:
        if self.on_event is not None:
            self.on_event(Notice(message))

    def _sweep(
        self,
        tracker: MlflowTracker,
        running: RunningRecord,
        lock: StudyLock,
        grant: Grant,
        splits: tuple[str, ...],
    ) -> SweepOutcome:
        from nlgraft.execution.cluster import check_local_fit
        from nlgraft.execution.sweep import run_sweep

        check_local_fit(self.study.resources, self.place.address)
        self._notify(f"opening MLflow at {without_credentials(self._uri)}")
        is_read = system_of(self.study).is_read
        tracker.start_study(self.study, self.study.fingerprint, self.cells, self.store.is_writable, is_read)
        is_declared = splits != REPLICATE_SPLITS

        def observe(event: Event) -> None:
            nonlocal is_declared
            running.observe(event)
            if isinstance(event, TrialEnded) and event.trial.kind == "replicate" and not is_declared:
                # Before anybody sees its score, so that none can choose arms, seeds or looks by it.
                read_result(self.study, self.store).declare()
                is_declared = True
            self._track(event, tracker)
            if self.on_event is not None:
                self.on_event(event)

        def poll() -> str | None:
            lock.check()
            running.flush()
            return "stopped by Handle.stop" if self._is_stopping.is_set() else None

        driver = Driver(observe, poll, grant, splits=splits, wait_timeout_s=self.wait_timeout_s)
        outcome = run_sweep(self.study, self.store, self.cells, driver, self.place.address)
        # A driver that has lost its lock must not report results that another one is still writing.
        lock.check()
        return outcome

    def _track(self, event: Event, tracker: MlflowTracker) -> None:
        """Queue an event for MLflow.

        Trials that an earlier run completed are sent as well, so that MLflow catches up with whatever it
        missed while it was unreachable; the tracker skips runs that it has written in full.
        """
        match event:
            case TrialStarted(trial=trial):
                tracker.trial_started(trial)
            case TrialProgress(trial=trial):
                tracker.trial_metrics(trial, event.step, event.metrics, event.unix_ms, event.stage)
            case TrialEnded(trial=trial, record=record, is_reused=is_reused):
                tracker.trial_ended(trial, record, self.store, is_reused=is_reused)
            case _:
                pass

    def _next_look(self) -> dict[str, int]:
        """Say how many seeds each cell gets at the next look of its undecided questions.

        Raises:
            NlgraftError: No question is undecided, or none has a look left.
        """
        following = read_result(self.study, self.store).next_look()
        if not following:
            raise NlgraftError(
                f"{self.study.variant}: there is no next look: every question is decided, cannot be decided "
                f"by seeds, or has had its looks at {', '.join(map(str, self.study.looks))} seeds. "
                "nlgraft report shows them"
            )
        return following

    def _sweep_and_report(
        self, tracker: MlflowTracker, running: RunningRecord, lock: StudyLock
    ) -> StudyResult:
        from nlgraft.analysis.data.results import Invocation

        following = self._next_look() if self.is_next_look else {}

        def grant() -> dict[str, int]:
            planned = read_result(self.study, self.store).granted if self.study.sequential else {}
            return _most(read_granted(self.study, self.store), planned, following)

        # By this record `status` and `report` find the study while it still runs.
        self.study.record(self.store)
        outcome = self._sweep(tracker, running, lock, grant, REPLICATE_SPLITS)
        self._notify("comparing the cells and writing the report")
        # A look counts once it is shown, so it is recorded before the report is written.
        result = read_result(self.study, self.store)
        directory = report_directory(self.study, self.store)
        result.invocation = Invocation(
            outcome.num_run,
            outcome.num_reused,
            outcome.num_failed,
            report_dir=str(directory),
            tracking_uri=self._uri,
            experiment=tracker.experiment,
            cells_page=tracker.cells_page,
            stop_reason=outcome.stop_reason,
        )
        with store_errors("write"):
            result.report(directory, formats=["md", "html", "latex", "csv", "json"])
        tracker.finish_study(result.to_json(), result.note(), directory)
        return result


def _most(*grants: Mapping[str, int]) -> dict[str, int]:
    """Take the most seeds that any of several looks grants each cell."""
    keys = dict.fromkeys(key for granted in grants for key in granted)
    return {key: max(granted.get(key, 0) for granted in grants) for key in keys}


# A run in the background.


class Handle:
    """A study that runs in a thread of this process; made by `nlgraft.api.launch`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._outcome: Future[StudyResult] = Future()
        forward = run.on_event

        def observe(event: Event) -> None:
            self._events.put(event)
            if forward is not None:
                forward(event)

        run.on_event = observe
        # A daemon: a program that ends does not wait for its sweep.
        self._thread = threading.Thread(target=self._work, name=f"nlgraft-{run.study.variant}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "runs" if self._thread.is_alive() else "has ended"
        return (
            f"Handle of {self._run.study.variant}, which {state} in a thread of this process\n"
            "  next: .events() yields events; .status() counts trials; .stop(); .result() waits"
        )

    def _work(self) -> None:
        try:
            self._outcome.set_result(self._run.result())
        except BaseException as error:  # raised again by `result`, in the thread that asks for it
            self._outcome.set_exception(error)
        finally:
            self._events.put(None)

    def events(self) -> Iterator[Event]:
        """Yield the sweep's events as they come, until it ends; each event is yielded once."""
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)  # the end stays, for whoever iterates again

    def status(self) -> dict[str, Any]:
        """Count the trials of each cell by state."""
        from nlgraft.execution.status import read_status

        return read_status(self._run.study, self._run.store)

    def stop(self) -> None:
        """Start no further trial and ask the running ones to end at their next report."""
        self._run.stop()

    def result(self, timeout_s: float | None = None) -> StudyResult:
        """Wait for the end and return the result.

        Args:
            timeout_s: Seconds to wait at most; None waits without limit.

        Raises:
            NlgraftError: The sweep is still running after ``timeout_s``.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise NlgraftError(f"{self._run.study.variant} is still running after {timeout_s:g} s")
        return self._outcome.result()
