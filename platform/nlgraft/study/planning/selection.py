"""The proposals of a search inside a cell, the choice of the best, and the seeds that looks grant.

Proposals are records beside the artifact store, keyed by everything that determines them, so that a study
that is run again, extended by a factor or given more trials finds its earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, trial_record
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.study import Objective, Study
from nlgraft.study.reading.resolving import resolve_cell, resolve_config

PROPOSALS = "proposals"
_LAST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Proposal:
    """One searched config of a cell.

    Attributes:
        number: Number within the cell, counted from 0.
        params: Searched values by dotted path.
        seed: Seed of the search trial.
        fingerprint: Fingerprint of the search trial.
        record: Record of its end if this search stopped it, else of the trial's last attempt; None if there
            is none.
        keeps_stop: False as earlier versions stored it: then a stopped trial has its record elsewhere.
    """

    number: int
    params: Mapping[str, Any]
    seed: int
    fingerprint: str
    record: TrialRecord | None = None
    keeps_stop: bool = False

    @property
    def has_ended(self) -> bool:
        """True when the search has its outcome; a killed trial runs again."""
        return self.record is not None and self.record.state != "killed"

    def to_json(self) -> dict[str, Any]:
        """Turn the proposal into the stored document; the trial's record is stored by itself.

        A stopped trial's is not: another search, which stops later or not at all, may go on with the trial.
        """
        stop = self.record.to_json() if self.record and self.record.state == "stopped" else None
        return asdict(replace(self, record=None)) | {"record": stop, "keeps_stop": True}


_PROPOSAL = TypeAdapter(Proposal)


def search_seed(study: Study) -> int:
    """Seed of every search trial: one that no replicate has.

    The score of a model that was selected by its score is biased upwards, so the replicates are new models.
    """
    # From the end, far from the seeds that people choose.
    return next(seed for seed in range(_LAST_SEED, -1, -1) if seed not in study.seeds)


def study_key(study: Study) -> str:
    """Key of a study's lock and of its own records on a store: this definition under this name."""
    return fingerprint({"name": study.name, "study": study.fingerprint})


def search_key(study: Study, cell: Cell) -> str:
    """Fingerprint of everything that determines the proposals of a cell, except their number."""
    assert study.search is not None
    search = study.search.model_dump(mode="json")
    # Left out, so that a search that is given more trials continues with its own proposals.
    search.pop("trials")
    return fingerprint(
        {
            "system": study.system,
            # Paths as written in the file: a search that moves with its study resumes.
            "config": resolve_config(study, cell, has_absolute_paths=False).model_dump(mode="json"),
            "search": search,
            # A list, as when a study could have several: stores hold proposals under this digest.
            "objectives": [study.objective.model_dump(mode="json")],
            "seed": search_seed(study),
        }
    )


def load_proposals(
    study: Study,
    cell: Cell,
    store: ArtifactStore,
) -> list[Proposal]:
    """Read the recorded proposals of a cell by ascending number, with the records of their trials."""
    assert study.search is not None
    recorded = store.records.list(PROPOSALS, _PROPOSAL, f"{search_key(study, cell)}/").values()
    # A study whose number of trials was lowered leaves proposals behind.
    proposals = [proposal for proposal in recorded if proposal.number < study.search.trials]
    with_records = [replace(proposal, record=_record_of(proposal, store)) for proposal in proposals]
    return sorted(with_records, key=lambda proposal: proposal.number)


def _record_of(proposal: Proposal, store: ArtifactStore) -> TrialRecord | None:
    record = proposal.record or trial_record(store, proposal.fingerprint)
    is_stopped = record is not None and record.state == "stopped"
    return proposal.record if is_stopped and proposal.keeps_stop else record


def save_proposal(
    study: Study,
    cell: Cell,
    store: ArtifactStore,
    proposal: Proposal,
) -> None:
    """Record a proposal, before its trial starts."""
    store.records.write(PROPOSALS, f"{search_key(study, cell)}/{proposal.number:05d}", proposal.to_json())


def chosen_params(
    study: Study,
    cell: Cell,
    store: ArtifactStore,
) -> dict[str, Any] | None:
    """Return the values that a cell's finished search chose; empty without a search, None before its end."""
    if study.search is None:
        return {}
    proposals = load_proposals(study, cell, store)
    # Before its end, the best so far may still be beaten.
    is_over = sum(proposal.has_ended for proposal in proposals) == study.search.trials
    best = best_proposal(study.objective, proposals) if is_over else None
    return None if best is None else dict(best.params)


def best_proposal(objective: Objective, proposals: Iterable[Proposal]) -> Proposal | None:
    """Choose the proposal to replicate: the best finished one by the objective.

    The earlier one at a tie; None when no trial finished with a finite value.
    """

    def value(proposal: Proposal) -> float:
        assert proposal.record is not None
        return objective.sign * proposal.record.metrics.get(objective.metric, math.nan)

    # A stopped trial has a last value too, but of an early step: it never wins.
    ended = [p for p in proposals if p.record is not None and p.record.state == "finished"]
    finite = [proposal for proposal in ended if math.isfinite(value(proposal))]
    return max(finite, key=lambda proposal: (value(proposal), -proposal.number), default=None)


# Records of how many seeds each cell gets after planned looks.


LOOKS = "looks"
_ANY_SEED = 0
_GRANTED = TypeAdapter(dict[str, int])


def cell_key(study: Study, cell: Cell) -> str:
    """Fingerprint of everything that determines a cell's replicates without a search, except their seeds."""
    config = resolve_config(study, cell, has_absolute_paths=False)
    return fingerprint({"system": study.system, "config": config.model_dump(mode="json")})


def cell_digest(
    study: Study,
    cell: Cell,
    params: Mapping[str, object] | None = None,
) -> str:
    """Fingerprint of the replicates of a cell but for their seeds: settings, text, and versions of stages."""
    return resolve_cell(study, cell, params).graph(_ANY_SEED).fingerprint


def record_granted(
    study: Study,
    store: ArtifactStore,
    granted: Mapping[str, int],
) -> None:
    """Record how many seeds each cell gets, by the cells' keys."""
    store.records.write(LOOKS, f"{study_key(study)}/granted", dict(granted))


def read_granted(study: Study, store: ArtifactStore) -> dict[str, int]:
    """Read how many seeds the cells got at the last look; empty before the first."""
    # Version 0.1.0 wrote under the first cell's key, which studies with one baseline share.
    for key in (study_key(study), cell_key(study, cells(study)[0])):
        granted = store.records.read(LOOKS, f"{key}/granted", _GRANTED)
        if granted is not None:
            return granted
    return {}
