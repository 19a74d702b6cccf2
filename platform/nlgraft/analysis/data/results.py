"""The results of a study as read from its store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from nlgraft.analysis.data.loading import load_cell, with_early_learning
from nlgraft.analysis.data.provenance import Provenance, corpora, read_provenance
from nlgraft.analysis.data.trials import CellResult, TrialResult, cached_method
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell, cells, find_cell
from nlgraft.study.data.space import Domain
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import SEARCH_SPLITS, Metric, System
from nlgraft.study.planning.selection import read_granted
from nlgraft.study.reading.system_import import system_of

if TYPE_CHECKING:
    import pandas as pd


Importance = Callable[
    [Mapping[str, Domain], Literal["maximize", "minimize"], Sequence[tuple[Mapping[str, Any], float]]],
    dict[str, float],
]
"""Computes importances by path from domains by path, the objective's direction, and each trial's values and
objective."""


@dataclass(frozen=True)
class Invocation:
    """Counts and places of one ``nlgraft run``.

    Attributes:
        num_run: Trials it ran.
        num_reused: Trials that were finished before.
        num_failed: Trials that failed.
        report_dir: Directory of the report.
        tracking_uri: MLflow tracking URI.
        experiment: MLflow experiment.
        cells_page: Address of its cells below that of a server of MLflow.
        stop_reason: Reason why it ended early, or None.
    """

    num_run: int
    num_reused: int
    num_failed: int
    report_dir: str | None = None
    tracking_uri: str | None = None
    experiment: str | None = None
    cells_page: str | None = None
    stop_reason: str | None = None


@dataclass(frozen=True)
class Stop:
    """Replicates of a cell in a study with planned looks.

    Attributes:
        num_seeds: Number of seeds that it gets.
        stopped_because: Why it gets no more; empty if it may.
    """

    num_seeds: int
    stopped_because: str


@dataclass(eq=False)
class Results:
    """The trials of a study; unfinished ones are left out of every figure.

    Attributes:
        study: The study.
        system: Its system.
        cells: Its cells, the baseline first.
        provenance: Where and at what cost the trials ran.
        invocation: The run that ended with these results; None when they were only read.
        store: Where they come from, whose ledger corrects their verdicts; None for results that are only
            supposed, and corrected by the study alone.
        importance: Computes how much searched settings account for; None where nobody has given it.
        stops: By label, where and why the cells of a study with planned looks got no more seeds.
    """

    study: Study
    system: System
    cells: tuple[CellResult, ...]
    provenance: Provenance
    invocation: Invocation | None = None
    store: ArtifactStore | None = None
    importance: Importance | None = None
    stops: Mapping[str, Stop] = field(default_factory=dict)

    @classmethod
    def read(cls, study: Study, store: ArtifactStore) -> Self:
        """Read what the store holds of a study; trials that have not ended are planned or running."""
        # Asked once: a lease per stage would be a request for each trial.
        busy = store.leases.busy()
        granted = read_granted(study, store)
        cell_results = with_early_learning(
            [load_cell(study, cell, store, busy, granted.get(cell.key, 0)) for cell in cells(study)]
        )
        system = system_of(study)
        result = cls(study, system, cell_results, Provenance(), store=store)
        result.provenance = read_provenance(result.trials, store)
        return result

    @classmethod
    def read_dev(cls, study: Study, store: ArtifactStore) -> Self:
        """Read the replicates of a study that are scored on dev alone, as those of proposals are."""
        read = (load_cell(study, cell, store, splits=SEARCH_SPLITS) for cell in cells(study))
        return cls(study, system_of(study), tuple(read), Provenance(), store=store)

    @property
    def baseline(self) -> CellResult:
        """The cell that the others are compared with."""
        return self.cells[0]

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, cell by cell, search trials before replicates."""
        return [trial for cell in self.cells for trial in (*cell.search, *cell.trials)]

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The declared metrics that at least one finished replicate has, in the system's order."""
        declared = self.system.metrics.items()
        return {name: metric for name, metric in declared if any(c.measured(name) for c in self.cells)}

    @property
    def main_metric(self) -> str:
        """The metric that the report leads with: the objective, on test where it is scored there."""
        objective = self.study.objective.metric
        on_test = "test/" + objective.removeprefix("dev/")
        return next((name for name in (on_test, objective) if name in self.metrics), objective)

    @property
    def alpha(self) -> float:
        """The level that the study declares."""
        return self.study.analysis.alpha

    @property
    def is_constructed(self) -> bool:
        """True if any of the data is constructed."""
        return "conlang" in corpora(self.study.data)

    @property
    def granted(self) -> dict[str, int]:
        """Seeds that looks grant each cell so far, by the cell's key; empty without planned looks."""
        return {self.cell(label).cell.key: stop.num_seeds for label, stop in self.stops.items()}

    def cell(self, cell: str | Cell) -> CellResult:
        """Find a cell by a text that names it: ``baseline``, ``arm=avg_eg``, ``without x``.

        Raises:
            StudyError: The text names no cell of the study.
        """
        label = cell.label if isinstance(cell, Cell) else cell
        return self._by_label.get(label) or self._by_label[self._label_of(label)]

    @cached_method
    def _label_of(self, text: str) -> str:
        return find_cell(self.study, text).label

    @cached_property
    def _by_label(self) -> dict[str, CellResult]:
        return {cell.label: cell for cell in self.cells}

    def metric_named(self, name: str | None) -> str:
        """Check the name of a metric; None is the main one.

        Raises:
            NlgraftError: The system has no such metric.
        """
        metrics = self.system.metrics
        name = self.main_metric if name is None else name
        if name not in metrics:
            raise NlgraftError(f"{self.system.path} has no metric '{name}'. {nearest(name, list(metrics))}")
        return name

    def frame(self) -> pd.DataFrame:
        """Return all trials as a data frame.

        Returns:
            One row per trial: ``cell``, ``kind``, ``number``, ``seed``, ``state``, ``reason``,
            ``factor.<name>``, ``param.<path>``, every recorded metric, ``fingerprint``.
        """
        import pandas as pd  # half a second that `status` need not pay

        rows = [
            {"cell": trial.cell.label}
            | {name: getattr(trial, name) for name in ("kind", "number", "seed", "state", "reason")}
            | {f"factor.{name}": level for name, level in trial.cell.levels.items()}
            | {f"param.{path}": value for path, value in trial.params.items()}
            | trial.metrics
            | {"fingerprint": trial.fingerprint}
            for trial in self.trials
        ]
        return pd.DataFrame(rows).astype({"number": "Int64", "seed": "Int64"})
