"""The searches of a study, one per cell: which trials they propose, and which proposal is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nlgraft.execution.events import CellSearched, SweepTrial
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
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
from nlgraft.study.reading.resolving import resolve_cell, resolve_config


def flat_config(study: Study, cell: Cell) -> dict[str, Any]:
    """Resolve the config of a cell by dotted path, for conditions on paths that are not searched."""
    return dict(dotted(resolve_config(study, cell).model_dump(mode="json")))


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
        search: The study's search.
        cells: The cells to search in.
        open_optuna: Opens the Optuna study of a cell.
    """

    def __init__(
        self,
        study: Study,
        search: Search,
        store: ArtifactStore,
        cells: list[Cell],
        open_optuna: Callable[[Cell], OptunaStudy],
    ) -> None:
        self._study = study
        self._search = search
        self._store = store
        self._cells: dict[str, _CellSearch] = {}
        for cell in cells:
            self._cells[cell.key] = _CellSearch(cell, open_optuna(cell), flat_config(study, cell))

    @property
    def is_over(self) -> bool:
        """True when the search of every cell is over."""
        return all(state.is_over for state in self._cells.values())

    @property
    def num_unproposed(self) -> int:
        """Number of planned trials without a proposal yet, replicates of the best ones included."""
        return sum(
            self._search.trials - len(state.proposals) + (0 if state.is_over else self._study.first_seeds)
            for state in self._cells.values()
        )

    def resume(self) -> tuple[list[SweepTrial], list[tuple[SweepTrial, TrialRecord]]]:
        """Read the proposals on record: the trials that are open, and those that have ended."""
        open_trials: list[SweepTrial] = []
        ended_trials: list[tuple[SweepTrial, TrialRecord]] = []
        for state in self._cells.values():
            proposals = load_proposals(self._study, state.cell, self._store)
            # A study may have lowered its number of trials since; what lies beyond it is left alone.
            kept = [p for p in proposals if p.number < self._search.trials]
            state.proposals = {p.number: p for p in kept}
            ended = {p.number: p.record for p in kept if p.record and p.has_ended}
            state.optuna.reconcile({p.number: p.params for p in kept}, ended)
            for proposal in kept:
                trial = search_trial(self._study, state.cell, proposal.number, proposal.params)
                if proposal.number in ended:
                    ended_trials.append((trial, ended[proposal.number]))
                else:
                    state.running.add(proposal.number)
                    open_trials.append(trial)
        return open_trials, ended_trials

    def propose(self) -> SweepTrial | None:
        """Propose a trial in the cell that has the fewest running, and record the proposal.

        Returns:
            The trial; None when every cell has all its proposals.
        """
        wanting = [
            state
            for state in self._cells.values()
            if not state.is_over and len(state.proposals) < self._search.trials
        ]
        if not wanting:
            return None
        state = min(wanting, key=lambda s: (len(s.running), len(s.proposals)))
        # The lowest missing number: a proposal that was lost leaves a gap, not a longer search.
        number = next(number for number in range(self._search.trials) if number not in state.proposals)
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
            if state.is_over or state.running or len(state.proposals) < self._search.trials:
                continue
            state.is_over = True
            state.optuna.flush()
            best = best_proposal(self._study.objective, state.proposals.values())
            searched.append(CellSearched(state.cell, None if best is None else best.params))
        return searched
