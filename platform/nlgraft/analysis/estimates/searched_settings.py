"""Which searched setting mattered in a cell: importances, and the objective by level.

**It describes the trials that ran and tests nothing.** Importances are Optuna's PED-ANOVA: how far the values
of a setting among the best trials depart from those among all. They are given as shares of their sum, beside
what the same trials show when their objectives are shuffled: the value that one of twenty shuffles exceeds.
A setting below that did no more than chance would; one above it need not matter either, where there are
several settings, few trials, or a sampler that looked where it had been lucky.

Only trials that finished with a finite objective count. A trial in which a setting is not searched, because
its condition does not hold, has no level of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nlgraft.analysis.data.results import Importance, Results
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import rounded_all
from nlgraft.study.data.space import Domain

MANY = 30
"""Finished trials from which importances are worth reading."""

_FEWEST = 10
_NUM_BINS = 4
_NUM_SHUFFLES = 40
_EXCEEDED = 0.95
_RANDOM_SEED = 20261124

Tried = tuple[Mapping[str, Any], float]
"""Values by path, and the objective."""


@dataclass(frozen=True)
class Level:
    """The trials that had a value of a setting, or one of an interval of values."""

    name: str
    num_trials: int
    mean: float
    best: float


@dataclass(frozen=True)
class SearchedSetting:
    """A searched setting of a cell.

    Attributes:
        path: Its dotted path.
        share: Its importance as a share of the sum over settings; None with too few trials.
        by_chance: The share that one of twenty shuffles exceeds, at most 1; None likewise.
        levels: Its levels, or four intervals with equally many trials.
        num_without: Trials in which it was not searched.
    """

    path: str
    share: float | None
    by_chance: float | None
    levels: tuple[Level, ...]
    num_without: int

    @property
    def stands_out(self) -> bool:
        """True if its importance is above what shuffled trials show."""
        return self.share is not None and self.by_chance is not None and self.share > self.by_chance


@dataclass(frozen=True)
class CellSettings:
    """The searched settings of a cell, the most important first.

    Attributes:
        label: The cell.
        num_trials: Search trials that finished with an objective, equal ones counted once.
        num_left_out: Those that failed, were stopped or have no finite objective.
        settings: The settings that some trial has.
        caveats: What makes them hard to read, as clauses.
    """

    label: str
    num_trials: int
    num_left_out: int
    settings: tuple[SearchedSetting, ...]
    caveats: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        settings = [
            {
                "setting": setting.path,
                "importance": setting.share,
                "by_chance": setting.by_chance,
                "stands_out": setting.stands_out,
                "trials_without": setting.num_without,
                "levels": [
                    {"level": level.name, "trials": level.num_trials, "mean": level.mean, "best": level.best}
                    for level in setting.levels
                ],
            }
            for setting in self.settings
        ]
        document = {
            "trials": self.num_trials,
            "left_out": self.num_left_out,
            "caveats": list(self.caveats),
            "settings": settings,
        }
        return rounded_all(document)


def searched_settings(result: Results, cell: CellResult) -> CellSettings | None:
    """Describe the settings of a cell's search by the objective; None before a trial has finished."""
    search, objective = result.study.search, result.study.objective
    if search is None:
        return None
    tried: list[Tried] = [
        (trial.params, trial.metrics.get(objective.metric, math.nan))
        for trial in cell.search
        if trial.state == "finished"
    ]
    finite = [attempt for attempt in tried if math.isfinite(attempt[1])]
    if not finite:
        return None
    # A configuration that was proposed again brought the same result, not another one.
    tried = list({json.dumps(params, sort_keys=True): (params, value) for params, value in finite}.values())
    shares, by_chance = _shares(result.importance, search.space, objective.direction, tried)
    best = max if objective.direction == "maximize" else min
    settings = []
    for path, domain in search.space.items():
        points = tuple((params[path], value) for params, value in tried if path in params)
        if points:
            levels = tuple(
                Level(name, len(values), float(np.mean(values)), best(values))
                for name, values in _levels(domain, points).items()
            )
            without = len(tried) - len(points)
            settings.append(SearchedSetting(path, shares.get(path), by_chance.get(path), levels, without))
    settings.sort(key=lambda setting: -(setting.share or 0.0))
    left_out = sum(trial.state in ("finished", "stopped", "failed") for trial in cell.search) - len(finite)
    caveats = _caveats(len(tried), len(finite) - len(tried), left_out, search.sampler.name)
    return CellSettings(cell.label, len(tried), left_out, tuple(settings), caveats)


def _shares(
    importance: Importance | None,
    space: Mapping[str, Domain],
    direction: Literal["maximize", "minimize"],
    tried: Sequence[Tried],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return importances by path, and what shuffled trials exceed once in twenty, as shares of their sum."""
    importances = {} if importance is None or len(tried) < _FEWEST else importance(space, direction, tried)
    total = sum(importances.values())
    if importance is None or total <= 0:
        return {}, {}
    # A fixed seed: a report that is made again shows the same figures.
    rng = np.random.default_rng(_RANDOM_SEED)
    values = np.array([value for _, value in tried])
    shuffled = [
        importance(
            space,
            direction,
            [
                (params, float(value))
                for (params, _), value in zip(tried, rng.permutation(values), strict=True)
            ],
        )
        for _ in range(_NUM_SHUFFLES)
    ]
    by_chance = {
        path: min(1.0, float(np.quantile([chances[path] for chances in shuffled], _EXCEEDED)) / total)
        for path in importances
    }
    return {path: value / total for path, value in importances.items()}, by_chance


def _levels(domain: Domain, points: Sequence[tuple[Any, float]]) -> dict[str, list[float]]:
    """Group objectives by value, or by intervals with equally many trials where a number has many values."""
    if domain.type == "categorical":
        names = [choice if isinstance(choice, str) else json.dumps(choice) for choice in domain.choices]
        by_choice: dict[str, list[float]] = {name: [] for name in names}
        for chosen, value in points:
            by_choice[chosen if isinstance(chosen, str) else json.dumps(chosen)].append(value)
        return {name: values for name, values in by_choice.items() if values}
    ordered = sorted(points, key=lambda point: point[0])
    numbers = list(dict.fromkeys(number for number, _ in ordered))
    if len(numbers) <= _NUM_BINS:
        return {f"{level:.4g}": [value for number, value in ordered if number == level] for level in numbers}
    # Cut between different values, so that equal ones share an interval.
    edges = np.quantile([number for number, _ in ordered], np.linspace(0, 1, _NUM_BINS + 1)[1:-1])
    groups: dict[int, list[tuple[float, float]]] = {}
    for number, value in ordered:
        groups.setdefault(int(np.searchsorted(edges, number)), []).append((number, value))
    return {_interval(group[0][0], group[-1][0]): [value for _, value in group] for group in groups.values()}


def _interval(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _caveats(num_trials: int, num_repeated: int, num_left_out: int, sampler: str) -> tuple[str, ...]:
    caveats = []
    if num_repeated:
        caveats.append(f"{num_repeated} trials repeat the values of another one and are not counted")
    if num_trials < _FEWEST:
        caveats.append(f"{num_trials} finished trials are too few for importances")
    elif num_trials < MANY:
        caveats.append(f"importances of {num_trials} finished trials are rough")
    if num_left_out:
        caveats.append(
            f"{num_left_out} trials that failed or were stopped early are left out, so levels may look "
            "better than they are"
        )
    if sampler == "tpe":
        caveats.append(
            f"{sampler} tried the values that looked good more often, so levels are unevenly covered"
        )
    return tuple(caveats)
