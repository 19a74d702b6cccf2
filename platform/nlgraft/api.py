"""The Python API, for notebooks and for the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.basics.shipped import STUDY_SUFFIXES, studies
from nlgraft.execution.cluster import is_local, local_capacity, local_memory_bytes
from nlgraft.pipeline.stage import Reporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs import run as places
from nlgraft.runs.run import Handle, Place, Run
from nlgraft.study.data.design import Cell, cells, find_cell, select_cells
from nlgraft.study.data.plan import Plan
from nlgraft.study.data.study import Storage
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell

if TYPE_CHECKING:
    from nlgraft.analysis.data.ledger import Entry
    from nlgraft.analysis.data.registration import Registration
    from nlgraft.analysis.data.stream import Stream
    from nlgraft.analysis.estimates.agreement import Agreement
    from nlgraft.analysis.policy.validity import Validity
    from nlgraft.analysis.study_result import StudyResult
    from nlgraft.execution.events import Observer
    from nlgraft.export.exported import ExportedModel
    from nlgraft.export.exporting import Export
    from nlgraft.pipeline.trial import TrialRecord
    from nlgraft.runs.ablation_path import AblationPath
    from nlgraft.runs.proposing import Answer
    from nlgraft.runs.verifying import Verification


def open_store(study: Study) -> ArtifactStore:
    """Open the store that a study names."""
    return ArtifactStore.open(study.storage.path)


def plan(study: Study) -> Plan:
    """Plan a run against the study's store and this machine; nothing is started."""
    # What another cluster holds is known only to those who have joined it.
    capacity = local_capacity() | {"memory": local_memory_bytes()} if is_local(None) else None
    return study.plan(capacity=capacity)


def chosen_cells(study: Study, only: Sequence[str] = ()) -> list[Cell]:
    """Select cells of a study, in the study's order.

    Args:
        only: ``factor=level`` or level names; empty selects all cells. The baseline is always included, since
            every comparison needs it.

    Raises:
        StudyError: A name matches no cell.
    """
    all_cells = cells(study)
    if not only:
        return all_cells
    # Each condition by itself: together they would select only the cells that meet all of them.
    selected_keys = {cell.key for text in only for cell in select_cells(study, [text])}
    return [cell for cell in all_cells if cell.is_baseline or cell.key in selected_keys]


@overload
def launch(
    study: Study,
    *,
    address: str | None = None,
    only: Sequence[str] = (),
    next_look: bool = False,
    tracking_uri: str | None = None,
    on_event: Observer | None = None,
    wait_timeout_s: float | None = None,
    wait: Literal[True] = True,
) -> StudyResult: ...


@overload
def launch(
    study: Study,
    *,
    address: str | None = None,
    only: Sequence[str] = (),
    next_look: bool = False,
    tracking_uri: str | None = None,
    on_event: Observer | None = None,
    wait_timeout_s: float | None = None,
    wait: Literal[False],
) -> Handle: ...


def launch(
    study: Study,
    *,
    address: str | None = None,
    only: Sequence[str] = (),
    next_look: bool = False,
    tracking_uri: str | None = None,
    on_event: Observer | None = None,
    wait_timeout_s: float | None = None,
    wait: bool = True,
) -> StudyResult | Handle:
    """Run every trial of a study that its store does not hold yet.

    Args:
        address: A running Ray cluster; None starts a local one if there is something to run.
        only: Run only these cells and the baseline.
        next_look: Go on with the undecided questions, up to the seeds of their next look.
        tracking_uri: MLflow tracking URI; for the default see `nlgraft.runs.run.tracking_uri`.
        on_event: Receives every event of the sweep.
        wait_timeout_s: See `nlgraft.runs.run.Run`.
        wait: If false, run the sweep in a thread of this process and return a `Handle` at once.

    Raises:
        StudyError: ``only`` names no cell.
        NlgraftError: ``next_look`` is asked for, and there is nothing to go on with.
        CapacityError: A trial can never fit the cluster; nothing was started.
        StudyLockedError: Another driver runs this study on this store.
    """
    place = Place(open_store(study), address, tracking_uri, on_event)
    run = Run(study, chosen_cells(study, only), place, wait_timeout_s, is_next_look=next_look)
    return run.result() if wait else Handle(run)


def propose(
    study: Study,
    changes: Sequence[str],
    *,
    against: str | None = None,
    max_seeds: int | None = None,
    address: str | None = None,
    tracking_uri: str | None = None,
    on_event: Observer | None = None,
) -> Answer:
    """Try one change of a study's baseline, or of what was kept of it, as a proposal of a stream.

    The study's factors, search and claims are left out. See `docs/validity.md`, "A stream of proposals".

    Args:
        study: The study; its objective decides, on dev.
        changes: ``key=value``, on top of what is kept.
        against: Number of the kept proposal to compare with, or ``baseline``; None for what was kept last.
        max_seeds: Answer MORE if so many seeds, 3 to 24, have not decided; None for 24.
        address: A running Ray cluster; None starts a local one if there is something to run.
        tracking_uri: MLflow tracking URI; for the default see `nlgraft.runs.run.tracking_uri`.
        on_event: Receives every event of the sweeps.

    Raises:
        StudyError: The change is no valid config, changes nothing, or changes what is measured.
        NlgraftError: Nothing was kept under that number, or ``max_seeds`` is out of range.
        CapacityError: A trial can never fit the cluster; nothing was started.
        StudyLockedError: Another driver runs this proposal on this store.
    """
    from nlgraft.analysis.policy.proposals import LOOKS
    from nlgraft.runs.proposing import Attempt

    limit = LOOKS[-1] if max_seeds is None else max_seeds
    if not LOOKS[0] <= limit <= LOOKS[-1]:
        raise NlgraftError(f"max_seeds: {limit} given; a proposal gets {LOOKS[0]} to {LOOKS[-1]} seeds")
    place = Place(open_store(study), address, tracking_uri, on_event)
    return Attempt(study, changes, against, place).answer(limit)


def find_study(study: str | os.PathLike[str], storage: str | None = None) -> Study:
    """Read a study by the path of its file, or by the name of a study that was run on a store.

    Args:
        study: A path; or a name such as ``demo`` or ``demo@tiny-1f0c6a2e``, if there is no such file and it
            has no suffix of one. If the store has none, of one that comes with nlgraft.
        storage: Store that holds the named study; None for the default.

    Raises:
        StudyError: The file has problems, or the store has no such study.
    """
    path = Path(study)
    extra = [] if storage is None else [f"storage.path={json.dumps(storage)}"]
    if path.exists() or len(path.parts) > 1 or path.suffix in STUDY_SUFFIXES:
        return Study.from_yaml(path, overrides=extra)
    # What was run goes before what is shipped under the same name.
    try:
        return Study.from_store(str(study), ArtifactStore.open(storage or Storage().path))
    except StudyError:
        if any(name.endswith(f"/{study}") for name in studies()):
            return Study.from_yaml(path, overrides=extra)
        raise


def load(study: Study | str | os.PathLike[str], storage: str | None = None) -> StudyResult:
    """Collect the results that the store holds of a study; the arguments may be those of `find_study`."""
    if not isinstance(study, Study):
        study = find_study(study, storage)
    return places.read_result(study, open_store(study))


def export_model(
    study: Study | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    cell: str | None = None,
    seed: int | None = None,
) -> Export:
    """Write a study's model as a directory; see `nlgraft.export.exporting.write_export`."""
    # Loads torch.
    from nlgraft.export.exporting import write_export

    return write_export(load(study), Path(out), cell, seed)


def log_export(
    study: Study,
    exported: Export,
    tracking_uri: str | None = None,
) -> str:
    """Log an exported model to the run of its trial in MLflow, once, and return its ``models:/`` URI.

    Raises:
        NlgraftError: The tracking store has no run of the trial.
    """
    from nlgraft.tracking.served import log_exported

    experiment = places.experiment_name(study)
    uri = resolved_tracking_uri(study, tracking_uri)
    return log_exported(uri, experiment, exported.choice.trial.fingerprint, exported.directory)


def resolved_tracking_uri(study: Study, explicit: str | None) -> str:
    """Return the MLflow tracking URI of a study; see `nlgraft.runs.run.tracking_uri`."""
    return places.tracking_uri(study, open_store(study), explicit)


def load_model(directory: str | os.PathLike[str]) -> ExportedModel:
    """Open a model that ``nlgraft export`` wrote; see `nlgraft.export.exported.ExportedModel`."""
    # Loads torch.
    from nlgraft.export.exported import ExportedModel

    return ExportedModel(Path(directory))


def ledger(study: str | None = None, storage: str | None = None) -> dict[int, Entry]:
    """List the analyses that a store's ledger holds, by number; see `docs/validity.md`.

    Args:
        study: Only those of this study and its variants: a path or a name; of one variant with the variant's
            name; None for all.
        storage: The store; None for the study's, or the default.

    Raises:
        StudyError: The file has problems, or the store has no such study.
    """
    from nlgraft.analysis.data.ledger import open_ledger

    named_study, store = _study_and_store(study, storage)
    entries = open_ledger(store).read().documents
    if named_study is None:
        return dict(entries)
    return {
        number: analysis
        for number, analysis in entries.items()
        if (
            analysis.variant == named_study.variant
            if named_study.overrides
            else analysis.study == named_study.name
        )
    }


def register(study: Study | str | os.PathLike[str]) -> Registration:
    """Freeze what a study asks and on which data, as a dated entry of its store; see `docs/validity.md`.

    A study that froze the same before keeps its entry and its date. ``study`` may be whatever `find_study`
    takes.

    Raises:
        DataError: Text cannot be read.
    """
    return load(study).register()


def registrations(study: Study) -> list[Registration]:
    """List the registrations of the study's name, the oldest first, whatever its overrides."""
    from nlgraft.analysis.data.registration import open_registrations

    documents = open_registrations(open_store(study)).read().documents
    return [registration for registration in documents.values() if registration.study == study.name]


def streams(study: str | None = None, storage: str | None = None) -> dict[str, Stream]:
    """List the streams of proposals that a store holds, by key; see `propose`.

    Args:
        study: Only streams with a proposal of this study, as for `ledger`.
        storage: The store; None for the study's, or the default.

    Raises:
        StudyError: The file has problems, or the store has no such study.
    """
    from nlgraft.analysis.data.stream import read_streams

    named_study, store = _study_and_store(study, storage)
    return {
        key: stream
        for key, stream in read_streams(store).items()
        if named_study is None
        or stream.is_of(named_study.name, named_study.variant if named_study.overrides else None)
    }


def _study_and_store(study: str | None, storage: str | None) -> tuple[Study | None, ArtifactStore]:
    """Find a study, if one is named, and its store, another one or the default."""
    named_study = None if study is None else find_study(study, storage)
    place = (named_study.storage.path if named_study else None) if storage is None else storage
    return named_study, ArtifactStore.open(place or Storage().path)


def validity(study: Study, num_simulations: int = 1000) -> Validity:
    """Estimate by simulation how often a study that is run as declared errs, and what it finds.

    Args:
        study: The study.
        num_simulations: Number of simulated studies of each kind.

    Raises:
        NlgraftError: The study has no comparison, or one seed.
    """
    from nlgraft.analysis.policy.validity import design_of, estimate_validity

    try:
        return estimate_validity(design_of(load(study).alone()), num_simulations)
    except ValueError as error:
        raise NlgraftError(f"{study.name}: {error}") from error


def agreement(
    studies: Sequence[Study],
    *,
    target: str | None = None,
    metrics: Sequence[str] = (),
    threshold: float = 0.8,
) -> Agreement:
    """Tell how far small studies order the arms as the last one, from the trials that have finished.

    Where a metric of the test set is asked for, the studies enter the ledger first, as for a report; see
    `nlgraft.analysis.estimates.agreement.agreement`.
    """
    from nlgraft.analysis.estimates.agreement import agreement

    results = [load(study) for study in studies]
    if any(name.startswith("test") for name in (target or "", *metrics)):
        for result in results:
            _ = result.analyses
    return agreement(results, target, metrics, threshold)


def ablation_path(
    study: Study,
    cell: str = "baseline",
    *,
    is_running: bool = False,
    address: str | None = None,
    tracking_uri: str | None = None,
    on_event: Observer | None = None,
) -> AblationPath:
    """Tell which changes of a search's winner made its gain; see `nlgraft.runs.ablation_path.follow`.

    Args:
        study: A study whose search has ended.
        cell: The cell whose search it is.
        is_running: Run the trials that are missing; they are scored on dev alone.
        address: A running Ray cluster; None starts a local one if there is something to run.
        tracking_uri: MLflow tracking URI; for the default see `nlgraft.runs.run.tracking_uri`.
        on_event: Receives every event of the sweeps.
    """
    from nlgraft.runs.ablation_path import follow

    place = Place(open_store(study), address, tracking_uri, on_event)
    return follow(study, find_cell(study, cell), place, is_running=is_running)


def run_one(
    study: Study,
    cell: str,
    seed: int | None,
    reporter: Reporter,
) -> TrialRecord:
    """Run one trial of a study in this process, without Ray, and return its record.

    What the study asks enters the ledger first. Of a seed that the study's looks never take, test scores are
    left out: seeds chosen by them would decide.

    Args:
        cell: ``factor=level``, or the name of a level.
        seed: Any seed; None takes the study's first one.
    """
    from nlgraft.pipeline.trial import run_trial

    resolved, store = resolve_cell(study, find_cell(study, cell)), open_store(study)
    seed = study.seeds[0] if seed is None else seed
    record = run_trial(
        resolved.graph(seed),
        store,
        reporter=reporter,
        config=resolved.document,
        is_waiting=True,
    )
    if seed in study.look_seeds:
        # Before a score is shown: afterwards, questions could be chosen by it.
        places.read_result(study, store).declare()
        return record
    shown = {name: value for name, value in record.metrics.items() if not name.startswith("test")}
    return replace(record, metrics=shown)


def status(study: Study) -> dict[str, Any]:
    """Count the trials of each cell by state; see `nlgraft.execution.status.read_status`."""
    from nlgraft.execution.status import read_status

    return read_status(study, open_store(study))


def write_live_page(
    study: Study,
    out: Path,
    document: Mapping[str, Any] | None = None,
) -> None:
    """Write a page that shows how far a study is; while a driver runs it, browsers load it again.

    Args:
        study: The study.
        out: An HTML file, replaced whole.
        document: What `status` returned; None asks it.
    """
    from nlgraft.analysis.rendering.live import live_page

    document = status(study) if document is None else document
    began_s = time.monotonic()
    result = places.read_result(study, open_store(study))
    refresh_s = 2 + 5 * (time.monotonic() - began_s) if document["is_running"] else None
    written = out.with_name(f".{out.name}.{os.getpid()}")
    written.write_text(live_page(document, result, refresh_s), "utf-8")
    written.replace(out)  # a browser may be reading the page


def verify(
    study: Study,
    *,
    only: Sequence[str] = (),
    tracking_uri: str | None = None,
    is_discarding: bool = False,
) -> Verification:
    """Compare what a study plans with what store, Optuna and MLflow hold; see `runs.verifying.verify`.

    Args:
        only: Only these cells and the baseline.
        tracking_uri: MLflow tracking URI; for the default see `nlgraft.runs.run.tracking_uri`.
        is_discarding: Remove what cannot be used, so that the next run makes it again.
    """
    from nlgraft.runs.verifying import verify

    store = open_store(study)
    uri = places.tracking_uri(study, store, tracking_uri)
    return verify(study, store, chosen_cells(study, only), uri, is_discarding=is_discarding)
