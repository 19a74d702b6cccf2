"""Reports a sweep to MLflow from a thread of its own, so that a slow or unreachable server stops no training.

Importing this module does not import mlflow; the writer thread does when the study starts.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlgraft.basics.errors import StudyError
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.tracking.entries import (
    END_REASON,
    STATE,
    BestModel,
    IsRead,
    Point,
    RunEntry,
    RunKey,
    copy_scored_files,
    find_model,
    metric_name,
    upstream_trainings,
)
from nlgraft.tracking.layout import StudyLayout, cells_page, now_ms, trial_key
from nlgraft.tracking.uri import check_uri, is_database, public_text
from nlgraft.tracking.writer import Writer

if TYPE_CHECKING:
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.pipeline.trial import TrialRecord
    from nlgraft.study.data.study import Objective
    from nlgraft.study.public import Study
    from nlgraft.tracking.backend import MlflowBackend


# From the last trial to the end of a run, its report included, and for MLflow alone at the least.
_CLOSE_S = 27.0
_SHORTEST_CLOSE_S = 10.0
_INTERRUPTED_CLOSE_S = 20.0
# The processes of MLflow's server.
_NUM_AT_ONCE = 4
_MLFLOW_SETTINGS = {
    # Standard output belongs to --json.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # The writer retries, after checking if the call got through.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # The user asked nlgraft, not MLflow, and may have no network.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MlflowTracker:
    """Writes one study to MLflow. Only the driver uses it: with one writer, trials cannot race.

    **Speed.** Every method except `start_study` and `close` only queues.

    **Failure.** No method raises because of MLflow. Entries that cannot be sent wait and are retried with
    growing pauses, and the outage is reported once. Whatever is still missing at the end is added by the next
    run, which passes every trial of the study to `trial_ended`, also those that ended earlier.

    **Idempotence.** Runs are found by fingerprint; the same events twice change nothing.

    Args:
        uri: Tracking URI; ``file:`` stores are refused.
        experiment: Experiment name.
        start_timeout_s: Longest time that `start_study` waits for the database schema and the experiment.
        connect: Opens the store; replaced in tests.
        artifact_root: Directory or URI below which artifacts go if a database is written without a server.
        store_id: Id of the artifact store: runs that another store reports are left alone.

    Raises:
        StudyError: MLflow cannot write to such a URI.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        *,
        start_timeout_s: float = 30.0,
        connect: Callable[[StudyLayout], MlflowBackend] | None = None,
        artifact_root: str | None = None,
        store_id: str = "",
    ) -> None:
        self.uri = check_uri(uri)
        self.experiment = experiment
        self._start_timeout_s = start_timeout_s
        self._artifact_root = artifact_root
        self._store_id = store_id
        self._may_write: Callable[[], bool] = lambda: True
        self._connect = connect or self._connect_mlflow
        self._lock = threading.Lock()
        self._layout: StudyLayout | None = None
        self._writer: Writer | None = None
        self._running: set[RunKey] = set()
        self._earlier: list[RunEntry] = []
        self._is_interrupted = False
        self._last_end_s = time.monotonic()

    def start_study(
        self,
        study: Study,
        fingerprint: str,
        cells: Sequence[Cell],
        may_write: Callable[[], bool] = lambda: True,
        is_read: IsRead = lambda path, config: True,
    ) -> None:
        """Create schema, experiment, study run and cell runs; end the runs that a dead driver left running.

        Waits for schema and experiment, so that no worker finds a half-made database, but not for a store
        that does not respond.

        Args:
            cells: The cells that will run.
            may_write: Asked before each write; False once another driver writes this study. What it raises
                counts as a failure of the write.
            is_read: Tells if a setting has an effect in a config; others are no parameters of a trial.

        Raises:
            StudyError: MLflow refuses this user.
        """
        self._layout = layout = layout_of(study, self.experiment, fingerprint, cells, is_read)
        self._may_write = may_write
        self._best = BestTrial(study.objective)
        self._writer = Writer(
            lambda: self._connect(layout),
            self._running_now,
            f"MLflow at {public_text(self.uri)}",
            may_write,
            num_at_once=1 if is_database(self.uri) else _NUM_AT_ONCE,
        )
        for entry in layout.start():
            self._put(entry)
        try:
            self._writer.start(self._start_timeout_s)
        except StudyError:
            # There is nothing to close.
            self._writer = None
            raise

    @property
    def cells_page(self) -> str | None:
        """The address of the experiment's cells below that of a server; None if MLflow has not responded."""
        experiment_id = None if self._writer is None else self._writer.experiment_id
        return None if experiment_id is None else cells_page(experiment_id)

    def trial_started(self, trial: SweepTrial) -> None:
        """Report that a trial was handed to a worker."""
        self._put_earlier()
        self._put(self._require_layout().trial_start(trial))

    def trial_metrics(
        self,
        trial: SweepTrial,
        step: int,
        metrics: Mapping[str, float],
        timestamp_ms: int,
        stage: str = "",
    ) -> None:
        """Report metrics of a running trial at an optimizer step.

        Args:
            timestamp_ms: Unix milliseconds.
            stage: Name of the reporting stage; the curves of an upstream training are prefixed by it.
        """
        prefix = f"{stage}/" if stage in upstream_trainings(trial.graph) else ""
        points = [
            Point(metric_name(prefix + name), float(value), timestamp_ms, step)
            for name, value in metrics.items()
        ]
        key = trial_key(trial)
        if key in self._running_now():
            self._put(RunEntry(key=key, curve=points))

    def trial_ended(
        self,
        trial: SweepTrial,
        record: TrialRecord,
        store: ArtifactStore | None = None,
        *,
        is_reused: bool = False,
    ) -> None:
        """Report how a trial ended, now or in an earlier run.

        A trial that MLflow holds in full costs no write. Those of earlier runs are collected until the study
        goes on or ends, since MLflow is asked once if it holds them all.

        Args:
            trial: The trial; it need not have been passed to `trial_started`.
            store: Store of its artifacts: hypotheses, references, scores, and the model if it is the best.
            is_reused: True if an earlier run ended it.
        """
        self._last_end_s = time.monotonic()
        files = None if store is None else partial(copy_scored_files, trial.graph, store)
        entry = self._require_layout().trial_end(trial, record, files)
        if is_reused:
            self._earlier.append(entry)
        else:
            self._put(entry)
        if store is not None:
            self._best.consider(trial, record, store)

    def finish_study(
        self,
        result: Mapping[str, Any],
        note: str,
        report_directory: Path | None = None,
    ) -> None:
        """Report the results of the study and of every cell that ran, and end all runs.

        The model of the best replicate by the objective is logged for serving.

        Args:
            result: The JSON of ``run --json``.
            note: The comparison table as Markdown.
            report_directory: Directory of the report.
        """
        layout = self._require_layout()
        self._put_earlier()
        results = {cell_result["label"]: cell_result for cell_result in result.get("cells", [])}
        for cell in layout.cells:
            if cell.label in results:
                self._put(layout.cell_end(cell, results[cell.label], result["main_metric"]))
        self._end_running("the study ended before it", besides=layout.study_key)
        self._put(layout.study_end(result, note, report_directory, self._best.model))

    def interrupt(self, reason: str = "interrupted") -> None:
        """End all runs as killed from outside, e.g. by a signal."""
        self._is_interrupted = True
        self._end_running(reason)

    def abandon(self) -> None:
        """Stop without writing anything further: another driver writes this study now."""
        if self._writer is not None:
            self._writer.abandon()

    def close(self, timeout_s: float | None = None) -> int:
        """Send what is left, and end every run that is still running.

        Args:
            timeout_s: Longest wait; None for what is left of 27 s since the last trial ended, 10 s at the
                least, or for 20 s after `interrupt`, since whoever sent the signal will kill soon.

        Returns:
            Number of runs that MLflow does not hold in full; the next run adds the rest.
        """
        if self._writer is None:
            return 0
        self._put_earlier()
        self._end_running("the driver ended before it")
        if timeout_s is None:
            remaining_s = self._last_end_s + _CLOSE_S - time.monotonic()
            timeout_s = _INTERRUPTED_CLOSE_S if self._is_interrupted else max(_SHORTEST_CLOSE_S, remaining_s)
        return self._writer.close(timeout_s)

    def _connect_mlflow(self, layout: StudyLayout) -> MlflowBackend:
        prepare_mlflow()
        from nlgraft.tracking.connection import connect

        return connect(
            self.uri,
            self.experiment,
            layout.fingerprint,
            layout.experiment_tags,
            self._artifact_root,
            self._may_write,
            self._store_id,
        )

    def _put_earlier(self) -> None:
        """Queue the trials of earlier runs that were collected."""
        if self._earlier and self._writer is not None:
            self._writer.put_earlier(self._earlier)
        self._earlier = []

    def _running_now(self) -> set[RunKey]:
        with self._lock:
            return set(self._running)

    def _put(self, entry: RunEntry) -> None:
        with self._lock:
            if entry.status == "RUNNING":
                self._running.add(entry.key)
            elif entry.status is not None:
                self._running.discard(entry.key)
        assert self._writer is not None
        self._writer.put(entry)

    def _end_running(self, reason: str, besides: RunKey | None = None) -> None:
        # Trials before cells before the study, so that no ended run has a running child.
        order = ("trial", "cell", "study")
        running = self._running_now() - {besides}
        for key in sorted(running, key=lambda key: order.index(key.kind)):
            tags = {STATE: "killed", END_REASON: reason}
            self._put(RunEntry(key=key, tags=tags, status="KILLED", ended_ms=now_ms()))

    def _require_layout(self) -> StudyLayout:
        assert self._layout is not None, "start_study comes first"
        return self._layout


def layout_of(
    study: Study,
    experiment: str,
    fingerprint: str,
    cells: Sequence[Cell],
    is_read: IsRead,
) -> StudyLayout:
    """Lay out a study; where the experiment holds others, its runs carry its name."""
    prefix = "" if experiment == study.variant else f"{study.variant}: "
    return StudyLayout(study, fingerprint, cells, is_read, prefix)


def prepare_mlflow() -> None:
    """Set what MLflow reads from the environment at import and at every call."""
    for name, value in _MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)


# The best trial of a study: its model is logged for serving.


class BestTrial:
    """The finished replicate with the best objective on dev; the first of two equal ones."""

    def __init__(self, objective: Objective) -> None:
        self._metric = objective.metric
        self._sign = objective.sign
        self._value = -math.inf
        self.model: BestModel | None = None

    def consider(
        self,
        trial: SweepTrial,
        record: TrialRecord,
        store: ArtifactStore,
    ) -> None:
        """Compare a trial that has ended with the best so far."""
        if trial.kind != "replicate" or record.state != "finished":
            return
        value = self._sign * record.metrics.get(self._metric, math.nan)
        if value > self._value:
            self._value = value
            self.model = BestModel(trial.fingerprint, partial(find_model, trial.graph, store))
