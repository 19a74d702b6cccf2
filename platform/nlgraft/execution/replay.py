"""Offline replay of a search: how other samplers and schedulers would have fared on its finished trials.

The finished search trials of a cell are a lookup table of params, final objective and learning curve; nothing
is trained. In a replay a sampler proposes values from the search space and the nearest configuration of the
table that has not run yet is taken instead, told to the sampler as the one that was tried, and its curve is
shown to a pruner, which may end it. Distances are Euclidean with every domain scaled to [0, 1] (logarithmic
ones in the logarithm); different choices, and a value on one side only, are 1 apart. Regret is the distance
of the best trial found so far from the best of the table; before a trial completes, that of the worst.

Limits. A table knows no better configuration than those on record, and the fewer these are, the less a
sampler can show: all agree once everything has run. Trials that failed or were stopped have no final
objective and are left out, so that a search under a strict scheduler leaves a small, favourable table. Trials
run one after the other. Median stopping and ASHA are Optuna's pruners, close to Tune's schedulers but not the
same code. CMA-ES and NSGA-II cannot learn from configurations that they did not propose, so they have no
replay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.execution.cell_searches import flat_config
from nlgraft.execution.optuna_study import encoded, sampler_of, suggest_params
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.metric import CURVE
from nlgraft.study.data.space import CategoricalDomain, Domain, same
from nlgraft.study.data.study import Search, Study, TrialScheduler
from nlgraft.study.planning.selection import Proposal, load_proposals
from nlgraft.study.reading.system_import import load_system

Array = NDArray[np.float64]
SAMPLERS = ("random", "tpe")
SCHEDULERS = ("none", "median", "asha")
BAND = (0.1, 0.9)
"""Quantiles of the regret over replays."""
_FEW = 3
_FEW_POINTS = 2
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Run:
    """A finished trial as the table knows it; lower values are better.

    Attributes:
        params: Searched values by dotted path.
        value: Final value of the objective.
        curve: Step and value of the metric that schedulers compare.
        cost: Its budget, as a multiple of the table's average.
    """

    params: Mapping[str, Any]
    value: float
    curve: Sequence[tuple[int, float]]
    cost: float


@dataclass(frozen=True, eq=False)
class Regret:
    """Regret of one sampler and scheduler after budgets of 1 ... N complete trials, over many replays.

    Attributes:
        sampler: Name of the sampler.
        scheduler: Name of the rule that stops trials early, or ``none``.
        mean: Mean regret, shape (N,).
        low: Its lower quantile of `BAND`; same shape.
        high: Its upper one.
        distance: Median distance of the substitutes from what the sampler proposed, in the space of `_place`,
            by proposal; shape (N,).
    """

    sampler: str
    scheduler: str
    mean: Array
    low: Array
    high: Array
    distance: Array

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON values; entry n - 1 of each list is that of n complete trials."""
        lists = {"regret": self.mean.tolist(), "low": self.low.tolist(), "high": self.high.tolist()}
        lists["distance"] = self.distance.tolist()
        return {"sampler": self.sampler, "scheduler": self.scheduler, **lists}


@dataclass(frozen=True)
class Table:
    """The search trials of a cell as a lookup table.

    Attributes:
        label: Label of the cell.
        num_trials: Trials of the search that are on record.
        runs: Those that finished; too few of them make no table.
        best: Best objective; None without trials.
        curve: Metric that the schedulers compare; None where the trials have no curve in common.
        steps_per_trial: Mean steps of a complete trial; None without a curve.
        random_distance: Mean distance between two of its configurations; None with fewer than two.
        config: The cell's config by dotted path.
        notes: Remarks on what is missing or limited.
    """

    label: str
    num_trials: int
    runs: Sequence[Run] = ()
    best: float | None = None
    curve: str | None = None
    steps_per_trial: float | None = None
    random_distance: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellReplay:
    """The replays of one cell: its table, and the regret of each sampler and scheduler."""

    table: Table
    regrets: Sequence[Regret]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        table = self.table
        return {
            "cell": table.label,
            "trials": table.num_trials,
            "finished": len(table.runs),
            "best": table.best,
            "curve": table.curve,
            "steps_per_trial": table.steps_per_trial,
            "random_distance": table.random_distance,
            "replays": [regret.to_json() for regret in self.regrets],
            "notes": list(table.notes),
        }


def replay(study: Study, store: ArtifactStore, num_simulations: int) -> list[CellReplay]:
    """Replay the search of every cell under each sampler and scheduler.

    Raises:
        DataError: The study has no search.
        NlgraftError: No cell has three finished search trials.
    """
    search = study.search
    if search is None:
        raise DataError(f"{study.variant} has no search, so there is nothing to replay")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tables = read_tables(study, store)
    if all(len(table.runs) < _FEW for table in tables):
        counts = ", ".join(f"{table.label} {len(table.runs)}" for table in tables)
        raise NlgraftError(
            f"{study.variant}: a replay needs {_FEW} finished search trials in a cell; there are {counts}"
        )
    found = []
    for table in tables:
        schedulers = SCHEDULERS if table.curve is not None else SCHEDULERS[:1]
        strategies = itertools.product(SAMPLERS, schedulers if len(table.runs) >= _FEW else ())
        regrets = [_regret(table.runs, search, table.config, *one, num_simulations) for one in strategies]
        found.append(CellReplay(table, regrets))
    return found


def read_tables(study: Study, store: ArtifactStore) -> list[Table]:
    """Read the finished search trials of every cell."""
    return [_read_table(study, cell, load_proposals(study, cell, store)) for cell in cells(study)]


def _read_table(study: Study, cell: Cell, proposals: Sequence[Proposal]) -> Table:
    objective = study.objectives[0]
    sign = -1.0 if objective.direction == "maximize" else 1.0
    finished = [p for p in proposals if math.isfinite(_final(p, objective.metric))]
    lacking = len(proposals) - len(finished)
    notes = [f"{lacking} of {len(proposals)} trials have no final value"] if lacking else []
    metric = _curve_metric(study, finished)
    if len(finished) < _FEW:
        notes.append(f"a table needs {_FEW} finished trials")
    elif metric is None:
        notes.append("no scheduler: the trials have no learning curve in common")
    curves = [_curve(study, proposal, metric) for proposal in finished]
    steps = [curve[-1][0] if curve else 1 for curve in curves]
    average = float(np.mean(steps)) if steps else 1.0
    runs = [
        Run(proposal.params, sign * _final(proposal, objective.metric), curve, last / average)
        for proposal, curve, last in zip(finished, curves, steps, strict=True)
    ]
    return Table(
        cell.label,
        len(proposals),
        runs,
        sign * min(run.value for run in runs) if runs else None,
        metric,
        None if metric is None else average,
        _mean_distance(study.search.space, runs) if study.search is not None else None,
        flat_config(study, cell),
        tuple(notes),
    )


def _final(proposal: Proposal, metric: str) -> float:
    record = proposal.record
    is_finished = record is not None and record.state == "finished"
    return record.metrics.get(metric, math.nan) if record is not None and is_finished else math.nan


def _curve_metric(study: Study, finished: Sequence[Proposal]) -> str | None:
    """Choose the metric that schedulers compare: the study's, the objective, or the dev loss."""
    known = load_system(study.system).metrics
    spec = None if study.search is None else study.search.trial_scheduler
    for name in (spec and spec.metric, study.objectives[0].metric, CURVE):
        if (
            finished
            and name in known
            and all(len(_curve(study, one, name)) >= _FEW_POINTS for one in finished)
        ):
            return name
    return None


def _curve(study: Study, proposal: Proposal, metric: str | None) -> list[tuple[int, float]]:
    """Return the finite points of a curve, lower values better, the last value of each step."""
    if metric is None or proposal.record is None:
        return []
    sign = -1.0 if load_system(study.system).metrics[metric].direction == "maximize" else 1.0
    points = proposal.record.curves.get(metric, [])
    return sorted({int(step): sign * value for step, value, _ in points if math.isfinite(value)}.items())


def _regret(
    table: Sequence[Run],
    search: Search,
    config: Mapping[str, Any],
    sampler: str,
    scheduler: str,
    num_simulations: int,
) -> Regret:
    pruner = pruner_for(scheduler, search.trial_scheduler, table)
    budgets = np.arange(1, len(table) + 1)
    values = np.array([run.value for run in table])
    found, distances = np.empty((2, num_simulations, len(table)))
    for seed in range(num_simulations):
        chosen = search.sampler.model_copy(update={"name": sampler, "seed": seed})
        own = search.model_copy(update={"sampler": chosen})
        spent, best, distances[seed] = _replay_once(table, own, config, pruner)
        # Index 0 is "no trial has completed yet"; a budget counts as spent if it is met up to rounding.
        last = np.searchsorted(spent, budgets + _ROUNDING, side="right")
        found[seed] = np.concatenate(([values.max()], np.minimum(best, values.max())))[last] - values.min()
    low, high = np.quantile(found, BAND, axis=0)
    return Regret(sampler, scheduler, found.mean(axis=0), low, high, np.median(distances, axis=0))


def _replay_once(
    table: Sequence[Run], search: Search, config: Mapping[str, Any], pruner: BasePruner
) -> tuple[Array, Array, Array]:
    """Run the whole table in the order that one sampler chooses.

    Returns:
        After each trial the budget spent and the best value of the completed ones (infinite before the
        first), and its distance from what was proposed.
    """
    study = optuna.create_study(direction="minimize", pruner=pruner)
    order = np.random.default_rng(search.sampler.seed).permutation(len(table))  # breaks ties of distances
    runs = [table[index] for index in order]
    places = np.array([_place(search.space, run.params) for run in runs])
    is_choice = _are_choices(search.space)
    is_open = np.ones(len(runs), dtype=bool)
    spent, best = [0.0], [math.inf]
    distances: list[float] = []
    for number in range(len(runs)):
        study.sampler = sampler_of(search, number)
        asked = study.ask()
        proposed = _place(search.space, suggest_params(asked, search.space, config))
        study.tell(asked, state=TrialState.FAIL)  # samplers ignore it: what was tried follows
        squares = np.where(is_open, _distances(proposed, places, is_choice), np.inf)
        index = int(np.argmin(squares))
        distances.append(math.sqrt(squares[index]))
        is_open[index] = False
        cost, value = _run(study, runs[index], search.space, config)
        spent.append(spent[-1] + cost)
        best.append(min(best[-1], value))
    return np.array(spent[1:]), np.array(best[1:]), np.array(distances)


def _run(
    study: optuna.Study, run: Run, space: Mapping[str, Domain], config: Mapping[str, Any]
) -> tuple[float, float]:
    """Let a recorded trial run until its end or the pruner's; return its cost and its final value."""
    study.enqueue_trial({path: encoded(value) for path, value in run.params.items()})
    trial = study.ask()
    suggest_params(trial, space, config)
    for step, value in run.curve:
        trial.report(value, step)
        if trial.should_prune() and step < run.curve[-1][0]:
            study.tell(trial, state=TrialState.PRUNED)
            return run.cost * step / run.curve[-1][0], math.inf
    study.tell(trial, run.value)
    return run.cost, run.value


def pruner_for(scheduler: str, spec: TrialScheduler | None, table: Sequence[Run]) -> BasePruner:
    """Build Optuna's pruner with the study's settings, else from the first evaluation on."""
    if scheduler == "none":
        return NopPruner()
    spec = spec or TrialScheduler(grace_steps=max(1, min(run.curve[0][0] for run in table)))
    if scheduler == "median":
        return MedianPruner(n_startup_trials=_FEW, n_warmup_steps=spec.grace_steps)
    return SuccessiveHalvingPruner(spec.grace_steps, spec.reduction_factor)


def _place(space: Mapping[str, Domain], params: Mapping[str, Any]) -> Array:
    """Scale the values of a space to [0, 1], choices to their index; NaN where there is none."""
    return np.array(
        [_scaled(domain, params[path]) if path in params else math.nan for path, domain in space.items()]
    )


def _scaled(domain: Domain, value: Any) -> float:
    if isinstance(domain, CategoricalDomain):
        return next(float(index) for index, choice in enumerate(domain.choices) if same(choice, value))
    scale = math.log if domain.log else float
    return (scale(value) - scale(domain.low)) / (scale(domain.high) - scale(domain.low))


def _mean_distance(space: Mapping[str, Domain], runs: Sequence[Run]) -> float | None:
    """Average the distance between two configurations of a table."""
    places = np.array([_place(space, run.params) for run in runs])
    pairs = [
        math.sqrt(square)
        for index, place in enumerate(places)
        for square in _distances(place, places[index + 1 :], _are_choices(space))
    ]
    return float(np.mean(pairs)) if pairs else None


def _are_choices(space: Mapping[str, Domain]) -> NDArray[np.bool_]:
    return np.array([isinstance(domain, CategoricalDomain) for domain in space.values()])


def _distances(place: Array, places: Array, is_choice: NDArray[np.bool_]) -> Array:
    """Compute squared distances of a place (k,) from others (n, k)."""
    gaps = np.where(is_choice, place != places, np.abs(place - places))
    absent, others = np.isnan(place), np.isnan(places)
    gaps = np.where(absent & others, 0.0, np.where(absent | others, 1.0, gaps))
    return np.square(gaps).sum(axis=1)
