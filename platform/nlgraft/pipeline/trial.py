"""Run one trial's stage graph, sharing what exists."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from nlgraft.basics.errors import ContractError, StageBusy, StoreError, TrialFailed
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.execute import RecordingReporter, TrialResults, collect_results, execute_stage
from nlgraft.pipeline.runner import StageRunner, fault_of_host, is_store_fault, one_line
from nlgraft.pipeline.stage import KillReason, Reporter, Stage, StageGraph, TrialStopped
from nlgraft.pipeline.store import ArtifactStore, Decision

__all__ = [
    "RecordingReporter",
    "TrialRecord",
    "TrialStopped",
    "execute_stage",
    "finished_record",
    "one_line",
    "run_trial",
    "trial_record",
    "write_end",
]

logger = logging.getLogger(__name__)


def run_trial(
    graph: StageGraph,
    store: ArtifactStore,
    *,
    reporter: Reporter,
    config: dict[str, Any],
    is_waiting: bool,
    distribute: Callable[[Stage], None] | None = None,
    device: str = "cpu",
) -> TrialRecord:
    """Run the missing stages of a trial and leave its record in the store, however it ends.

    Stages whose artifacts exist are not run, nor looked at if everything that reads them exists. For a trial
    that has finished before, its record is returned.

    Args:
        graph: The trial's stages.
        store: The artifact store.
        reporter: Receives progress; a `RecordingReporter` (one per trial) is used as it is, so that a caller
            whose workers report elsewhere can feed it.
        config: The resolved config, for the record; the seed there is that of the last stage that has one.
        is_waiting: If true, wait for a stage that another owner computes; else raise at once.
        distribute: Runs a distributed stage on a worker group, each worker calling `execute_stage`; raises
            `TrialStopped` when the stage was stopped. Left out, such a stage runs in this process.
        device: Where stages of this process compute.

    Returns:
        The record; its state is ``finished``, ``stopped`` if the reporter asked to stop, or ``killed`` if it
        did so by a `KillReason` or if the store failed, in which case the record may not be stored.

    Raises:
        StageBusy: Another owner computes a stage and ``is_waiting`` is False; no record is written.
        HostFault: A disk of this host failed or is full; no record is written.
        TrialFailed: A stage failed, or none wrote a metric; the record says ``failed``.
    """
    # Checksums as well: a record may outlive the bytes of its artifact.
    finished = finished_record(graph, store)
    if finished is not None and store.verify(graph.result).decision is Decision.HIT:
        return finished
    recorder = reporter if isinstance(reporter, RecordingReporter) else RecordingReporter(reporter)
    seed = next((stage.seed for stage in reversed(graph.stages) if stage.seed is not None), None)
    runner = StageRunner(store, recorder, is_waiting=is_waiting, distribute=distribute, device=device)
    writer = _RecordWriter(graph, store, recorder, runner, config, seed)
    try:
        runner.ensure(graph.result)
        return writer.record_finished()
    except StageBusy:
        raise
    except TrialStopped as stopped:
        if isinstance(stopped.reason, KillReason):
            return writer.try_record_end("killed", stopped.reason)
        return writer.record_end("stopped", stopped.reason)
    except TrialFailed as failed:
        writer.try_record_end("failed", str(failed))
        raise
    except Exception as error:  # from the store, not from a stage
        if fault := fault_of_host(error, store):
            raise fault from error
        if is_store_fault(error):
            return writer.try_record_end("killed", one_line(error, store.name))
        failed = TrialFailed(runner.current, one_line(error, store.name))
        writer.try_record_end("failed", str(failed))
        raise failed from error
    except BaseException as error:
        writer.try_record_end("killed", one_line(error))
        raise


def trial_record(store: ArtifactStore, fingerprint: str) -> TrialRecord | None:
    """Read the record of a trial; None if there is none that can be read."""
    return store.read_record("trials", fingerprint, TRIAL_RECORD)


def finished_record(graph: StageGraph, store: ArtifactStore) -> TrialRecord | None:
    """Read the record of a trial that has finished and whose last artifact is stored; else None."""
    record = trial_record(store, graph.fingerprint)
    if record is None or record.state != "finished" or not store.has(graph.result):
        return None
    return record


def write_end(record: TrialRecord, graph: StageGraph, store: ArtifactStore) -> None:
    """Write the record of a trial that did not finish, unless another process finishes it meanwhile."""

    def is_final(stored: TrialRecord) -> bool:
        return stored.state == "finished" and store.has(graph.result)

    store.records.write_unless("trials", record.fingerprint, record.to_json(), TRIAL_RECORD, is_final)


class _RecordWriter:
    """Writes the record of one attempt at a trial."""

    def __init__(
        self,
        graph: StageGraph,
        store: ArtifactStore,
        reporter: RecordingReporter,
        runner: StageRunner,
        config: dict[str, Any],
        seed: int | None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._reporter = reporter
        self._runner = runner
        self._config = config
        self._seed = seed
        self._started_at = time.time()

    def record_finished(self) -> TrialRecord:
        results = collect_results(self._graph, self._store)
        if not results.metrics:
            raise TrialFailed(
                self._graph.result.name, "no result: no stage of the trial wrote a metrics.json"
            )
        record = self._new_record("finished", "", results)
        self._store.write_record("trials", record.fingerprint, record.to_json())
        return record

    def record_end(self, state: TrialState, reason: str) -> TrialRecord:
        """Record a trial that did not finish, unless another process has finished it meanwhile."""
        try:
            results = collect_results(self._graph, self._store, self._reporter)
        except (StoreError, ContractError, OSError, FloatingPointError) as error:
            logger.warning("trial %s: metrics so far: %s", self._graph.fingerprint[:12], one_line(error))
            results = TrialResults()
        record = self._new_record(state, reason, results)
        write_end(record, self._graph, self._store)
        return record

    def try_record_end(self, state: TrialState, reason: str) -> TrialRecord:
        """As `record_end`, but a failing store hides neither the end nor its reason."""
        try:
            return self.record_end(state, reason)
        except Exception as error:
            logger.error("trial %s: no record: %s", self._graph.fingerprint[:12], one_line(error))
            return self._bare_record(state, reason)

    def _new_record(self, state: TrialState, reason: str, results: TrialResults) -> TrialRecord:
        previous = trial_record(self._store, self._graph.fingerprint)
        return replace(
            self._bare_record(state, reason),
            metrics=results.metrics,
            signatures=results.signatures,
            curves=results.curves,
            stages=[self._runner.entry(stage) for stage in self._graph.stages],
            attempt=1 if previous is None else previous.attempt + 1,
        )

    def _bare_record(self, state: TrialState, reason: str) -> TrialRecord:
        return TrialRecord(
            fingerprint=self._graph.fingerprint,
            config=self._config,
            seed=self._seed,
            state=state,
            reason=reason,
            started_at=self._started_at,
            ended_at=time.time(),
            host=socket.gethostname(),
            num_preemptions=self._reporter.num_preemptions,
        )


# The record of a trial beside its artifacts: one small JSON document.


TrialState = Literal["finished", "failed", "stopped", "killed"]
_TEXTS = ("reason", "ran_because", "traceback")


@dataclass(kw_only=True)
class TrialRecord:
    """How a trial ended. Its reasons and tracebacks hold no credentials.

    Attributes:
        fingerprint: The trial's identity: the fingerprint of its graph.
        config: The resolved config.
        seed: Seed of the trial; None if none of its stages draws random numbers.
        state: ``finished``; ``failed``; ``stopped`` early on request; ``killed`` from outside.
        reason: One line; empty if finished.
        metrics: Last known value by metric name.
        signatures: How a metric was computed, by metric name, where it has a signature.
        curves: ``[step, value, unix_ms]`` points by name.
        stages: One entry per stage of the graph: name, fingerprint, decision, reason, duration_s; if it
            failed or was stopped also ran_because, and traceback if it failed.
        started_at: Unix seconds.
        ended_at: Unix seconds.
        host: Where it ran.
        attempt: 1 for the first run that left a record.
        num_preemptions: How often this attempt lost a node, e.g. a spot machine, and went on.
    """

    fingerprint: str
    config: dict[str, Any] = field(repr=False)
    seed: int | None
    state: TrialState
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict, repr=False)
    curves: dict[str, list[list[int | float]]] = field(default_factory=dict, repr=False)
    stages: list[dict[str, Any]] = field(default_factory=list, repr=False)
    started_at: float = 0.0
    ended_at: float = 0.0
    host: str = ""
    attempt: int = 1
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        # Masked at the source: drivers and workers create records, reports and MLflow show them.
        self.reason = without_credentials(self.reason)
        self.stages = [
            {name: without_credentials(value) if name in _TEXTS else value for name, value in stage.items()}
            for stage in self.stages
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN and infinities become text, e.g. ``Infinity``."""
        document = asdict(self)
        document["metrics"] = {name: _to_number(value) for name, value in self.metrics.items()}
        document["curves"] = {
            name: [[step, _to_number(value), unix_ms] for step, value, unix_ms in points]
            for name, points in self.curves.items()
        }
        return document


TRIAL_RECORD = TypeAdapter(TrialRecord)
"""Reads what `TrialRecord.to_json` gives; keys of a later version are dropped."""


def _to_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
