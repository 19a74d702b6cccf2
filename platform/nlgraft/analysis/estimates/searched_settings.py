"""Which searched setting mattered in a cell.

**It describes the trials that ran and tests nothing.** Importances are Optuna's PED-ANOVA: how far the values
of a setting among the best trials depart from those among all. They are given as shares of their sum, beside
what the same trials show when their objectives are shuffled: the value that one of twenty shuffles exceeds.
A setting below that did no more than chance would; one above it need not matter either, where there are
several settings, few trials, or a sampler that looked where it had been lucky.

Only trials that finished with a finite objective count. A trial in which a setting is not searched, because
its condition does not hold, tells nothing of it.
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
from nlgraft.study.data.space import Domain

MANY = 30
"""Finished trials from which importances are worth reading."""

_FEWEST = 10
_NUM_SHUFFLES = 40
_EXCEEDED = 0.95
_RANDOM_SEED = 20261124

Tried = tuple[Mapping[str, Any], float]
"""Values by path, and the objective."""


@dataclass(frozen=True)
class SearchedSetting:
    """A searched setting of a cell.

    Attributes:
        path: Its dotted path.
        share: Its importance as a share of the sum over settings; None with too few trials.
        by_chance: The share that one of twenty shuffles exceeds, at most 1; None likewise.
        num_without: Trials in which it was not searched.
    """

    path: str
    share: float | None
    by_chance: float | None
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
            }
            for setting in self.settings
        ]
        return {
            "trials": self.num_trials,
            "left_out": self.num_left_out,
            "caveats": list(self.caveats),
            "settings": settings,
        }


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
    settings = [
        SearchedSetting(path, shares.get(path), by_chance.get(path), len(tried) - num_with)
        for path in search.space
        if (num_with := sum(path in params for params, _ in tried))
    ]
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
            f"{num_left_out} trials that failed or were stopped early are left out, so values that make a "
            "training fail may look better than they are"
        )
    if sampler in ("tpe", "gp"):
        caveats.append(
            f"{sampler} tried the values that looked good more often, so values are unevenly covered"
        )
    return tuple(caveats)
