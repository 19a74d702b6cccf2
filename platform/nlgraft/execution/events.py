"""What the sweep hands to a worker, and what it tells the rest of the house."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One trial that the sweep must see finished.

    Attributes:
        kind: ``search`` trials are scored on dev only, ``replicate`` trials on dev and test.
        cell: The cell that the trial belongs to.
        seed: The trial's seed.
        params: Searched values by dotted path; empty without a search.
        number: Number of the proposal within its cell; None for replicates.
        config: The resolved config of the system, as JSON values.
        graph: The trial's stage graph.
    """

    kind: Literal["search", "replicate"]
    cell: Cell
    seed: int
    config: Mapping[str, Any]
    graph: StageGraph
    params: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the trial: that of its last stage."""
        return self.graph.fingerprint

    @property
    def key(self) -> str:
        """Identity within one sweep: two cells may ask for the same trial."""
        return f"{self.kind}/{self.cell.key}/{self.seed if self.number is None else self.number}"

    @property
    def name(self) -> str:
        """What people read: cell and seed, or cell and number of the proposal."""
        tail = f"seed {self.seed}" if self.number is None else f"search {self.number}"
        return f"{self.cell.label}, {tail}"


@dataclass(frozen=True)
class SweepStarted:
    """The sweep knows what it has to do.

    Attributes:
        num_trials: Trials of the study, search trials included.
        num_reused: Those of them that are finished already.
        max_concurrent: How many run at once.
    """

    num_trials: int
    num_reused: int
    max_concurrent: int


@dataclass(frozen=True)
class TrialStarted:
    """A trial was handed to a worker."""

    unit: Unit


@dataclass(frozen=True)
class TrialProgress:
    """A stage of a running trial reported.

    Attributes:
        unit: The trial.
        stage: Name of the reporting stage.
        step: Optimiser step within the stage.
        metrics: Values by name.
        unix_ms: When it was reported.
    """

    unit: Unit
    stage: str
    step: int
    metrics: Mapping[str, float]
    unix_ms: int


@dataclass(frozen=True)
class TrialEnded:
    """A trial is over; ``record.state`` says how.

    Attributes:
        unit: The trial.
        record: What is remembered of it.
        is_reused: True when nothing had to run.
    """

    unit: Unit
    record: TrialRecord
    is_reused: bool = False


@dataclass(frozen=True)
class CellSearched:
    """The search inside a cell is over.

    Attributes:
        cell: The cell.
        params: The best proposal's values, or None when every proposal failed.
    """

    cell: Cell
    params: Mapping[str, Any] | None


@dataclass(frozen=True)
class Notice:
    """Something a person should read: what is waited for, why the sweep stops."""

    message: str


Event = SweepStarted | TrialStarted | TrialProgress | TrialEnded | CellSearched | Notice
Observer = Callable[[Event], None]
