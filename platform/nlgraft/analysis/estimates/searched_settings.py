"""Which searched setting mattered in a cell.

**It describes the trials that ran.** Importances are Optuna's PED-ANOVA: how far the values of a setting
among the best trials depart from those among all, as shares of their sum. Two settings that do nothing share
100 %, so beside each stands how often shuffled objectives differ as much between the choices, or between four
parts of the range, of any setting: where none matters, one search of twenty has a setting with p <= .05.

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
from scipy.stats import rankdata

from nlgraft.analysis.data.results import Importance, Results
from nlgraft.analysis.data.trials import CellResult
from nlgraft.study.data.space import CategoricalDomain, Domain, same

MANY = 30
"""Finished trials from which importances are worth reading."""

_FEWEST = 10
_NUM_SHUFFLES = 999
_MOST_GROUPS = 4
_FEWEST_IN_GROUP = 5
_LEVEL = 0.05
_RANDOM_SEED = 20261124

Tried = tuple[Mapping[str, Any], float]
"""Values by path, and the objective."""


@dataclass(frozen=True)
class SearchedSetting:
    """A searched setting of a cell.

    Attributes:
        path: Its dotted path.
        share: Its importance as a share of the sum over settings; None with too few trials.
        p: Share of shuffles of the objectives in which some setting is as far above chance; None with too few
            trials that have it.
        num_without: Trials in which it was not searched.
    """

    path: str
    share: float | None
    p: float | None
    num_without: int

    @property
    def stands_out(self) -> bool:
        """True if it is farther above chance than settings of one of twenty shuffles are."""
        return self.p is not None and self.p <= _LEVEL


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
                "p": setting.p,
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
    shares = _shares(result.importance, search.space, objective.direction, tried)
    p_values = _p_values(search.space, tried) if shares else {}
    settings = [
        SearchedSetting(path, shares.get(path), p_values.get(path), len(tried) - num_with)
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
) -> dict[str, float]:
    importances = {} if importance is None or len(tried) < _FEWEST else importance(space, direction, tried)
    total = sum(importances.values())
    return {path: value / total for path, value in importances.items()} if total > 0 else {}


def _p_values(space: Mapping[str, Domain], tried: Sequence[Tried]) -> dict[str, float]:
    """Return by path how many of a thousand shuffles of the objectives have some setting as far above chance.

    A setting that too few trials have is missing.
    """
    # A fixed seed: a report that is made again shows the same figures.
    rng = np.random.default_rng(_RANDOM_SEED)
    ranks = rankdata([value for _, value in tried])
    shuffled = np.stack([ranks, *(rng.permutation(ranks) for _ in range(_NUM_SHUFFLES))])
    spreads = {}
    for path, domain in space.items():
        has_path = np.array([path in params for params, _ in tried])
        groups = _groups([params[path] for params, _ in tried if path in params], domain)
        if groups is not None:
            spreads[path] = _spread(shuffled[:, has_path], groups)
    if not spreads:
        return {}
    # By itself each setting's spread has a p-value, in the trials and in each shuffle. The smallest over
    # settings is what a reader sees first, so that is what is compared (Westfall and Young 1993).
    p_values = rankdata(-np.stack([*spreads.values()], axis=1), axis=0, method="max") / len(shuffled)
    smallest = p_values.min(axis=1)
    return {
        path: float(np.mean(smallest <= p_value)) for path, p_value in zip(spreads, p_values[0], strict=True)
    }


def _groups(values: Sequence[Any], domain: Domain) -> np.ndarray | None:
    """Number the choices, or the parts of a range that have equally many trials; None with too few trials."""
    num_groups = min(_MOST_GROUPS, len(values) // _FEWEST_IN_GROUP)
    if num_groups < 2:
        return None
    if isinstance(domain, CategoricalDomain):
        return np.array([next(n for n, c in enumerate(domain.choices) if same(c, value)) for value in values])
    return (rankdata(values) / (len(values) + 1) * num_groups).astype(int)


def _spread(ranks: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the sum of squares between groups of each row, as in the test of Kruskal and Wallis (1952)."""
    members = groups == np.unique(groups)[:, None]
    sums = ranks @ members.T
    return (sums**2 / members.sum(axis=1)).sum(axis=1) - ranks.sum(axis=1) ** 2 / ranks.shape[1]


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
    if sampler == "tpe":
        caveats.append(
            f"{sampler} tried the values that looked good more often, so values are unevenly covered"
        )
    return tuple(caveats)
