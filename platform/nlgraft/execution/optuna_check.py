"""Optuna's part of `verify`: its database against the records of the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial

from nlgraft.basics.errors import RUN_AGAIN, Finding, StoreError
from nlgraft.execution.events import SweepTrial
from nlgraft.execution.optuna_study import database_url, explained, number_of, optuna_name, outcome
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Objective, Study
from nlgraft.study.reading.place_rules import OPTUNA_FILE


def check_optuna(
    study: Study, store: ArtifactStore, cells: Sequence[Cell], ended: Sequence[tuple[SweepTrial, TrialRecord]]
) -> list[Finding]:
    """Find proposals that have ended and that Optuna does not hold once, with the same outcome.

    A study without a search has nothing in Optuna, and with an object store there is no database.
    """
    if study.search is None or not store.is_local:
        return []
    if not (Path(store.uri) / OPTUNA_FILE).exists():  # first, since to ask for its URL makes the store
        return [Finding("Optuna", f"{store.name}/{OPTUNA_FILE} is missing", RUN_AGAIN)]
    url = database_url(store)
    assert url is not None, "a local store has a database"
    records: dict[str, dict[int, TrialRecord]] = defaultdict(dict)
    for trial, record in ended:
        if trial.number is not None:
            records[trial.cell.key][trial.number] = record
    findings = []
    for cell in cells:
        try:
            trials = _stored(optuna_name(study, cell), url)
        except StoreError as error:
            return [Finding("Optuna", "cannot be read", str(error))]
        findings += _compare(cell, trials, records[cell.key], study.objectives)
    return findings


@explained()
def _stored(name: str, url: str) -> list[FrozenTrial]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.load_study(study_name=name, storage=url).get_trials(deepcopy=False)
    except KeyError:
        return []


def _compare(
    cell: Cell,
    trials: Sequence[FrozenTrial],
    records: Mapping[int, TrialRecord],
    objectives: Sequence[Objective],
) -> list[Finding]:
    again = f"delete {OPTUNA_FILE} in the store: `nlgraft run` makes it again from the proposals on record"
    found = []
    for trial in trials:
        if not trial.state.is_finished():
            found.append(
                Finding("Optuna", f"{cell.label}: trial {trial.number} is {trial.state.name}", again)
            )
    for number, record in sorted(records.items()):
        held = [trial for trial in trials if number_of(trial) == number and trial.state.is_finished()]
        name = f"{cell.label}, search {number}"
        if not held:
            found.append(Finding("Optuna", f"{name}: is missing", RUN_AGAIN))
            continue
        if len(held) > 1:
            numbers = ", ".join(str(trial.number) for trial in held)
            found.append(Finding("Optuna", f"{name}: is there {len(held)} times, as trials {numbers}", again))
        state, values = outcome(record, objectives)
        for trial in held:
            # A pruned trial may carry its last intermediate value.
            if trial.state != state or (values is not None and trial.values != values):
                what = f"{name}: is {trial.state.name} {trial.values}, the record says {state.name} {values}"
                found.append(Finding("Optuna", what, again))
    return found
