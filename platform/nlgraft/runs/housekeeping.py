"""What lies in a store and what of it is needed: studies, their removal, and what is left over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nlgraft.analysis.data.registration import open_registrations
from nlgraft.basics.errors import DataError, NlgraftError, StudyLockedError
from nlgraft.execution.interruption import StudyLock
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import MARKER, ArtifactStore
from nlgraft.pipeline.trial import TRIAL_RECORD, TrialRecord
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.planning.selection import (
    KIND,
    Proposal,
    best_params,
    load_proposals,
    search_key,
    study_key,
)
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import forget_study, recorded_names
from nlgraft.study.reading.resolving import resolve_cell

# What artifacts and checkpoints consist of; a folder with anything else in it is not nlgraft's alone.
_OWN = re.compile(
    r"(artifacts/[^/]+/[0-9a-f]{64}|checkpoints/[0-9a-f]{64}/\d+)/(manifest\.json|checkpoint\.json|[0-9a-f]{32}/.+)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Holding:
    """What a store holds of one study.

    Attributes:
        name: Name of the study, overrides included.
        study: The study; None if it cannot be read.
        problem: Why not.
        num_planned: Its trials, run or not, those that a search is still to propose included.
        records: Records of its trials by fingerprint.
        stages: Names of the stages of its trials by fingerprint.
        folders: Folders of its proposals.
    """

    name: str
    study: Study | None = None
    problem: str = ""
    num_planned: int = 0
    records: Mapping[str, TrialRecord] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @property
    def states(self) -> str:
        """Its trials by state, in words."""
        counts = Counter(record.state for record in self.records.values())
        missing = self.num_planned - sum(counts.values())
        named = [*counts.most_common(), *([("planned", missing)] if missing > 0 else [])]
        return ", ".join(f"{number} {state}" for state, number in named) or "nothing"

    @property
    def last_run(self) -> float | None:
        """Unix seconds of the end of the last trial."""
        return max((record.ended_at for record in self.records.values()), default=None)


@dataclass(frozen=True)
class Removal:
    """What is removed, or would be.

    Attributes:
        keys: Keys of the store: documents, and folders of artifacts and checkpoints.
        num_bytes: Their size.
        forgotten: Study whose definition is removed.
    """

    keys: tuple[str, ...]
    num_bytes: int
    forgotten: str | None = None

    def carry_out(self, store: ArtifactStore) -> None:
        """Remove it all, the study's name first, so that an interrupted removal leaves only leftovers.

        Raises:
            StudyLockedError: Something has started meanwhile, and may use what was not needed.
        """
        if self.keys:
            _check_idle(store)
        if self.forgotten is not None:
            forget_study(self.forgotten, store)
        for key in self.keys:
            store.remove(key)


class House:
    """A store, looked through once.

    Args:
        store: The store.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    @cached_property
    def holdings(self) -> list[Holding]:
        """What it holds of each study that was run on it, by name."""
        return [_holding(name, self._store) for name in recorded_names(self._store)]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of artifacts and checkpoints by their folder; folders with files of others left out."""
        found: Counter[str] = Counter()
        foreign = set()
        for area, depth in (("artifacts", 3), ("checkpoints", 2)):
            for key, num_bytes in self._store.sizes(area).items():
                folder = "/".join(key.split("/")[:depth])
                found[folder] += num_bytes
                if not _OWN.fullmatch(key):
                    foreign.add(folder)
        return {folder: num_bytes for folder, num_bytes in found.items() if folder not in foreign}

    def rows(self) -> list[dict[str, Any]]:
        """Describe each study: state, bytes of its artifacts and of those that are its alone, last run."""
        registered = {one.study for one in open_registrations(self._store).read().documents.values()}
        users = Counter(stage for holding in self.holdings for stage in holding.stages)
        busy = self._store.leases.busy()
        rows = []
        for holding in self.holdings:
            sizes = {stage: self._size(name, stage) for stage, name in holding.stages.items()}
            is_running = not busy.isdisjoint(holding.stages)
            rows.append(
                {
                    "study": holding.name,
                    "state": holding.problem
                    or (f"running; {holding.states}" if is_running else holding.states),
                    "bytes": sum(sizes.values()),
                    "own_bytes": sum(size for stage, size in sizes.items() if users[stage] == 1),
                    "last_run": holding.last_run,
                    "is_registered": holding.study is not None and holding.study.name in registered,
                }
            )
        return rows

    def without(self, study: Study) -> Removal:
        """Work out what only one study needs.

        Raises:
            DataError: It was not run on this store.
            NlgraftError: Another study cannot be read.
            StudyLockedError: It is running, or another, which may propose trials that share its stages.
        """
        with StudyLock(study, self._store):
            _check_idle(self._store, study_key(study))
            others = [holding for holding in self._readable() if holding.name != study.variant]
            mine = next((one for one in self.holdings if one.name == study.variant), None)
            if mine is None:
                raise self._unknown(study.variant)
            kept_trials = {trial for holding in others for trial in holding.records}
            kept_folders = {folder for holding in others for folder in holding.folders}
            trials = mine.records.keys() - kept_trials
            stages = mine.stages.keys() - {stage for holding in others for stage in holding.stages}
            documents = [f"records/trials/{trial}.json" for trial in sorted(trials)]
            folders = [folder for folder in mine.folders if folder not in kept_folders]
            return self._removal(
                [*documents, *folders], {stage: mine.stages[stage] for stage in stages}, mine.name
            )

    def only_name(self, name: str) -> Removal:
        """Let go of a study, so that what it alone needs is left over; it need not be readable.

        Raises:
            DataError: It was not run on this store.
        """
        if name not in recorded_names(self._store):
            raise self._unknown(name)
        return Removal((), 0, name)

    def leftovers(self, *, has_loose_trials: bool = False) -> Removal:
        """Work out what nothing needs: artifacts and checkpoints of no study and of no trial on record.

        Args:
            has_loose_trials: If true, trials of no recorded study are left over as well: those of ``trial``
                and ``try``, and of studies as they were before a change.

        Raises:
            NlgraftError: A study cannot be read, so that what it needs is not known.
            StudyLockedError: Something is running.
            DataError: There is something, but the place does not look like a store.
        """
        _check_idle(self._store)
        needed = {stage for holding in self._readable() for stage in holding.stages}
        of_studies = {trial for holding in self.holdings for trial in holding.records}
        records = self._store.list_records("trials", TRIAL_RECORD)
        loose = [trial for trial in records if trial not in of_studies]
        if not has_loose_trials:
            needed |= {stage["fingerprint"] for trial in loose for stage in records[trial].stages}
            loose = []
        stages = {
            key.split("/")[-1]: key.split("/")[1] for key in self._sizes if key.startswith("artifacts/")
        }
        # Of a stage that has not ended there are checkpoints alone, whose keys do not name it.
        stages |= {key.split("/")[1]: "" for key in self._sizes if key.startswith("checkpoints/")} | stages
        documents = [f"records/trials/{trial}.json" for trial in sorted(loose)]
        found = self._removal(documents, {one: name for one, name in stages.items() if one not in needed})
        if found.keys and not self._store.is_marked():
            raise DataError(
                f"{self._store.name}: has neither {MARKER} nor an artifact of nlgraft and may be somebody "
                "else's, so nothing is removed; give a store with --storage"
            )
        return found

    def _unknown(self, name: str) -> DataError:
        return DataError(f"{name}: was not run on {self._store.name}; `nlgraft ls` lists what was")

    def _readable(self) -> list[Holding]:
        unread = [f"{holding.name} ({holding.problem})" for holding in self.holdings if holding.problem]
        if unread:
            raise NlgraftError(
                f"{self._store.name}: not known what these studies need, so nothing is removed: "
                f"{'; '.join(unread)}. Make their text readable, or let go of them with "
                "`nlgraft rm NAME --forget --yes`"
            )
        return self.holdings

    def _size(self, name: str, stage: str) -> int:
        return self._sizes.get(f"artifacts/{name}/{stage}", 0)

    def _removal(
        self, documents: Iterable[str], stages: Mapping[str, str], forgotten: str | None = None
    ) -> Removal:
        folders = [
            key
            for stage, name in sorted(stages.items())
            for key in (f"artifacts/{name}/{stage}", f"checkpoints/{stage}")
            if key in self._sizes
        ]
        return Removal((*documents, *folders), sum(self._sizes[key] for key in folders), forgotten)


def _check_idle(store: ArtifactStore, own: str = "") -> None:
    # A search proposes trials that nobody knows yet, between whose stages none is computed.
    if store.leases.busy() or store.leases.busy("study") - {own}:
        raise StudyLockedError(
            f"{store.name}: something is being run or computed; try again when nothing runs (`nlgraft ls`)"
        )


def _holding(name: str, store: ArtifactStore) -> Holding:
    try:
        study = Study.from_store(name, store)
        searches: dict[str, list[Proposal]] = {}
        if study.search is not None:
            searches = {cell.key: load_proposals(study, cell, store) for cell in cells(study)}
        trials = dict(_trials(study, store, searches))
        folders = tuple(f"records/{KIND}/{search_key(study, cell)}" for cell in cells(study) if study.search)
    except NlgraftError as error:
        return Holding(name, problem=f"cannot be read: {str(error).splitlines()[-1].strip()}")
    records = {one: record for one, (record, _) in trials.items() if record is not None}
    stages = {stage: name for _, found in trials.values() for stage, name in found.items()}
    num_planned = len(trials) + sum(_num_unknown(study, proposals) for proposals in searches.values())
    return Holding(name, study, "", num_planned, records, stages, folders)


def _num_unknown(study: Study, proposals: Sequence[Proposal]) -> int:
    """Count the planned trials of a search that no proposal names yet, replicates of the best included."""
    assert study.search is not None
    counted = [one for one in proposals if one.number < study.search.trials]
    num_later = study.search.trials - len(counted)
    is_over = num_later == 0 and all(one.has_ended for one in counted)
    return num_later + (0 if is_over else study.first_seeds)


def _trials(
    study: Study, store: ArtifactStore, searches: Mapping[str, Sequence[Proposal]]
) -> Iterator[tuple[str, tuple[TrialRecord | None, dict[str, str]]]]:
    """Yield the trials of a study, as far as its searches are: record, and names of stages by fingerprint."""
    for cell in cells(study):
        proposals = searches.get(cell.key, ())
        for proposal in proposals:
            stages = {} if proposal.record is None else _stages(proposal.record)
            if not proposal.has_ended:  # no record names what it has computed, or is still to compute
                resolved = resolve_cell(study, cell, proposal.params)
                stages |= _named(resolved.graph(proposal.seed, SEARCH_SPLITS))
            yield proposal.fingerprint, (proposal.record, stages)
        params = {} if study.search is None else best_params(study, proposals)
        if params is None:
            continue
        resolved = resolve_cell(study, cell, params)
        for seed in study.seeds:
            graph = resolved.graph(seed)
            record = store.read_record("trials", graph.fingerprint, TRIAL_RECORD)
            yield graph.fingerprint, (record, _named(graph))


def _named(graph: StageGraph) -> dict[str, str]:
    return {stage.fingerprint: stage.name for stage in graph.stages}


def _stages(record: TrialRecord) -> dict[str, str]:
    return {stage["fingerprint"]: stage["name"] for stage in record.stages}
