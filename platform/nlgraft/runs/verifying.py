"""Check that store, Optuna and MLflow hold every trial of a study exactly once and undamaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from nlgraft.basics.errors import Finding, StudyLockedError
from nlgraft.basics.wording import count, size, without_credentials
from nlgraft.execution.interruption import StudyLock
from nlgraft.execution.optuna_study import check_optuna
from nlgraft.execution.planned_trials import PlannedTrials, planned_trials
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs import run as places
from nlgraft.study.data.design import Cell
from nlgraft.study.planning.selection import study_key
from nlgraft.study.public import Study
from nlgraft.study.reading.system_import import system_of
from nlgraft.tracking.mlflow_tracker import layout_of, prepare_mlflow


@dataclass(frozen=True)
class Verification:
    """What was compared, and what is wrong.

    Attributes:
        study: Name of the study or variant.
        num_planned: Trials that it plans.
        states: How many of them ended in each state.
        num_artifacts: Artifacts whose bytes were read.
        num_bytes: Their bytes.
        places: Where each of the three was looked for.
        findings: What is wrong; empty if all is well.
        num_discarded: Artifacts that were removed, to be made again.
    """

    study: str
    num_planned: int
    states: dict[str, int]
    num_artifacts: int
    num_bytes: int
    places: dict[str, str]
    findings: tuple[Finding, ...]
    num_discarded: int

    @property
    def is_clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of ``verify --json``."""
        return {**asdict(self), "is_clean": self.is_clean}

    def lines(self) -> list[str]:
        """Describe it for people: each place, then what is wrong there and what to do."""
        states = ", ".join(f"{number} {state}" for state, number in self.states.items()) or "none ended"
        read = f"{count(self.num_artifacts, 'artifact')}, {size(self.num_bytes)} read"
        lines = [f"{self.study}: {count(self.num_planned, 'trial')} planned: {states}; {read}"]
        for place, location in self.places.items():
            findings = [finding for finding in self.findings if finding.place == place]
            verdict = "agrees" if not findings else count(len(findings), "problem")
            lines.append(f"{place} at {location}: {verdict}")
            lines += [f"  {finding.what}\n    next: {finding.remedy}" for finding in findings]
        if self.num_discarded:
            lines.append(f"removed {count(self.num_discarded, 'artifact')}; `nlgraft run` makes them again")
        return lines


def verify(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    uri: str,
    *,
    is_discarding: bool = False,
) -> Verification:
    """Compare what a study plans with what store, Optuna and MLflow hold; every artifact is read.

    Args:
        study: The study.
        store: Its artifacts and records.
        cells: The cells to look at.
        uri: MLflow tracking URI.
        is_discarding: Remove artifacts that are damaged, or computed from one that is damaged or missing.

    Raises:
        StudyLockedError: A driver runs the study, so that nothing is final.
        StudyError: MLflow cannot read such a URI.
    """
    if store.leases.is_study_locked(study_key(study)):
        raise StudyLockedError(
            f"{study.variant} is being run, so that nothing is final: verify it when that has ended "
            "(`nlgraft status`)"
        )
    # Reading takes no lock, since a store may be somebody else's.
    with StudyLock(study, store) if is_discarding else nullcontext():
        planned = planned_trials(study, store, cells)
        planned.read_artifacts(store)
        findings = [*planned.findings, *check_optuna(study, store, cells, planned.ended)]
        findings += _check_tracking(study, cells, planned, uri, store.identity())
        if is_discarding:
            planned.discard(store)
    locations = {"store": store.name, "MLflow": without_credentials(uri)}
    if study.search is not None:
        locations["Optuna"] = store.name if store.is_local else "the proposals of the store: no database"
    return Verification(
        study.variant,
        planned.num_open + len(planned.ended),
        dict(Counter(record.state for _, record in planned.ended)),
        planned.num_artifacts,
        planned.num_bytes,
        locations,
        tuple(findings),
        len(planned.unusable) if is_discarding else 0,
    )


def _check_tracking(
    study: Study,
    cells: Sequence[Cell],
    planned: PlannedTrials,
    uri: str,
    store_id: str,
) -> list[Finding]:
    prepare_mlflow()
    from nlgraft.tracking.check import check_runs  # loads mlflow

    experiment = places.experiment_name(study)
    is_read = system_of(study).is_read
    layout = layout_of(study, experiment, study.fingerprint, cells, is_read)
    parents = [layout.study_key, *map(layout.cell_key, cells)]
    entries = [layout.trial_end(trial, record) for trial, record in planned.ended]
    return check_runs(uri, experiment, study.fingerprint, parents, entries, store_id)
