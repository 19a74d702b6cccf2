"""Trials and cells as plain values, with the statistics that comparisons need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell

Array = NDArray[np.float64]
State = Literal["planned", "running", "finished", "stopped", "failed", "killed"]
Texts = tuple[list[str], list[str]]
"""Hypotheses and references."""

Method = TypeVar("Method", bound=Callable[..., Any])


def cached_method(method: Method) -> Method:
    """Keep the answers of a method, by its hashable arguments, for as long as its object lives."""

    @wraps(method)
    def cached(self: Any, *args: Any) -> Any:
        answers = vars(self).setdefault(f"{method.__name__} answers", {})
        if args not in answers:
            answers[args] = method(self, *args)
        return answers[args]

    return cast(Method, cached)


@dataclass(frozen=True, eq=False)
class Measured:
    """One metric of one finished trial.

    Attributes:
        value: The corpus score on record.
        segments: Sufficient statistics, shape (N, k); None when the metric has none.
        signature: How the score was computed; None when it has no signature.
    """

    value: float
    segments: Array | None = None
    signature: str | None = None


def by_document(rows: Array, documents: Sequence[str] | None) -> Array:
    """Sum the statistics over the lines of each document, which are too alike to be resampled one by one.

    Args:
        rows: Statistics, shape (N, k).
        documents: Document of each line; None where lines belong to none.

    Returns:
        Shape (documents, k); ``rows`` itself where they are not of lines.
    """
    if documents is None or len(documents) != len(rows):
        return rows
    # Sorted names give the same order in every trial, whatever the order of lines.
    names, index = np.unique(np.array(documents), return_inverse=True)
    summed = np.zeros((len(names), rows.shape[1]))
    np.add.at(summed, index, rows)
    return summed


@dataclass(frozen=True, eq=False)
class TrialResult:
    """One trial of a cell.

    Attributes:
        kind: ``search`` trials are scored on dev only, ``replicate`` trials on dev and test.
        cell: The cell it belongs to.
        seed: Its seed.
        fingerprint: Identity of the trial; empty until the search has chosen its config.
        state: Its state.
        reason: Why it is not finished, in one line.
        params: Searched values by dotted path.
        number: Number of the proposal; None for replicates.
        record: Its record; None before the trial has ended once.
        segments: Statistics by metric name, of each segment: a line, or a document where lines belong to one.
        num_documents: Number of test documents; 0 where lines belong to none.
        derived: Values computed from the learning curves of several trials, by metric name.
        seeded: Names of the stages that draw random numbers, by fingerprint.
        read_texts: Reads the scored text of a split; None if the store has none.
        read_stream: Reads a role of the scored corpus, by split and role; None if it has none.
    """

    kind: Literal["search", "replicate"]
    cell: Cell
    seed: int
    fingerprint: str
    state: State
    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None
    record: TrialRecord | None = field(default=None, repr=False)
    segments: Mapping[str, Array] = field(default_factory=dict, repr=False)
    num_documents: int = 0
    derived: Mapping[str, float] = field(default_factory=dict, repr=False)
    seeded: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_texts: Callable[[str], Texts | None] = field(default=lambda _: None, repr=False)
    read_stream: Callable[[str, str], list[str] | None] = field(default=lambda *_: None, repr=False)

    @property
    def metrics(self) -> dict[str, float]:
        """Recorded and derived values by metric name."""
        return {**({} if self.record is None else self.record.metrics), **self.derived}

    @property
    def config(self) -> dict[str, Any]:
        """The recorded, resolved config."""
        return {} if self.record is None else self.record.config

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The stages on record, each with its name, fingerprint and cache decision."""
        return [] if self.record is None else self.record.stages

    @property
    def duration_s(self) -> float:
        """Time of the last attempt on record."""
        return 0.0 if self.record is None else self.record.duration_s

    @property
    def curves(self) -> dict[str, list[list[int | float]]]:
        """The recorded learning curves: points of step, value and time by name."""
        return {} if self.record is None else self.record.curves

    def curve(self, name: str) -> dict[float, float]:
        """Return the finite values of a learning curve by step, the last value of each step."""
        points = self.curves.get(name, [])
        return {step: value for step, value, _ in points if math.isfinite(value)}

    @cached_method  # resampled scores are cached by the identity of what they are of
    def measured(self, metric: str) -> Measured | None:
        """Return one metric with its statistics; None unless the trial finished with a finite value of it."""
        value = self.metrics.get(metric, math.nan)
        if self.record is None or self.state != "finished" or not math.isfinite(value):
            return None
        return Measured(value, self.segments.get(metric), self.record.signatures.get(metric))


@dataclass(frozen=True, eq=False)
class CellResult:
    """One cell: its replicates and, where the study searches, its search trials.

    Attributes:
        cell: The cell.
        trials: One replicate for each seed of the study, in the study's order.
        search: Search trials by number.
        params: Values that the search chose for the replicates; empty without a search or before its end.
    """

    cell: Cell
    trials: tuple[TrialResult, ...]
    search: tuple[TrialResult, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its label."""
        return self.cell.label

    @property
    def state(self) -> State:
        """The worst state of the replicates; ``finished`` only when all are."""
        states = {trial.state for trial in self.trials}
        worst_first: tuple[State, ...] = ("failed", "killed", "stopped", "running", "planned", "finished")
        return next(state for state in worst_first if state in states)

    @property
    def has_started(self) -> bool:
        """True unless no trial has been started, as where ``--only`` leaves the cell out."""
        return any(trial.state != "planned" for trial in (*self.search, *self.trials))

    @property
    def finished(self) -> list[TrialResult]:
        """The replicates that have finished."""
        return [trial for trial in self.trials if trial.state == "finished"]

    @property
    def reasons(self) -> list[str]:
        """Why replicates are not finished, each reason once."""
        texts = [f"seed {trial.seed}: {trial.reason}" for trial in self.trials if trial.reason]
        return list(dict.fromkeys(texts))

    @property
    def trained_once(self) -> dict[str, str]:
        """Names, by fingerprint, of the random stages that all finished replicates share.

        No interval over seeds includes the variance that they cause. Empty below two finished replicates.
        """
        finished = [trial.seeded for trial in self.finished]
        # With one seed everything is trained once, which says nothing.
        if len(finished) < 2:
            return {}
        return {
            stage: name for stage, name in finished[0].items() if all(stage in stages for stages in finished)
        }

    @property
    def num_distinct(self) -> int:
        """Number of distinct search trials; the others differ in values that change nothing in this cell."""
        return len({trial.fingerprint for trial in self.search})

    def measured(self, metric: str, seeds: Sequence[int] | None = None) -> dict[int, Measured]:
        """Return a metric of the finished replicates, all or those of ``seeds``, in the study's order."""
        scores = self._measured(metric)
        return {seed: score for seed, score in scores.items() if seeds is None or seed in seeds}

    @cached_method
    def _measured(self, metric: str) -> dict[int, Measured]:
        return {trial.seed: score for trial in self.trials if (score := trial.measured(metric)) is not None}

    def values(self, metric: str, seeds: Sequence[int] | None = None) -> dict[int, float]:
        """Return the scores alone, as `measured` does."""
        return {seed: score.value for seed, score in self.measured(metric, seeds).items()}

    def lacks(self, metric: str) -> bool:
        """True if replicates have finished and none of them reports the metric, not even as NaN."""
        finished = self.finished
        return bool(finished) and not any(metric in trial.metrics for trial in finished)

    def lost(self, metric: str) -> list[int]:
        """List the seeds that failed, or whose value of a metric that others have is not finite."""
        return [
            trial.seed
            for trial in self.trials
            if trial.state == "failed"
            or (trial.state == "finished" and not math.isfinite(trial.metrics.get(metric, 0.0)))
        ]

    def mean(self, metric: str) -> float | None:
        """Average a metric over the finished replicates; None when there is none."""
        values = [*self.values(metric).values()]
        return float(np.mean(values)) if values else None

    def std(self, metric: str) -> float | None:
        """Standard deviation of a metric over seeds (n - 1); None below two seeds."""
        values = [*self.values(metric).values()]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None
