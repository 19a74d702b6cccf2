"""One Optuna study per cell, driven by ask and tell.

Optuna's heartbeat and retry callbacks do not reach trials created by ``ask``, so what a crash leaves open is
reconciled here with the proposals on record in the artifact store.
"""

from __future__ import annotations

import json
import logging
import math
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import BaseTrial, FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from nlgraft.basics.errors import RUN_AGAIN, Finding, StoreError
from nlgraft.basics.pacing import Pacer
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.space import CategoricalDomain, Domain, IntDomain, holds, same, sampling_order
from nlgraft.study.data.study import Objective, Search, Study
from nlgraft.study.planning.selection import search_key
from nlgraft.study.reading.place_rules import OPTUNA_FILE

logger = logging.getLogger(__name__)

_NUMBER = "nlgraft.number"
_FINGERPRINT = "nlgraft.fingerprint"
_REASON = "nlgraft.reason"
_FLUSH_PAUSE_S = 1.0
_FLUSH_SHARE = 0.2
"""Share of the driver's time that may go into writing the database."""
_MAX_SHUFFLED = 100_000
"""Points of the largest grid whose order is listed; of larger ones only what has been proposed is."""
_PRIMITIVES = (str, int, float, bool, type(None))


def sampler_of(search: Search, number: int) -> optuna.samplers.BaseSampler:
    """Build the sampler of proposal ``number`` within a cell; a grid has none.

    **Determinism.** Its proposal depends on the seed, the number and the trials told so far, never on what
    this process sampled before: a search that resumes makes the same proposals.
    """
    seed = (search.sampler.seed * 1_000_003 + number) % 2**32
    if search.sampler.name == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=search.sampler.num_drawn)
    if search.sampler.name == "gp":
        num_drawn = search.sampler.num_drawn
        # Without its warning of what it does not model, which the study was warned of when it was read.
        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=num_drawn, warn_independent_sampling=False
        )
    return optuna.samplers.RandomSampler(seed=seed)


def _grid_point(search: Search, number: int) -> dict[str, Any]:
    """Return a point of the shuffled product of all paths; where paths have conditions, points repeat.

    Optuna's own grid sampler records visited points in the database, so they are lost with it, and it stops
    the study at the last one, which raises an error under ask and tell.
    """
    sizes = {path: int(search.space[path].num_values) for path in sorted(search.space)}
    index = _grid_index(search.sampler.seed, math.prod(sizes.values()), number)
    point = {}
    for path, size in reversed(sizes.items()):
        index, place = divmod(index, size)
        point[path] = _grid_value(search.space[path], place)
    return point


def _grid_index(seed: int, size: int, number: int) -> int:
    """Return element ``number`` of a random order of the numbers below ``size``."""
    generator = random.Random(seed)
    if size <= _MAX_SHUFFLED:
        order = list(range(size))
        generator.shuffle(order)
        return order[number]
    drawn: dict[int, None] = {}
    while len(drawn) <= number:
        drawn[generator.randrange(size)] = None
    return [*drawn][number]


def _grid_value(domain: Domain, place: int) -> Any:
    if isinstance(domain, CategoricalDomain):
        return encoded(domain.choices[place])
    assert domain.step is not None, "the study refuses a grid over a domain without step"
    # Rounding may lead beyond the end, which Optuna refuses.
    return min(domain.low + place * domain.step, domain.high)


def encoded(choice: Any) -> Any:
    """Return a value as Optuna takes it: lists and mappings as their JSON text."""
    if isinstance(choice, _PRIMITIVES):
        return choice
    return json.dumps(choice, sort_keys=True)


def distribution_of(domain: Domain) -> BaseDistribution:
    """Translate a domain of ``search.space`` into Optuna's distribution.

    Choices that are lists or mappings are represented by their JSON text, since Optuna takes scalars only.
    """
    if isinstance(domain, CategoricalDomain):
        return CategoricalDistribution([encoded(choice) for choice in domain.choices])
    if isinstance(domain, IntDomain):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def _suggest(trial: BaseTrial, path: str, domain: Domain) -> Any:
    if isinstance(domain, CategoricalDomain):
        chosen = trial.suggest_categorical(path, [encoded(choice) for choice in domain.choices])
        return next(choice for choice in domain.choices if same(encoded(choice), chosen))
    if isinstance(domain, IntDomain):
        return trial.suggest_int(path, domain.low, domain.high, step=domain.step, log=domain.log)
    return trial.suggest_float(path, domain.low, domain.high, step=domain.step, log=domain.log)


def suggest_params(
    trial: BaseTrial,
    space: Mapping[str, Domain],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Ask a trial for the values of a space.

    Args:
        trial: A trial that runs, or one whose values are known.
        space: Domains by dotted path.
        config: The cell's config by dotted path, for conditions on paths that are not searched.

    Returns:
        Values by dotted path; a path whose condition does not hold is absent.
    """
    params: dict[str, Any] = {}
    for path in sampling_order(space):
        if holds(space[path].when, {**config, **params}):
            params[path] = _suggest(trial, path, space[path])
    return params


def outcome(record: TrialRecord, objective: Objective) -> tuple[TrialState, float | None]:
    """Return how Optuna is told that a trial ended, with the value of one that is complete."""
    value = record.metrics.get(objective.metric, math.nan)
    if record.state == "finished" and math.isfinite(value):
        return TrialState.COMPLETE, value
    return (TrialState.PRUNED if record.state == "stopped" else TrialState.FAIL), None


def number_of(trial: FrozenTrial) -> int | None:
    """Return the number of the proposal that a trial belongs to."""
    return trial.user_attrs.get(_NUMBER)


def optuna_name(study: Study, cell: Cell) -> str:
    """Name of the Optuna study of a cell."""
    return f"{study.name}/{cell.label}@{search_key(study, cell)[:8]}"


def database_url(store: ArtifactStore) -> str | None:
    """URL of Optuna's database in a local store; with a remote store it is rebuilt from the proposals."""
    if not store.is_local:
        return None
    root = Path(store.uri)
    root.mkdir(parents=True, exist_ok=True)
    # Quotes what a path may hold and a URL may not: "?", "%", "#".
    return URL.create("sqlite", database=str(root / OPTUNA_FILE)).render_as_string()


def open_search(study: Study, store: ArtifactStore, cell: Cell) -> OptunaStudy:
    """Open the Optuna study of a cell, which a study with a search has."""
    assert study.search is not None
    name, url = optuna_name(study, cell), database_url(store)
    return OptunaStudy(name, study.search, study.objective, url, store.check_writable)


@contextmanager
def explained() -> Iterator[None]:
    """Raise `StoreError` in place of an error of the database; also a decorator."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        reason = str(cause).partition("\n")[0]
        raise StoreError(
            f"the search cannot use its database, {OPTUNA_FILE} in the store: {reason}. Delete the file if "
            "it is damaged: it is made again from the proposals on record. Else make it writable, or free "
            "space there"
        ) from error


@contextmanager
def _going_on_if_locked() -> Iterator[None]:
    """Leave writing for later where another process, perhaps a stopped one, keeps the database locked."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        if "database is locked" not in f"{error} {error.__cause__}":
            raise
        logger.warning("another process keeps %s locked; the search goes on and writes it later", OPTUNA_FILE)


class OptunaStudy:
    """Proposals and results of one cell.

    **Determinism.** Proposal ``n`` depends on the sampler's seed, ``n`` and the results told before it; with
    concurrent trials that includes the order in which results arrive.

    **Speed.** The study is held in memory: one proposal and its end cost 28 ms of CPU time in a database.
    Trials that have ended are written to the database together, at most about once a second.

    **Crashes.** `reconcile` makes Optuna agree with the store: results on record are told, also those that
    the database lacks, and proposals without a result stay open.

    **Failure.** Methods that read or write the database raise `StoreError` when that is not possible.

    Args:
        name: Name of the Optuna study.
        search: What is searched.
        objective: What it is judged by.
        storage_url: The database; None keeps the study in memory alone.
        check: Called before each write to the database; raises if it must not be written.
    """

    @explained()
    def __init__(
        self,
        name: str,
        search: Search,
        objective: Objective,
        storage_url: str | None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._search = search
        self._check = check
        self._objective = objective
        self._study = optuna.create_study(study_name=name, direction=objective.direction)
        self._database: optuna.Study | None = None
        stored: list[FrozenTrial] = []
        if storage_url is not None:
            with _going_on_if_locked():
                database = optuna.create_study(
                    study_name=name, storage=storage_url, direction=objective.direction, load_if_exists=True
                )
                database.set_user_attr("nlgraft.metrics", [objective.metric])
                stored = database.get_trials(deepcopy=False)
                self._database = database
        self._numbers: dict[int, int] = {}
        self._live: dict[int, Trial] = {}
        self._unwritten: list[int] = []
        self._flushes = Pacer(_FLUSH_PAUSE_S, _FLUSH_SHARE)
        # In the order of their proposals; `nlgraft verify` tells of one that is there twice.
        for trial in sorted(stored, key=lambda trial: trial.user_attrs.get(_NUMBER, math.inf)):
            if trial.state.is_finished() and number_of(trial) not in self._numbers:
                self._add(trial)

    @property
    def trials(self) -> list[FrozenTrial]:
        """Every Optuna trial of this cell."""
        return self._study.get_trials(deepcopy=False)

    def _add(self, trial: FrozenTrial) -> None:
        if (number := number_of(trial)) is not None:
            self._numbers[number] = len(self.trials)
        self._study.add_trial(trial)

    @explained()
    def reconcile(self, proposals: Mapping[int, Mapping[str, Any]], ended: Mapping[int, TrialRecord]) -> None:
        """Make Optuna agree with the store.

        Args:
            proposals: Params of every proposal on record, by number.
            ended: Records of the proposals that have ended, by number.
        """
        for number, params in sorted(proposals.items()):
            if number not in self._numbers:
                distributions = {path: distribution_of(self._search.space[path]) for path in params}
                values = {path: encoded(value) for path, value in params.items()}
                self._add(
                    create_trial(
                        state=TrialState.RUNNING,
                        params=values,
                        distributions=distributions,
                        user_attrs={_NUMBER: number},
                    )
                )
        for number, record in sorted(ended.items()):
            self._tell(number, record)
        self.flush()

    def propose(self, number: int, config: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the params of proposal ``number``; see `suggest_params`.

        One that Optuna holds a result of is the same again: only its record in the store was lost.
        """
        if number in self._numbers:
            optuna_trial = self.trials[self._numbers[number]]
            if optuna_trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
                return suggest_params(optuna_trial, self._search.space, config)
        if self._search.sampler.name == "grid":
            self._study.enqueue_trial(_grid_point(self._search, number))
        else:
            # A new one for each proposal: its state would depend on what this process sampled before.
            self._study.sampler = sampler_of(self._search, number)
            for values in self._search.start[number : number + 1]:
                self._study.enqueue_trial({path: encoded(value) for path, value in values.items()})
        trial = self._study.ask()
        trial.set_user_attr(_NUMBER, number)
        self._numbers[number] = trial.number
        self._live[number] = trial
        return suggest_params(trial, self._search.space, config)

    def intermediate(
        self,
        number: int,
        value: float,
        step: int,
    ) -> None:
        """Report the objective at an optimizer step, as Optuna's pruned trials carry it."""
        trial = self._live.get(number)
        if trial is not None and math.isfinite(value):
            trial.report(value, step)

    def tell(self, number: int, record: TrialRecord) -> None:
        """Tell how a proposal ended: a non-finite objective is FAIL; telling twice changes nothing."""
        self._tell(number, record)
        if self._flushes.is_due:
            self.flush()

    @explained()
    def flush(self) -> None:
        """Write the trials that have ended to the database."""
        trials = self.trials
        with self._flushes.turn(), _going_on_if_locked():
            while self._database is not None and self._unwritten:
                self._check()
                self._database.add_trial(trials[self._unwritten[0]])
                del self._unwritten[0]  # only now: one that could not be written is tried again

    def _tell(self, number: int, record: TrialRecord) -> None:
        index = self._numbers.get(number)
        if index is None or self.trials[index].state != TrialState.RUNNING:
            return
        live = self._live.pop(number, None)
        if live is not None:
            live.set_user_attr(_FINGERPRINT, record.fingerprint)
            live.set_user_attr(_REASON, record.reason)
        state, value = outcome(record, self._objective)
        # Without a value, since Optuna takes the last intermediate value of a pruned trial.
        self._study.tell(index, value, state)
        self._unwritten.append(index)


# Optuna's part of `verify`: its database against the records of the store.


def check_optuna(
    study: Study,
    store: ArtifactStore,
    cells: Sequence[Cell],
    ended: Sequence[tuple[SweepTrial, TrialRecord]],
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
    findings: list[Finding] = []
    for cell in cells:
        try:
            trials = _stored(optuna_name(study, cell), url)
        except StoreError as error:
            return [Finding("Optuna", "cannot be read", str(error))]
        findings += _compare(cell, trials, records[cell.key], study.objective)
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
    objective: Objective,
) -> Iterator[Finding]:
    again = f"delete {OPTUNA_FILE} in the store: `nlgraft run` makes it again from the proposals on record"
    for trial in trials:
        if not trial.state.is_finished():
            yield Finding("Optuna", f"{cell.label}: trial {trial.number} is {trial.state.name}", again)
    for number, record in sorted(records.items()):
        held = [trial for trial in trials if number_of(trial) == number and trial.state.is_finished()]
        name = f"{cell.label}, search {number}"
        if not held:
            yield Finding("Optuna", f"{name}: is missing", RUN_AGAIN)
        if len(held) > 1:
            numbers = ", ".join(str(trial.number) for trial in held)
            yield Finding("Optuna", f"{name}: is there {len(held)} times, as trials {numbers}", again)
        state, value = outcome(record, objective)
        for trial in held:
            # A pruned trial may carry its last intermediate value.
            if trial.state != state or (value is not None and trial.value != value):
                what = f"{name}: is {trial.state.name} {trial.value}, the record says {state.name} {value}"
                yield Finding("Optuna", what, again)


# How much of a good objective each searched setting accounts for: Optuna's PED-ANOVA.
#
# PED-ANOVA (Watanabe et al. 2023) measures how far the values of a setting among the best trials depart from
# those among all trials; settings that are searched only under a condition are weighed by how often they
# were searched (conditional PED-ANOVA, 2026).


_BEST = 0.1
_FEWEST_BEST = 5
_MOST = 0.5


def importances(
    space: Mapping[str, Domain],
    direction: Literal["maximize", "minimize"],
    trials: Sequence[tuple[Mapping[str, Any], float]],
) -> dict[str, float]:
    """Compute the importance of each setting for being among the best trials.

    The best are a tenth of the trials, at least five of them, at most half.

    Args:
        space: Domains by path.
        direction: ``maximize`` or ``minimize``.
        trials: Values by path, and the objective, of each finished trial.

    Returns:
        Importances by path, not normalised; empty where all values are equal or there are too few. Paths
        that no trial has are missing.
    """
    if len({value for _, value in trials}) < 2:
        return {}
    # It loads scikit-learn, two seconds that no sweep needs.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=direction)
    study.add_trials(
        [
            create_trial(
                value=value,
                params={path: encoded(chosen) for path, chosen in params.items()},
                distributions={path: distribution_of(space[path]) for path in params},
            )
            for params, value in trials
        ]
    )
    share = min(_MOST, max(_BEST, _FEWEST_BEST / len(trials)))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of values that are not normalised
        # Where a setting was searched in few trials; a report says so itself.
        warnings.filterwarnings("ignore", message="Some regimes")
        return get_param_importances(study, evaluator=evaluator, normalize=False)
