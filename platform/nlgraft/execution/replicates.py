"""The replicates of a study: with which params each cell is trained, and how many seeds it is granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nlgraft.execution.events import SweepTrial
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import finished_record
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_cell


class Built(NamedTuple):
    """Replicates that are still to be run, and those on record as finished."""

    missing: list[SweepTrial]
    finished: list[tuple[SweepTrial, TrialRecord]]


class Replicates:
    """Builds the replicates of the cells as they are granted.

    Args:
        splits: Splits on which they are scored.

    Attributes:
        granted: How many seeds each cell has, by the cell's key.
    """

    def __init__(
        self, study: Study, store: ArtifactStore, cells: Sequence[Cell], splits: tuple[str, ...]
    ) -> None:
        self.granted = {cell.key: study.first_seeds for cell in cells}
        self._study = study
        self._store = store
        self._cells = cells
        self._splits = splits
        self._params: dict[str, Mapping[str, Any]] = {}

    def begin(self, cell: Cell, params: Mapping[str, Any]) -> Built:
        """Build the first replicates of a cell, with the params that its search has found, or none."""
        self._params[cell.key] = params
        return self._since(cell, 0)

    def grant(self, granted: Mapping[str, int]) -> Built:
        """Build what a planned look grants beyond what cells have; those that have none yet are left out."""
        found = Built([], [])
        for cell in self._cells:
            start = self.granted[cell.key]
            if cell.key in self._params and granted.get(cell.key, 0) > start:
                self.granted[cell.key] = granted[cell.key]
                missing, finished = self._since(cell, start)
                found.missing.extend(missing)
                found.finished.extend(finished)
        return found

    def _since(self, cell: Cell, start: int) -> Built:
        params = self._params[cell.key]
        resolved = resolve_cell(self._study, cell, params)
        document = resolved.config.model_dump(mode="json")
        built = Built([], [])
        for seed in self._study.look_seeds[start : self.granted[cell.key]]:
            graph = resolved.graph(seed, self._splits)
            trial = SweepTrial(
                kind="replicate", cell=cell, seed=seed, config=document, graph=graph, params=dict(params)
            )
            record = finished_record(graph, self._store)
            if record is None:
                built.missing.append(trial)
            else:
                built.finished.append((trial, record))
        return built
