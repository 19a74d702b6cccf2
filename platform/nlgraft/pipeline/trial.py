"""Run one stage, and the stage graph of a trial: reuse, wait for, resume or run each; leave a record."""

from __future__ import annotations

import errno
import importlib
import logging
import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Len
from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError, HostFault, StageBusy, StoreError, TrialFailed
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.integrity import first_problem, host_fault, remove_tree
from nlgraft.pipeline.stage import (
    ALONE,
    KillReason,
    Reporter,
    Stage,
    StageContext,
    StageGraph,
    TrialStopped,
    Worker,
)
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore, Decision, Verdict

logger = logging.getLogger(__name__)


def execute_stage(
    stage: Stage,
    store: ArtifactStore,
    *,
    reporter: Reporter,
    worker: Worker = ALONE,
    inputs: Mapping[str, Path] | None = None,
    reason: str = "",
) -> None:
    """Run one stage in this process, even if its artifact exists, and publish its output.

    In a worker group every rank calls this; only rank 0 publishes, the output of others is dropped. Once the
    artifact is published the stage's checkpoints are cleared.

    Args:
        stage: The stage; its inputs are stored.
        store: The artifact store.
        reporter: Receives progress.
        worker: Rank of this process in the worker group, and its device.
        inputs: Directories of its inputs by name; None: they are fetched from the store.
        reason: Why it runs, for the manifest.

    Raises:
        ArtifactDamaged: An input is damaged; it has been removed, so that the next attempt makes it again.
        ContractError: ``stage.run`` names no function, or its output cannot be stored.
        FloatingPointError: A score is not a finite number.
        Exception: The stage's own error.
    """
    function = load_function(stage, stage.run)
    if inputs is None:
        inputs = {}
        for name, upstream in stage.inputs.items():
            try:
                inputs[name] = store.fetch(upstream)
            except ArtifactDamaged:
                store.discard(upstream)
                raise
    scratch = store.new_scratch(stage)
    checkpoints = store.checkpoints(stage, is_writable=worker.rank == 0)
    context = StageContext(
        stage=stage,
        directory=scratch,
        inputs=dict(inputs),
        checkpoints=checkpoints,
        reporter=reporter,
        **asdict(worker),
    )
    started_at = time.time()
    started = time.perf_counter()
    try:
        with THREADS.of_stage(stage.fingerprint):
            function(context)
        if worker.rank == 0:
            # Before publishing: an artifact with a NaN score would be a cache hit from then on.
            check_results(scratch)
            duration_s = time.perf_counter() - started
            store.publish(
                stage,
                scratch,
                started_at=started_at,
                duration_s=duration_s,
                reason=reason,
                num_threads=THREADS.number(),
                num_workers=worker.world_size,
            )
            # Only now: until the artifact is published, they are all that a crash leaves.
            checkpoints.clear()
            logger.info("stage %s %s: stored after %.1f s", stage.name, stage.fingerprint[:12], duration_s)
    finally:
        remove_tree(scratch)


def load_function(stage: Stage, path: str) -> Callable[..., object]:
    """Import what a stage names as ``package.module:function``.

    Raises:
        ContractError: There is no such function.
    """
    module_name, _, name = path.partition(":")
    function = getattr(importlib.import_module(module_name), name, None)
    if not callable(function):
        raise ContractError(f"stage {stage.name}: {module_name} has no function {name!r}")
    return function


# The threads that this process computes with: set here, and counted for the manifests of its stages.


class Threads:
    """Number of threads of PyTorch in this process.

    PyTorch keeps the number for each thread of Python, so the thread that computes has to set it.

    Attributes:
        stage: Fingerprint of the stage that is computed; empty between stages.
    """

    def __init__(self) -> None:
        self.stage = ""
        self._number: int | None = None

    def set(self, num_threads: int) -> None:
        """Compute with so many threads from now on.

        PyTorch is not imported for this: that takes seconds which a trial of stored stages need not pay.
        """
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # read when torch is imported
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(num_threads)
        self._number = num_threads

    @contextmanager
    def of_stage(self, fingerprint: str) -> Iterator[None]:
        """Say which stage is computed."""
        self.stage = fingerprint
        try:
            yield
        finally:
            self.stage = ""

    def number(self) -> int | None:
        """Return the number of threads; None if it is not known."""
        if self._number is not None:
            return self._number
        torch = sys.modules.get("torch")
        return None if torch is None else torch.get_num_threads()


THREADS = Threads()


# Results in a trial's artifacts: ``metrics.json`` and ``curves.json`` of its stages.
#
# Any stage may write them. ``metrics.json``: ``{"test/bleu": {"value": 31.2, "signature": "...", "n":
# 500}}``; ``curves.json``: ``{"train/loss": [[step, value, unix_ms], ...]}``.


METRICS = "metrics.json"
CURVES = "curves.json"

Curve = list[list[float]]
_Value = TypeVar("_Value")
_Form = TypeVar("_Form")


@dataclass
class _Metric:
    value: float
    signature: str | None = None


_METRICS = TypeAdapter(dict[str, _Metric])
_Point = Annotated[list[int | float], Len(3, 3)]
_CURVES: TypeAdapter[dict[str, Curve]] = TypeAdapter(dict[str, list[_Point]])
_EXAMPLES = {
    METRICS: '{"test/bleu": {"value": a number}, ...}',
    CURVES: '{"dev/loss": [[step, value, unix_ms], ...], ...}',
}


class RecordingReporter:
    """A reporter that keeps the curves it passes on.

    A stage that does not finish leaves no artifact, only what it reported.

    Args:
        inner: Receives everything as well.

    Attributes:
        curves: ``[step, value, unix_ms]`` points by name, by stage name.
        num_preemptions: How often a node of the trial was lost; set by whoever runs it.
    """

    def __init__(self, inner: Reporter) -> None:
        self.curves: dict[str, dict[str, Curve]] = {}
        self.num_preemptions = 0
        self._inner = inner

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Keep the metrics and pass them on."""
        unix_ms = int(time.time() * 1000)
        curves = self.curves.setdefault(stage, {})
        for name, value in metrics.items():
            curves.setdefault(name, []).append([step, float(value), unix_ms])
        self._inner.report(stage, step, metrics)

    def should_stop(self) -> str | None:
        """Ask the inner reporter."""
        return self._inner.should_stop()


@dataclass
class TrialResults:
    """Metrics, their signatures where they have one, and curves of all stages of a trial, by name."""

    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)


def check_results(directory: Path) -> None:
    """Refuse malformed or non-finite metrics and malformed curves in a stage's output.

    Raises:
        ContractError: A file is not of the form given at the top of this module.
        FloatingPointError: A metric is NaN or infinite.
    """
    if (directory / METRICS).exists():
        _parse_metrics((directory / METRICS).read_bytes())
    if (directory / CURVES).exists():
        _parse(_CURVES, (directory / CURVES).read_bytes(), CURVES)


def collect_results(
    graph: StageGraph, store: ArtifactStore, reporter: RecordingReporter | None = None
) -> TrialResults:
    """Merge the metrics and curves of all stages of a graph.

    Names stay as the stages wrote them. Where several stages wrote one name, the deepest stage keeps it and
    the others' are prefixed ``<stage name>/``, so a finetuning's ``train/loss`` is ``train/loss`` and its
    upstream's is ``upstream/train/loss``.

    Args:
        graph: The trial's graph.
        store: The artifact store.
        reporter: Reports of the stages without an artifact; the last value of each curve counts as a metric.
    """
    stages = sorted(graph.stages, key=graph.depth, reverse=True)
    metrics: list[tuple[Stage, dict[str, _Metric]]] = []
    curves: list[tuple[Stage, dict[str, Curve]]] = []
    for stage in stages:
        if store.has(stage):
            metrics.append((stage, _parse_metrics(store.read_file(stage, METRICS))))
            curves.append((stage, _parse(_CURVES, store.read_file(stage, CURVES), CURVES)))
        elif reporter is not None:
            reported = reporter.curves.get(stage.name, {})
            last_values = {name: _Metric(points[-1][1]) for name, points in reported.items()}
            curves.append((stage, reported))
            metrics.append((stage, last_values))
    merged = _merge(metrics)
    return TrialResults(
        metrics={name: float(metric.value) for name, metric in merged.items()},
        signatures={name: metric.signature for name, metric in merged.items() if metric.signature},
        curves=_merge(curves),
    )


def _merge(by_stage: Iterable[tuple[Stage, Mapping[str, _Value]]]) -> dict[str, _Value]:
    merged: dict[str, _Value] = {}
    for stage, values in by_stage:
        for name, value in values.items():
            candidates = (name, f"{stage.name}/{name}", f"{stage.name}-{stage.fingerprint[:8]}/{name}")
            key = next(key for key in candidates if key not in merged)
            merged[key] = value
    return dict(sorted(merged.items()))


def _parse_metrics(data: bytes | None) -> dict[str, _Metric]:
    metrics = _parse(_METRICS, data, METRICS)
    for name, metric in metrics.items():
        if not math.isfinite(metric.value):
            raise FloatingPointError(f"metric {name} is {metric.value}")
    return metrics


def _parse(
    form: TypeAdapter[_Form],
    data: bytes | None,
    name: str,
) -> _Form:
    try:
        return form.validate_json(data or b"{}", strict=True)
    except ValidationError as error:
        raise ContractError(f"{name}: {first_problem(error)}; write {_EXAMPLES[name]}") from error


# The stages of one trial: reuse, wait for, resume or run each, and leave a record of the end.


_SHORTEST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_NUM_FETCHES = 3
_MAX_REASON_CHARACTERS = 1500
_DEVICE_FAULTS = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)


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
        distribute: Runs the stages of workers on a group, each worker calling `execute_stage`; raises
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
    runner = StageRunner(store, recorder, is_waiting=is_waiting, distribute=distribute, device=device)
    attempt = _Attempt(graph, store, recorder, runner, config)
    try:
        runner.ensure(graph.result)
        return attempt.record_finished()
    except StageBusy:
        raise
    except Exception as error:
        end = end_of(error, runner.current, store)
        if isinstance(end, TrialStopped):
            is_kill = isinstance(end.reason, KillReason)
            return attempt.record_end("killed" if is_kill else "stopped", end.reason)
        if isinstance(end, TrialFailed):
            attempt.record_end("failed", str(end))
        raise end from error.__cause__ if end is error else error
    except BaseException as error:
        attempt.record_end("killed", one_line(error))
        raise


def trial_record(store: ArtifactStore, fingerprint: str) -> TrialRecord | None:
    """Read the record of a trial; None if there is none that can be read."""
    return store.records.read("trials", fingerprint, TRIAL_RECORD)


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


@dataclass
class _Attempt:
    """One attempt at a trial, which ends with a record of it."""

    graph: StageGraph
    store: ArtifactStore
    reporter: RecordingReporter
    runner: StageRunner
    config: dict[str, Any]
    started_at: float = field(default_factory=time.time)

    def record_finished(self) -> TrialRecord:
        results = collect_results(self.graph, self.store)
        if not results.metrics:
            raise TrialFailed(self.graph.result.name, "no result: no stage of the trial wrote a metrics.json")
        record = self._complete(self._new_record("finished", ""), results)
        self.store.records.write("trials", record.fingerprint, record.to_json())
        return record

    def record_end(self, state: TrialState, reason: str) -> TrialRecord:
        """Record a trial that did not finish; a failing store hides neither the end nor its reason."""
        record = self._new_record(state, reason)
        try:
            try:
                results = collect_results(self.graph, self.store, self.reporter)
            except (StoreError, ContractError, OSError, FloatingPointError) as error:
                logger.warning("trial %s: metrics so far: %s", record.fingerprint[:12], one_line(error))
                results = TrialResults()
            complete = self._complete(record, results)
            write_end(complete, self.graph, self.store)
        except Exception as error:
            logger.error("trial %s: no record: %s", record.fingerprint[:12], one_line(error))
            return record
        return complete

    def _complete(self, record: TrialRecord, results: TrialResults) -> TrialRecord:
        previous = trial_record(self.store, record.fingerprint)
        stages = [self.runner.entry(stage) for stage in self.graph.stages]
        attempt = 1 if previous is None else previous.attempt + 1
        return replace(record, **vars(results), stages=stages, attempt=attempt)

    def _new_record(self, state: TrialState, reason: str) -> TrialRecord:
        seeds = (stage.seed for stage in reversed(self.graph.stages))
        return TrialRecord(
            fingerprint=self.graph.fingerprint,
            config=self.config,
            seed=next((seed for seed in seeds if seed is not None), None),
            state=state,
            reason=reason,
            started_at=self.started_at,
            ended_at=time.time(),
            host=socket.gethostname(),
            num_preemptions=self.reporter.num_preemptions,
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

    @property
    def duration_s(self) -> float:
        """Time from its start to its end."""
        return self.ended_at - self.started_at

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
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


# The stages of a trial, one after the other, and the kinds of errors that end it.


def one_line(error: BaseException, place: str = "an unnamed file") -> str:
    """Describe an error by its type and the first line of its message, without credentials.

    Args:
        error: Any exception; one about a full disk is called that.
        place: Where it was writing, in case that the error does not say.
    """
    text = without_credentials(str(error).strip().split("\n", maxsplit=1)[0])[:_MAX_REASON_CHARACTERS]
    if _is_disk_full(error):
        full = getattr(error, "filename", None) or place
        return f"disk full at {full}; free space there ({type(error).__name__}: {text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def end_of(
    error: BaseException,
    stage: str,
    store: ArtifactStore,
) -> HostFault | TrialStopped | TrialFailed:
    """Return which end of a trial an error of a stage or of the store is.

    An error of the disk on which a host keeps what it fetches and writes is the host's; a local store has no
    such disk but its own.
    """
    if isinstance(error, TrialStopped | TrialFailed | HostFault):
        return error
    cause = error.__cause__ if isinstance(error, StoreError) else error
    is_device = isinstance(cause, OSError) and cause.errno in _DEVICE_FAULTS
    disk_error = cause if cause is not None and (is_device or _is_disk_full(cause)) else None
    if disk_error is not None and not store.is_local:
        return host_fault(disk_error, store.scratch_root)
    if disk_error is not None or isinstance(error, StoreError):
        return TrialStopped(KillReason(one_line(error, store.name)))
    return TrialFailed(stage, one_line(error, store.name))


def _is_disk_full(error: BaseException) -> bool:
    # Libraries wrap it in errors of their own, so the text counts as well.
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full or os.strerror(errno.ENOSPC) in str(error)


@dataclass
class StageRunner:
    """Runs the stages that are not stored, and records each cache decision.

    Args:
        store: The artifact store.
        reporter: Receives progress, and may ask to stop.
        is_waiting: If true, wait for a stage that another owner computes; else raise `StageBusy`.
        distribute: Runs the stages of workers on a group; None: in this process.
        device: Where stages of this process compute.

    Attributes:
        current: Name of the current stage, for messages.
    """

    store: ArtifactStore
    reporter: RecordingReporter
    _: KW_ONLY
    is_waiting: bool
    distribute: Callable[[Stage], None] | None
    device: str
    current: str = "trial"
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)

    def entry(self, stage: Stage) -> dict[str, Any]:
        """Return the decision about a stage of the trial as `TrialRecord.stages` has it."""
        if stage.fingerprint in self._entries:
            return self._entries[stage.fingerprint]
        # Either all that reads it is stored, or the trial ended before its turn came.
        if self.store.has(stage):
            return _entry(stage, Verdict(Decision.HIT, "stored; not read"), 0.0)
        return _entry(stage, Verdict(Decision.MISS, "not run"), 0.0)

    def ensure(self, stage: Stage) -> None:
        """Make a stage's artifact unless it is stored and whole; first the artifacts that it reads.

        Raises:
            StageBusy: Another owner computes it and this runner does not wait.
            TrialFailed: It, or a stage that it reads, failed.
            TrialStopped: The reporter asked to stop.
        """
        started = time.monotonic()
        pause_s = _SHORTEST_WAIT_S
        owner = ""
        while stage.fingerprint not in self._stored:
            self.current = stage.name
            verdict = self.store.verify(stage)
            if verdict.decision is Decision.HIT:
                if owner:
                    verdict = Verdict(Decision.WAIT, f"computed by {owner}")
                self._note(stage, verdict, time.monotonic() - started if owner else 0.0)
                return
            # Inputs before the lease: a stage whose inputs are still missing is held by nobody.
            for upstream in stage.inputs.values():
                self.ensure(upstream)
            self.current = stage.name
            try:
                lease = self.store.leases.acquire(stage.fingerprint)
            except StageBusy as busy:
                if not self.is_waiting:
                    raise
                if not owner:
                    logger.info("stage %s %s: waits for %s", stage.name, stage.fingerprint[:12], busy.owner)
                owner = busy.owner
                self._wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
                continue
            with lease:
                # Its last owner may have published it between the look above and the lease.
                if verdict.decision is not Decision.MISS or self.store.has(stage):
                    verdict = self.store.verify(stage)
                if verdict.decision is not Decision.HIT:
                    self._make(stage, verdict)

    def _make(self, stage: Stage, verdict: Verdict) -> None:
        if verdict.decision is Decision.CORRUPT:
            self.store.discard(stage)
        else:
            step = self.store.checkpoints(stage).newest_step()
            if step is None:
                verdict = Verdict(Decision.RUN, verdict.reason)
            else:
                verdict = Verdict(Decision.RESUME, f"from its checkpoint of step {step}; {verdict.reason}")
        logger.info(
            "stage %s %s: %s (%s)", stage.name, stage.fingerprint[:12], verdict.decision, verdict.reason
        )
        started = time.monotonic()
        try:
            self._run(stage, verdict.reason)
        except StageBusy:
            raise
        except (Exception, SystemExit) as error:
            if hasattr(error, "ray_terminate_msg"):
                raise  # Ray ends its processes by SystemExit; the stage did not fail
            end = end_of(error, stage.name, self.store)
            if not isinstance(end, TrialFailed) or not self.store.has(stage):
                self._note_end(stage, end, verdict, started)
                raise end from error.__cause__ if end is error else error
            # Another owner took this lease over, was quicker and has cleared the checkpoints.
            logger.warning("stage %s failed after it was stored: %s", stage.name, one_line(error))
        self._note(stage, verdict, time.monotonic() - started)

    def _run(self, stage: Stage, reason: str) -> None:
        if stage.workers != "none" and self.distribute is not None:
            self.distribute(stage)
            if not self.store.has(stage):
                raise ContractError("its workers ended without an error and without an artifact")
            return
        inputs = {name: self._fetch(upstream) for name, upstream in stage.inputs.items()}
        self.current = stage.name
        worker = Worker(device=self.device)
        execute_stage(stage, self.store, reporter=self.reporter, worker=worker, inputs=inputs, reason=reason)

    def _fetch(self, stage: Stage) -> Path:
        """Fetch an input; one whose bytes are damaged is made again first."""
        for _ in range(_NUM_FETCHES - 1):
            try:
                return self.store.fetch(stage)
            except ArtifactDamaged as error:
                logger.warning("stage %s is made again: %s", stage.name, error)
                self.store.discard(stage)
                self._stored.discard(stage.fingerprint)
                self.ensure(stage)
        return self.store.fetch(stage)

    def _wait(self, pause_s: float) -> None:
        reason = self.reporter.should_stop()
        if reason is not None:
            raise TrialStopped(reason)
        time.sleep(pause_s)

    def _note(
        self,
        stage: Stage,
        verdict: Verdict,
        duration_s: float,
    ) -> None:
        self._entries[stage.fingerprint] = _entry(stage, verdict, duration_s)
        self._stored.add(stage.fingerprint)

    def _note_end(
        self,
        stage: Stage,
        end: HostFault | TrialStopped | TrialFailed,
        ran: Verdict,
        started: float,
    ) -> None:
        if isinstance(end, HostFault):
            return
        failed = {"traceback": traceback.format_exc()} if isinstance(end, TrialFailed) else {}
        decision = Decision.FAILED if failed else Decision.STOPPED
        entry = _entry(stage, Verdict(decision, end.reason), time.monotonic() - started)
        self._entries[stage.fingerprint] = {**entry, "ran_because": ran.reason, **failed}


def _entry(
    stage: Stage,
    verdict: Verdict,
    duration_s: float,
) -> dict[str, Any]:
    return {
        "name": stage.name,
        "fingerprint": stage.fingerprint,
        "decision": str(verdict.decision),
        "reason": verdict.reason,
        "duration_s": round(duration_s, 3),
    }


def is_dev_curve(name: str) -> bool:
    """Tell if a curve is of dev text: ``dev/loss``, ``upstream/dev/loss``, ``generator/dev_loss``."""
    return any(part == "dev" or part.startswith("dev_") for part in name.split("/"))
