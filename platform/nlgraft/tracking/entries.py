"""What one MLflow run shall hold: plain data, built before anything is sent and safe to send twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from nlgraft.pipeline.stage import StageGraph

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
"""MLflow's states of a run, as far as nlgraft uses them."""

Fill: TypeAlias = Callable[[Path], None]
"""Puts files into a directory, when and if they are needed."""

MAX_POINTS = 50_000
"""Points of one run that wait for an unreachable server; older ones come back with the trial's record."""


class CellLike(Protocol):
    """What tracking needs of a cell; `nlgraft.study.data.design.Cell` is one."""

    @property
    def label(self) -> str:
        """What people read, e.g. ``generator=att``."""
        ...

    @property
    def levels(self) -> Mapping[str, Any]:
        """Level by factor."""
        ...

    @property
    def key(self) -> str:
        """Fingerprint of the cell's overrides."""
        ...


class TrialLike(Protocol):
    """What tracking needs of a planned trial; `nlgraft.execution.events.Unit` is one."""

    @property
    def kind(self) -> Literal["search", "replicate"]:
        """Search trials are scored on dev only."""
        ...

    @property
    def cell(self) -> CellLike:
        """The cell it belongs to."""
        ...

    @property
    def seed(self) -> int:
        """Its seed."""
        ...

    @property
    def number(self) -> int | None:
        """Number of the proposal within its cell; None for replicates."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Searched values by dotted path."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config as JSON values."""
        ...

    @property
    def graph(self) -> StageGraph:
        """Its stages."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the trial."""
        ...


@dataclass(frozen=True)
class RunKey:
    """Which run of a study: the fingerprint alone is not enough, two cells may ask for the same trial.

    Attributes:
        kind: ``study``, ``cell`` or ``trial``.
        cell: Label of the cell; empty for the study's own run.
        fingerprint: Value of the tag ``nlgraft.fingerprint``.
    """

    kind: str
    cell: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric.

    Attributes:
        key: Name, e.g. ``dev/bleu``.
        value: The value; NaN and infinities are allowed.
        timestamp_ms: When it was measured, Unix milliseconds.
        step: Optimiser step.
    """

    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, kw_only=True)
class TrackedDataset:
    """One data set that a run has read.

    Attributes:
        name: E.g. ``multi30k/train``.
        digest: Digest of the bytes; MLflow keeps the first 36 characters.
        source: Where it comes from: paths, a hub name, or the generator's settings as JSON.
        context: ``train``, ``dev`` or ``test``.
        source_type: ``files``, ``huggingface``, ``sacrebleu`` or ``conlang``.
        profile: Counts to show, e.g. ``{"segments": 20000}``.
    """

    name: str
    digest: str
    source: str
    context: str
    source_type: str = "files"
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BestModel:
    """The trial whose model the study offers for serving.

    Attributes:
        fingerprint: The trial's fingerprint.
        find: Gives the local artifact directory with ``predictor.json``; None when the trial has none.
    """

    fingerprint: str
    find: Callable[[], Path | None]


@dataclass(kw_only=True)
class RunEntry:
    """What a run shall hold. Entries of one key merge; writing one twice changes nothing.

    Attributes:
        key: Which run.
        parent: The run it nests under.
        name: Run name.
        started_ms: Start, Unix milliseconds.
        tags: Tags to set.
        params: Parameters to set; one that is set already stays as it is.
        curve: Points of learning curves; a value of a step is written once, whoever reports it first.
        results: Final values; written when they differ from the run's newest value.
        datasets: Inputs.
        texts: Text artifacts by path.
        files: Lays out file artifacts.
        status: State to bring the run to; None leaves it.
        ended_ms: End, Unix milliseconds.
        model: A model to log beside the run.
        digest: Set where nothing more will come: a run that ended with this digest holds it all already.
    """

    key: RunKey
    parent: RunKey | None = None
    name: str = ""
    started_ms: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    results: list[Point] = field(default_factory=list)
    datasets: tuple[TrackedDataset, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    files: Fill | None = None
    status: Status | None = None
    ended_ms: int | None = None
    model: BestModel | None = None
    digest: str = ""

    def merge(self, newer: RunEntry) -> RunEntry:
        """Lay a newer entry of the same run over this one.

        Args:
            newer: What came after.

        Returns:
            One entry that holds both; where they differ, the newer one counts.
        """
        return RunEntry(
            key=self.key,
            parent=newer.parent or self.parent,
            name=newer.name or self.name,
            started_ms=self.started_ms or newer.started_ms,
            tags=self.tags | newer.tags,
            params=self.params | newer.params,
            curve=self.curve[-MAX_POINTS:] + newer.curve,
            results=newer.results or self.results,
            datasets=newer.datasets or self.datasets,
            texts=self.texts | newer.texts,
            files=newer.files or self.files,
            status=newer.status or self.status,
            ended_ms=newer.ended_ms if newer.status else self.ended_ms,
            model=newer.model or self.model,
            digest=newer.digest if newer.status else self.digest,
        )

    def seal(self) -> RunEntry:
        """Mark the entry as the last word on its run.

        Returns:
            The entry, its digest over all that it says. The bytes of files are left out: the fingerprint
            stands for them.
        """
        said = [
            self.name,
            self.tags,
            self.params,
            [(p.key, repr(p.value), p.step) for p in (*self.curve, *self.results)],
            [(d.name, d.digest, d.context) for d in self.datasets],
            self.texts,
            self.model.fingerprint if self.model else None,
        ]
        self.digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]
        return self
