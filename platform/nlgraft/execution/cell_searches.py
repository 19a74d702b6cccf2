"""The searches of a study, one inside every cell: what is proposed, and what is replicated in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nlgraft.execution.events import CellSearched, Unit
from nlgraft.execution.optuna_study import CellSearch
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Search, Study
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.planning.selection import (
    Proposal,
    best_proposal,
    load_proposals,
    save_proposal,
    search_seed,
)
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system import load_system


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values to dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


@dataclass
class _CellState:
    """How far the search inside one cell is."""

    cell: Cell
    sampler: CellSearch
    config_values: Mapping[str, Any]
    proposals: dict[int, Proposal] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    is_over: bool = False


class Searches:
    """Proposes trials with an equal budget in every cell, and remembers the proposals in the store.

    Args:
        study: A study with a search.
        search: Its search.
        store: The artifact store.
        cells: The cells to search in.
        new_search: Builds the Optuna side of a cell's search.
    """

    def __init__(
        self,
        study: Study,
        search: Search,
        store: ArtifactStore,
        cells: list[Cell],
        new_search: Callable[[Cell], CellSearch],
    ) -> None:
        self._study = study
        self._search = search
        self._store = store
        self._system = load_system(study.system)
        self._states: list[_CellState] = []
        for cell in cells:
            config = resolve_config(study, cell).model_dump(mode="json")
            self._states.append(_CellState(cell, new_search(cell), _flat(config)))

    @property
    def is_over(self) -> bool:
        """True when the search of every cell is over."""
        return all(state.is_over for state in self._states)

    @property
    def num_unproposed(self) -> int:
        """Trials that are planned and not proposed yet, replicates of the best ones included."""
        return sum(
            self._search.trials - len(state.proposals) + len(self._study.seeds) for state in self._states
        )

    def resume(self) -> tuple[list[Unit], list[tuple[Unit, TrialRecord]]]:
        """Read the proposals on record.

        Returns:
            The trials that have not ended, and those that have, with their records.
        """
        open_units: list[Unit] = []
        ended_units: list[tuple[Unit, TrialRecord]] = []
        for state in self._states:
            proposals = load_proposals(self._study, state.cell, self._store)
            kept = [p for p in proposals if p.number < self._search.trials]
            state.proposals = {p.number: p for p in kept}
            ended = {p.number: p.record for p in kept if p.record and p.record.state != "killed"}
            state.sampler.reconcile({p.number: p.params for p in kept}, ended)
            for proposal in kept:
                unit = self._unit(state.cell, proposal.number, proposal.params)
                if proposal.number in ended:
                    ended_units.append((unit, ended[proposal.number]))
                else:
                    state.running.add(proposal.number)
                    open_units.append(unit)
        return open_units, ended_units

    def propose(self) -> Unit | None:
        """Propose a trial in the cell that has the fewest running.

        Returns:
            The trial, already on record; None when every cell has all its proposals.
        """
        wanting = [s for s in self._states if not s.is_over and len(s.proposals) < self._search.trials]
        if not wanting:
            return None
        state = min(wanting, key=lambda s: (len(s.running), len(s.proposals)))
        number = len(state.proposals)
        unit = self._unit(state.cell, number, state.sampler.propose(number, state.config_values))
        proposal = Proposal(number, unit.params, unit.seed, unit.fingerprint)
        save_proposal(self._study, state.cell, self._store, proposal)
        state.proposals[number] = proposal
        state.running.add(number)
        return unit

    def intermediate(self, unit: Unit, value: float, step: int) -> None:
        """Pass an intermediate value of the objective on to the sampler."""
        assert unit.number is not None
        self._state_of(unit).sampler.intermediate(unit.number, value, step)

    def end(self, unit: Unit, record: TrialRecord) -> None:
        """Take the end of a proposed trial."""
        assert unit.number is not None
        state = self._state_of(unit)
        state.running.discard(unit.number)
        state.sampler.tell(unit.number, record)
        known = state.proposals[unit.number]
        state.proposals[unit.number] = Proposal(
            known.number, known.params, known.seed, known.fingerprint, record
        )

    def newly_over(self) -> list[CellSearched]:
        """Close the cells whose proposals have all ended.

        Returns:
            What came out of each cell that was closed by this call.
        """
        found = []
        for state in self._states:
            if state.is_over or state.running or len(state.proposals) < self._search.trials:
                continue
            state.is_over = True
            best = best_proposal(self._study.objectives, state.proposals.values())
            found.append(CellSearched(state.cell, None if best is None else best.params))
        return found

    def _state_of(self, unit: Unit) -> _CellState:
        return next(state for state in self._states if state.cell == unit.cell)

    def _unit(self, cell: Cell, number: int, params: Mapping[str, Any]) -> Unit:
        seed = search_seed(self._study)
        config = resolve_config(self._study, cell, params)
        return Unit(
            kind="search",
            cell=cell,
            seed=seed,
            config=config.model_dump(mode="json"),
            graph=self._system.stage_graph(config, seed=seed, splits=SEARCH_SPLITS),
            params=dict(params),
            number=number,
        )
