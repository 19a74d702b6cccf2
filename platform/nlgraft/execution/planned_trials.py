"""Every trial that a study plans, as far as that is known, with its record; the store's part of `verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nlgraft.basics.errors import RUN_AGAIN, Finding
from nlgraft.execution.events import CellSearched
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore, Decision
from nlgraft.pipeline.trial import TrialRecord, finished_record, trial_record
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import REPLICATE_SPLITS, SEARCH_SPLITS
from nlgraft.study.planning.selection import (
    Proposal,
    best_proposal,
    load_proposals,
    read_granted,
    save_proposal,
    search_seed,
)
from nlgraft.study.reading.resolving import resolve_cell, resolve_config
from nlgraft.study.reading.system_import import system_of

if TYPE_CHECKING:
    from nlgraft.execution.optuna_study import OptunaStudy  # loads optuna

KnownTrial: TypeAlias = tuple[SweepTrial, TrialRecord | None]
"""A trial and the record of its end; None while it has to run."""


def search_trial(
    study: Study,
    cell: Cell,
    number: int,
    params: Mapping[str, Any],
) -> SweepTrial:
    """Build the trial of a proposal."""
    return resolve_cell(study, cell, params).trial(search_seed(study), SEARCH_SPLITS, number)


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
            state.proposals = {proposal.number: proposal for proposal in proposals}
            ended = {p.number: p.record for p in proposals if p.record and p.has_ended}
            state.running = state.proposals.keys() - ended.keys()
            state.optuna.reconcile({p.number: p.params for p in proposals}, ended)
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
        # Equal progress in all cells, so that an interrupted search has no favourite.
        state = min(wanting, key=lambda s: (len(s.running), len(s.proposals)))
        # The lowest missing number: a proposal that was lost leaves a gap, not a longer search.
        number = next(number for number in range(self._num_trials) if number not in state.proposals)
        params = state.optuna.propose(number, state.config)
        trial = search_trial(self._study, state.cell, number, params)
        proposal = Proposal(number, trial.params, trial.seed, trial.fingerprint)
        # Before it is handed out: after a crash the search resumes with the same proposal.
        save_proposal(self._study, state.cell, self._store, proposal)
        state.proposals[number] = proposal
        state.running.add(number)
        return trial

    def intermediate(
        self,
        trial: SweepTrial,
        value: float,
        step: int,
    ) -> None:
        """Pass an intermediate value of the objective to Optuna."""
        assert trial.number is not None
        self._cells[trial.cell.key].optuna.intermediate(trial.number, value, step)

    def end(self, trial: SweepTrial, record: TrialRecord) -> None:
        """Take the end of a proposed trial."""
        assert trial.number is not None
        state = self._cells[trial.cell.key]
        state.running.discard(trial.number)
        state.optuna.tell(trial.number, record)
        proposal = replace(state.proposals[trial.number], record=record)
        state.proposals[trial.number] = proposal
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
            best = best_proposal(self._study.objective, state.proposals.values())
            params = None
            if best is not None and best.record is not None:
                params = system_of(self._study).read_params(best.params, best.record.config)
            searched.append(CellSearched(state.cell, params))
        return searched


DISCARD = (
    "`nlgraft verify --discard` removes it and what was computed from it; `nlgraft run` makes both again"
)


@dataclass
class PlannedTrials:
    """The trials of a study and what the store lacks of them.

    Attributes:
        resolved: Trials whose seed and params are settled, with their records.
        ended: Those with the record of their end.
        recorded: Finished proposals whose trials are not resolved: their cells and records.
        num_open: Trials that have not ended, those included that nothing is known of yet.
        findings: What is missing or damaged.
        unusable: Stages whose artifact is missing or damaged, and those computed from them.
        num_artifacts: Artifacts that were read.
        num_bytes: Their bytes.
    """

    resolved: list[tuple[SweepTrial, TrialRecord | None]] = field(default_factory=list)
    ended: list[tuple[SweepTrial, TrialRecord]] = field(default_factory=list)
    recorded: list[tuple[Cell, TrialRecord]] = field(default_factory=list)
    num_open: int = 0
    findings: list[Finding] = field(default_factory=list)
    unusable: dict[str, Stage] = field(default_factory=dict)
    num_artifacts: int = 0
    num_bytes: int = 0
    _named: set[str] = field(default_factory=set)

    def add(self, trial: SweepTrial, record: TrialRecord | None) -> None:
        """Add a trial whose seed and params are known."""
        self.resolved.append((trial, record))
        # A killed trial has an end on record, but the next run goes on with it.
        if record is not None and record.state != "killed":
            self.ended.append((trial, record))
            return
        self.num_open += 1
        what = "has not run" if record is None else f"was killed ({record.reason})"
        self._find(f"{trial.name}: {what}")

    def add_replicates(self, store: ArtifactStore, replicates: Iterable[KnownTrial]) -> None:
        """Add replicates, each with its record if it has finished."""
        for trial, record in replicates:
            self.add(trial, record or trial_record(store, trial.fingerprint))

    def add_unknown(self, what: str, num_trials: int) -> None:
        """Add trials that nothing is known of yet."""
        self.num_open += num_trials
        self._find(what)

    def _find(self, what: str, remedy: str = RUN_AGAIN) -> None:
        self.findings.append(Finding("store", what, remedy))

    def read_artifacts(self, store: ArtifactStore) -> None:
        """Read every byte of the artifacts that the trials consist of."""
        damage: dict[str, str | None] = {}
        for trial, record in self.ended:
            is_finished = record.state == "finished"
            for stage in trial.graph.stages:
                if stage.fingerprint not in damage:
                    damage[stage.fingerprint] = self._damage(store, stage)
                fault = damage[stage.fingerprint]
                # A trial that failed or was stopped has no artifacts of the stages that it did not reach.
                if fault is None or (fault == "is missing" and not is_finished):
                    continue
                self._find_unusable(trial, stage, fault)

    def _damage(self, store: ArtifactStore, stage: Stage) -> str | None:
        verdict = store.verify(stage, is_afresh=True)
        if verdict.decision is Decision.MISS:
            return "is missing"
        if verdict.decision is Decision.CORRUPT:
            return f"is damaged: {verdict.reason}"
        manifest = store.manifest(stage)
        self.num_artifacts += 1
        self.num_bytes += 0 if manifest is None else manifest.bytes
        return None

    def _find_unusable(
        self,
        trial: SweepTrial,
        stage: Stage,
        what: str,
    ) -> None:
        if stage.fingerprint not in self._named:
            self._named.add(stage.fingerprint)
            self._find(f"{trial.name}: the artifact {stage.name} {stage.fingerprint[:12]} {what}", DISCARD)
        bad = {stage.fingerprint}
        for later in trial.graph.stages:  # inputs before what reads them
            read = {input_stage.fingerprint for input_stage in later.inputs.values()}
            if later.fingerprint in bad or bad & read:
                bad.add(later.fingerprint)
                self.unusable.setdefault(later.fingerprint, later)

    def discard(self, store: ArtifactStore) -> None:
        """Remove the artifacts that cannot be used, and let the trials that end in one run again."""
        reason = "an artifact was damaged or missing, see `nlgraft verify`"
        # Records first: interrupted the other way round, finished trials would be left without artifacts.
        for trial, record in self.ended:
            if trial.fingerprint in self.unusable:
                killed = replace(record, state="killed", reason=reason)
                store.records.write("trials", trial.fingerprint, killed.to_json())
        for stage in self.unusable.values():
            store.discard(stage)


def planned_trials(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    *,
    has_graphs: bool = True,
) -> PlannedTrials:
    """Find the trials of some cells of a study, those that planned looks have granted included.

    Args:
        study: The study.
        store: Its store.
        cells: The cells.
        has_graphs: If false, finished proposals have only their records, which name their stages: to build
            the graph of each takes ten milliseconds.
    """
    planned = PlannedTrials()
    replicates = Replicates(study, store, cells, REPLICATE_SPLITS)
    for cell in cells:
        params = {} if study.search is None else _searched(study, store, cell, planned, has_graphs)
        if params is not None:
            planned.add_replicates(store, replicates.begin(cell, params))
    planned.add_replicates(store, replicates.grant(read_granted(study, store)))
    return planned


def _searched(
    study: Study, store: ArtifactStore, cell: Cell, planned: PlannedTrials, has_graphs: bool
) -> dict[str, Any] | None:
    """Add the proposals of a cell; return the params of the best one, None if there is no best one (yet)."""
    assert study.search is not None
    proposals = load_proposals(study, cell, store)
    for proposal in proposals:
        record = proposal.record
        # The record of a trial that failed or was stopped may lack stages which it did not reach.
        if record is not None and record.state == "finished" and not has_graphs:
            planned.recorded.append((cell, record))
        else:
            planned.add(search_trial(study, cell, proposal.number, proposal.params), record)
    proposed = {proposal.number for proposal in proposals}
    for number in set(range(study.search.trials)) - proposed:
        planned.add_unknown(f"{cell.label}, search {number}: is not proposed", 1)
    if sum(proposal.has_ended for proposal in proposals) < study.search.trials:
        planned.add_unknown(f"{cell.label}: no replicate runs before its search is over", study.first_seeds)
        return None
    best = best_proposal(study.objective, proposals)
    return None if best is None else dict(best.params)


# The replicates of a study: with which params each cell is trained, and how many seeds it is granted.


class Replicates:
    """Builds the replicates of the cells as they are granted.

    Args:
        splits: Splits on which they are scored.

    Attributes:
        granted: How many seeds each cell has, by the cell's key.
    """

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        cells: Sequence[Cell],
        splits: tuple[str, ...],
    ) -> None:
        self.granted = {cell.key: study.first_seeds for cell in cells}
        self._study = study
        self._store = store
        self._cells = cells
        self._splits = splits
        self._params: dict[str, Mapping[str, Any]] = {}

    def begin(self, cell: Cell, params: Mapping[str, Any]) -> list[KnownTrial]:
        """Build the first replicates of a cell, with the params that its search has found, or none.

        Returns:
            Each with its record if it has finished.
        """
        self._params[cell.key] = params
        return self._since(cell, 0)

    def grant(self, granted: Mapping[str, int]) -> list[KnownTrial]:
        """Build what a planned look grants beyond what cells have; those that have none yet are left out."""
        replicates = []
        for cell in self._cells:
            start = self.granted[cell.key]
            if cell.key in self._params and granted.get(cell.key, 0) > start:
                self.granted[cell.key] = granted[cell.key]
                replicates += self._since(cell, start)
        return replicates

    def _since(self, cell: Cell, start: int) -> list[KnownTrial]:
        resolved = resolve_cell(self._study, cell, self._params[cell.key])
        seeds = self._study.look_seeds[start : self.granted[cell.key]]
        trials = [resolved.trial(seed, self._splits) for seed in seeds]
        return [(trial, finished_record(trial.graph, self._store)) for trial in trials]
