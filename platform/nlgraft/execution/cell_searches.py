"""The searches of a study, one per cell: which trials they propose, and which proposal is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from nlgraft.execution.events import CellSearched
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.planning.selection import (
    Proposal,
    best_proposal,
    load_proposals,
    save_proposal,
    search_seed,
)
from nlgraft.study.reading.resolving import resolve_cell, resolve_config

KnownTrial: TypeAlias = tuple[SweepTrial, TrialRecord | None]
"""A trial and the record of its end; None while it has to run."""


def search_trial(study: Study, cell: Cell, number: int, params: Mapping[str, Any]) -> SweepTrial:
    """Build the trial of a proposal."""
    seed = search_seed(study)
    resolved = resolve_cell(study, cell, params)
    return SweepTrial(
        kind="search",
        cell=cell,
        seed=seed,
        config=resolved.config.model_dump(mode="json"),
        graph=resolved.graph(seed, SEARCH_SPLITS),
        params=dict(params),
        number=number,
    )


@dataclass
class _CellSearch:
    """Progress of the search inside one cell.

    Attributes:
        config: The cell's config by dotted path, for conditions on paths that are not searched.
        running: Numbers of the proposals that have not ended.
    """

    cell: Cell
    optuna: OptunaStudy
    config: Mapping[str, Any]
    proposals: dict[int, Proposal] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    is_over: bool = False


class CellSearches:
    """Proposes trials with an equal budget in every cell and records each proposal in the store.

    Args:
        cells: The cells to search in; none is searched in a study without a search.
        open_optuna: Opens the Optuna study of a cell.
    """

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        cells: Iterable[Cell],
        open_optuna: Callable[[Cell], OptunaStudy],
    ) -> None:
        self._study = study
        self._store = store
        self._num_trials = 0 if study.search is None else study.search.trials
        self._cells: dict[str, _CellSearch] = {}
        for cell in cells if study.search is not None else ():
            config = dict(dotted(resolve_config(study, cell).model_dump(mode="json")))
            self._cells[cell.key] = _CellSearch(cell, open_optuna(cell), config)

    @property
    def is_over(self) -> bool:
        """True when the search of every cell is over."""
        return all(state.is_over for state in self._cells.values())

    @property
    def num_unproposed(self) -> int:
        """Number of planned trials without a proposal yet, replicates of the best ones included."""
        return sum(
            self._num_trials - len(state.proposals) + (0 if state.is_over else self._study.first_seeds)
            for state in self._cells.values()
        )

    def resume(self) -> list[KnownTrial]:
        """Read the proposals on record, those that have ended with their records."""
        trials: list[KnownTrial] = []
        for state in self._cells.values():
            proposals = load_proposals(self._study, state.cell, self._store)
            # A study may have lowered its number of trials since; what lies beyond it is left alone.
            state.proposals = {p.number: p for p in proposals if p.number < self._num_trials}
            ended = {number: p.record for number, p in state.proposals.items() if p.record and p.has_ended}
            state.running = state.proposals.keys() - ended.keys()
            state.optuna.reconcile({number: p.params for number, p in state.proposals.items()}, ended)
            for number, proposal in state.proposals.items():
                trial = search_trial(self._study, state.cell, number, proposal.params)
                trials.append((trial, ended.get(number)))
        return trials

    def propose(self) -> SweepTrial | None:
        """Propose a trial in the cell that has the fewest running, and record the proposal.

        Returns:
            The trial; None when every cell has all its proposals.
        """
        wanting = [
            state
            for state in self._cells.values()
            if not state.is_over and len(state.proposals) < self._num_trials
        ]
        if not wanting:
            return None
        state = min(wanting, key=lambda s: (len(s.running), len(s.proposals)))
        # The lowest missing number: a proposal that was lost leaves a gap, not a longer search.
        number = next(number for number in range(self._num_trials) if number not in state.proposals)
        trial = search_trial(self._study, state.cell, number, state.optuna.propose(number, state.config))
        proposal = Proposal(number, trial.params, trial.seed, trial.fingerprint)
        # Before it is handed out: after a crash the search resumes with the same proposal.
        save_proposal(self._study, state.cell, self._store, proposal)
        state.proposals[number] = proposal
        state.running.add(number)
        return trial

    def intermediate(self, trial: SweepTrial, value: float, step: int) -> None:
        """Pass an intermediate value of the objective to Optuna."""
        assert trial.number is not None
        self._cells[trial.cell.key].optuna.intermediate(trial.number, value, step)

    def end(self, trial: SweepTrial, record: TrialRecord) -> None:
        """Take the end of a proposed trial."""
        assert trial.number is not None
        state = self._cells[trial.cell.key]
        state.running.discard(trial.number)
        state.optuna.tell(trial.number, record)
        proposal = state.proposals[trial.number] = replace(state.proposals[trial.number], record=record)
        if record.state == "stopped":
            save_proposal(self._study, state.cell, self._store, proposal)

    def flush(self) -> None:
        """Write what has been told to Optuna's database."""
        for state in self._cells.values():
            state.optuna.flush()

    def newly_over(self) -> list[CellSearched]:
        """Close the cells whose proposals have all ended; return the outcome of each."""
        searched = []
        for state in self._cells.values():
            if state.is_over or state.running or len(state.proposals) < self._num_trials:
                continue
            state.is_over = True
            state.optuna.flush()
            best = best_proposal(self._study.objectives, state.proposals.values())
            searched.append(CellSearched(state.cell, None if best is None else best.params))
        return searched
