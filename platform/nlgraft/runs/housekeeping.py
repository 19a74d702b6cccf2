"""The studies of a store: what each needs, how two differ, and the removal of what none needs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nlgraft.analysis.data.registration import open_registrations
from nlgraft.basics.errors import DataError, NlgraftError, StudyLockedError
from nlgraft.execution.interruption import StudyLock
from nlgraft.execution.planned_trials import planned_trials
from nlgraft.pipeline.fingerprint import canonical_json, dotted
from nlgraft.pipeline.store import MARKER, ArtifactStore
from nlgraft.pipeline.trial import TRIAL_RECORD, TrialRecord
from nlgraft.runs.run import read_result
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import PROPOSALS, search_key, study_key
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import forget_study, recorded_names
from nlgraft.study.reading.resolving import resolve_cell

# Files of artifacts and checkpoints; a folder with any other file is not removed.
_STORE_FILE = re.compile(
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
        num_missing = self.num_planned - sum(counts.values())
        states = counts.most_common()
        if num_missing > 0:
            states.append(("planned", num_missing))
        return ", ".join(f"{number} {state}" for state, number in states) or "nothing"

    @property
    def last_run(self) -> float | None:
        """Unix seconds of the end of the last trial."""
        return max((record.ended_at for record in self.records.values()), default=None)


@dataclass(frozen=True)
class Removal:
    """What a command removes, or would remove.

    Attributes:
        keys: Keys of the store: documents, and folders of artifacts and checkpoints.
        num_bytes: Their size.
        forgotten: Study whose definition is removed.
    """

    keys: tuple[str, ...]
    num_bytes: int
    forgotten: str | None

    def carry_out(self, store: ArtifactStore) -> None:
        """Remove everything, the study's name first, so that an interrupted removal leaves only leftovers.

        Raises:
            StudyLockedError: A trial has started meanwhile, and may use what was not needed before.
        """
        if self.keys:
            _check_idle(store)
        if self.forgotten is not None:
            forget_study(self.forgotten, store)
        for key in self.keys:
            store.remove(key)


@dataclass
class StoreContents:
    """The holdings of a store, read once."""

    _store: ArtifactStore

    @cached_property
    def holdings(self) -> list[Holding]:
        """What it holds of each study that was run on it, by name."""
        return [_holding(name, self._store) for name in recorded_names(self._store)]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of artifacts and checkpoints by folder, without folders that hold files of others."""
        folder_bytes: Counter[str] = Counter()
        shared: set[str] = set()
        for area, depth in (("artifacts", 3), ("checkpoints", 2)):
            for key, num_bytes in self._store.sizes(area).items():
                folder = "/".join(key.split("/")[:depth])
                folder_bytes[folder] += num_bytes
                if not _STORE_FILE.fullmatch(key):
                    shared.add(folder)
        return {folder: num_bytes for folder, num_bytes in folder_bytes.items() if folder not in shared}

    def rows(self) -> list[dict[str, Any]]:
        """Describe each study: state, bytes of its artifacts and of those it alone uses, last run."""
        registrations = open_registrations(self._store).read().documents.values()
        registered = {registration.study for registration in registrations}
        # Studies share artifacts; this counts the studies that use each.
        users = Counter(stage for holding in self.holdings for stage in holding.stages)
        busy = self._store.leases.busy()
        rows = []
        for holding in self.holdings:
            sizes = {stage: self._size(name, stage) for stage, name in holding.stages.items()}
            is_running = not busy.isdisjoint(holding.stages)
            states = f"running; {holding.states}" if is_running else holding.states
            rows.append(
                {
                    "study": holding.name,
                    "state": holding.problem or states,
                    "bytes": sum(sizes.values()),
                    "own_bytes": sum(size for stage, size in sizes.items() if users[stage] == 1),
                    "last_run": holding.last_run,
                    "is_registered": holding.study is not None and holding.study.name in registered,
                }
            )
        return rows

    def without(self, name: str) -> Removal:
        """Find what only one study needs; of one that cannot be read nothing but its name is known.

        Raises:
            DataError: The study was not run on this store.
            NlgraftError: Another study cannot be read.
            StudyLockedError: This or another study is running, which may propose trials that share stages.
        """
        holding = next((holding for holding in self.holdings if holding.name == name), None)
        if holding is None:
            raise DataError(f"{name}: was not run on {self._store.name}; `nlgraft ls` lists what was")
        if holding.study is None:
            return Removal((), 0, name)
        # Under its lock, so that no driver starts the study meanwhile.
        with StudyLock(holding.study, self._store):
            _check_idle(self._store, study_key(holding.study))
            others = [other for other in self._readable() if other is not holding]
            used_trials = {trial for other in others for trial in other.records}
            used_folders = {folder for other in others for folder in other.folders}
            used_stages = {stage for other in others for stage in other.stages}
            stages = {stage: name for stage, name in holding.stages.items() if stage not in used_stages}
            trials = holding.records.keys() - used_trials
            documents = [f"records/trials/{trial}.json" for trial in sorted(trials)]
            documents += [folder for folder in holding.folders if folder not in used_folders]
            return self._removal(documents, stages, holding.name)

    def leftovers(self, *, has_loose_trials: bool) -> Removal:
        """Find what nothing needs: artifacts and checkpoints of no study and of no trial on record.

        Args:
            has_loose_trials: If true, trials of no recorded study are left over as well: those of ``trial``
                and ``try``, and of studies as they were before a change.

        Raises:
            NlgraftError: A study cannot be read, so what it needs is not known.
            StudyLockedError: A study is running or a stage is being computed.
            DataError: There are leftovers, but the place does not look like a store.
        """
        _check_idle(self._store)
        needed = {stage for holding in self._readable() for stage in holding.stages}
        of_studies = {trial for holding in self.holdings for trial in holding.records}
        records = self._store.records.list("trials", TRIAL_RECORD)
        loose = [trial for trial in records if trial not in of_studies]
        if not has_loose_trials:
            needed |= {stage["fingerprint"] for trial in loose for stage in records[trial].stages}
            loose = []
        stages: dict[str, str] = {}
        for key in self._sizes:  # artifacts first
            area, *parts = key.split("/")
            # A stage that has not ended has only checkpoints, whose keys lack its name.
            stages.setdefault(parts[-1], parts[0] if area == "artifacts" else "")
        documents = [f"records/trials/{trial}.json" for trial in sorted(loose)]
        unneeded = {stage: name for stage, name in stages.items() if stage not in needed}
        removal = self._removal(documents, unneeded)
        if removal.keys and not self._store.is_marked():
            raise DataError(
                f"{self._store.name}: has neither {MARKER} nor an artifact of nlgraft and may be somebody "
                "else's, so nothing is removed; give a store with --storage"
            )
        return removal

    def _readable(self) -> list[Holding]:
        unread = [f"{holding.name} ({holding.problem})" for holding in self.holdings if holding.problem]
        if unread:
            raise NlgraftError(
                f"{self._store.name}: not known what these studies need, so nothing is removed: "
                f"{'; '.join(unread)}. Make their text readable, or let go of them with "
                "`nlgraft rm NAME --yes`"
            )
        return self.holdings

    def _size(self, name: str, stage: str) -> int:
        return self._sizes.get(f"artifacts/{name}/{stage}", 0)

    def _removal(
        self,
        documents: Iterable[str],
        stages: Mapping[str, str],
        forgotten: str | None = None,
    ) -> Removal:
        folders = [
            key
            for stage, name in sorted(stages.items())
            for key in (f"artifacts/{name}/{stage}", f"checkpoints/{stage}")
            if key in self._sizes
        ]
        num_bytes = sum(self._sizes[key] for key in folders)
        return Removal((*documents, *folders), num_bytes, forgotten)


def _check_idle(store: ArtifactStore, own_lock: str = "") -> None:
    # A running search is busy even while no stage is computed: it will propose further trials.
    if store.leases.busy() or store.leases.busy("study") - {own_lock}:
        raise StudyLockedError(
            f"{store.name}: something is being run or computed; try again when nothing runs (`nlgraft ls`)"
        )


def _holding(name: str, store: ArtifactStore) -> Holding:
    try:
        study = Study.from_store(name, store)
        study_cells = cells(study)
        planned = planned_trials(study, store, study_cells, has_graphs=False)
        folders = tuple(
            f"records/{PROPOSALS}/{search_key(study, cell)}" for cell in study_cells if study.search
        )
    # One study that cannot be read must not hide the others of a store.
    except NlgraftError as error:
        return Holding(name, problem=f"cannot be read: {str(error).splitlines()[-1].strip()}")
    records = {trial.fingerprint: record for trial, record in planned.resolved if record is not None}
    records |= {record.fingerprint: record for _, record in planned.recorded}
    stages = {}
    for trial, _ in planned.resolved:
        stages |= {stage.fingerprint: stage.name for stage in trial.graph.stages}
    for _, record in planned.recorded:
        stages |= {entry["fingerprint"]: entry["name"] for entry in record.stages}
    num_planned = planned.num_open + len(planned.ended) + len(planned.recorded)
    return Holding(name, study, "", num_planned, records, stages, folders)


# Two studies or variants side by side: settings, data and results.


_LEFT_OUT = ("storage", "tracking", "resources")
"""Fields that change no result."""
Row = tuple[str, str, str]
"""What differs, and its two values; empty where there is none."""


def differences(first: Study, second: Study) -> dict[str, list[Row]]:
    """List what differs between two studies by ``settings``, ``data`` and ``results``.

    ``data`` compares the text itself as well. ``results`` shows the means of all cells that either study has;
    to compare them with a test, put both into one study.
    """
    changed = _changed(_settings(first), _settings(second))
    corpora = [row for row in changed if row[0].startswith("data.")]
    return {
        "settings": [row for row in changed if row not in corpora],
        "data": [*corpora, *_changed(_texts(first), _texts(second))],
        "results": _changed(_results(first), _results(second), has_equal=True),
    }


def _changed(
    first: Mapping[str, str],
    second: Mapping[str, str],
    *,
    has_equal: bool = False,
) -> list[Row]:
    names = dict.fromkeys([*first, *second])
    return [
        (name, first.get(name, ""), second.get(name, ""))
        for name in names
        if has_equal or first.get(name) != second.get(name)
    ]


def _settings(study: Study) -> dict[str, str]:
    # Canonical texts, so that 1 and 1.0 are a difference, as they are in fingerprints.
    values = {key: value for key, value in study.to_dict().items() if key not in _LEFT_OUT}
    return {
        path: value if isinstance(value, str) else canonical_json(value) for path, value in dotted(values)
    }


def _texts(study: Study) -> dict[str, str]:
    """Digest the text of every corpus that the baseline reads, or return the error that prevents it."""
    try:
        graph = resolve_cell(study, cells(study)[0]).graph(study.seeds[0])
    except NlgraftError as error:
        return {"text": str(error).splitlines()[-1].strip()}
    return {
        f"text of {stage.name}": stage.fingerprint[:12]
        for stage in graph.stages
        if "corpus" in stage.locations  # a fingerprint covers the text's bytes, not only its path
    }


def _results(study: Study) -> dict[str, str]:
    result = read_result(study, ArtifactStore.open(study.storage.path))
    metrics = dict.fromkeys([result.main_metric, *result.study.main_metrics])
    means = {}
    for cell in result.cells:
        for metric in metrics:
            mean, std = cell.mean(metric), cell.std(metric)
            if mean is not None:
                spread = "" if std is None else f" ± {std:.3g}"
                seeds = len(cell.measured(metric))
                means[f"{metric}, {cell.cell.label}"] = f"{mean:.4g}{spread} (n {seeds})"
    return means
