"""Run one stage in this process."""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from annotated_types import Len
from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.integrity import first_problem, remove_tree
from nlgraft.pipeline.stage import ALONE, Reporter, Stage, StageContext, StageGraph, Worker
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore

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
_CURVES: TypeAdapter[dict[str, Curve]] = TypeAdapter(dict[str, list[Annotated[list[int | float], Len(3, 3)]]])
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

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
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
            curves.append((stage, reported))
            metrics.append((stage, {name: _Metric(points[-1][1]) for name, points in reported.items()}))
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


def _parse(form: TypeAdapter[_Form], data: bytes | None, name: str) -> _Form:
    try:
        return form.validate_json(data or b"{}", strict=True)
    except ValidationError as error:
        raise ContractError(f"{name}: {first_problem(error)}; write {_EXAMPLES[name]}") from error
