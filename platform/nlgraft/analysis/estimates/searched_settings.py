"""Which searched setting mattered in a cell.

**It describes the trials that ran.** Importances are Optuna's PED-ANOVA: how far the values of a setting
among the best trials depart from those among all, as shares of their sum. Two settings that do nothing share
100 %, so beside each stands how often shuffled objectives differ as much between the choices, or between four
parts of the range, of any setting: where none matters, one search of twenty has a setting with p <= .05.

Only trials that finished with a finite objective count. A trial in which a setting is not searched, because
its condition does not hold, or is not read, tells nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult
from nlgraft.study.data.space import CategoricalDomain, Domain, same

MANY = 30
"""Finished trials from which importances are worth reading."""

_FEWEST = 10
_NUM_SHUFFLES = 999
_MOST_GROUPS = 4
_FEWEST_IN_GROUP = 5
_BLOCK = 12
"""Successive trials in which a sampler learns little; with all trials as a block idle settings are marked."""
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
    finite = [
        (result.system.read_params(trial.params, trial.config), measured.value)
        for trial in cell.search
        if (measured := trial.measured(objective.metric)) is not None
    ]
    if not finite:
        return None
    # A configuration that was proposed again brought the same result, not another one.
    distinct = {json.dumps(params, sort_keys=True): (params, value) for params, value in finite}
    tried = list(distinct.values())
    importances = {}
    if result.importance is not None and len(tried) >= _FEWEST:
        importances = result.importance(search.space, objective.direction, tried)
    total = sum(importances.values())
    shares = {path: value / total for path, value in importances.items() if total > 0}
    num_blocks = 1 if search.sampler.is_blind else max(1, round(len(tried) / _BLOCK))
    p_values = _p_values(search.space, tried, num_blocks) if shares else {}
    settings = [
        SearchedSetting(path, shares.get(path), p_values.get(path), len(tried) - num_with)
        for path in search.space
        if (num_with := sum(path in params for params, _ in tried))
    ]
    settings.sort(key=lambda setting: -(setting.share or 0.0))
    left_out = sum(trial.state in ("finished", "stopped", "failed") for trial in cell.search) - len(finite)
    caveats = []
    if num_repeated := len(finite) - len(tried):
        caveats.append(f"{num_repeated} trials repeat the values of another one and are not counted")
    if len(tried) < _FEWEST:
        caveats.append(f"{len(tried)} finished trials are too few for importances")
    elif len(tried) < MANY:
        caveats.append(f"importances of {len(tried)} finished trials are rough")
    if left_out:
        caveats.append(
            f"{left_out} trials that failed or were stopped early are left out, so values that make a "
            "training fail may look better than they are"
        )
    if not search.sampler.is_blind:
        caveats.append(
            f"{search.sampler.name} tried the values that looked good more often, so values are unevenly "
            "covered"
        )
    return CellSettings(cell.label, len(tried), left_out, tuple(settings), tuple(caveats))


def _p_values(
    space: Mapping[str, Domain],
    tried: Sequence[Tried],
    num_blocks: int,
) -> dict[str, float]:
    """Return by path how many of a thousand shuffles of the objectives have some setting as far above chance.

    A sampler that learns goes where a setting is good, and later trials, which are better, have like values
    of idle settings, too. So objectives are shuffled within blocks of successive trials, and the setting
    farthest above chance is taken out of them before the others are judged.

    Args:
        space: Domains by path.
        tried: The trials in their order.
        num_blocks: 1 where the order of trials tells nothing.

    Returns:
        The p-values; a setting that too few trials have is missing.
    """
    # A fixed seed: a report that is made again shows the same figures.
    rng = np.random.default_rng(_RANDOM_SEED)
    blocks = np.arange(len(tried)) * num_blocks // len(tried)
    rest = _centred(rankdata([value for _, value in tried]), blocks)
    open_groups = {
        path: groups for path in space if (groups := _groups(path, space[path], tried)) is not None
    }
    p_values = {}
    least = 0.0
    while open_groups:
        shuffled = np.tile(rest, (1 + _NUM_SHUFFLES, 1))
        for block in range(num_blocks):
            shuffled[1:, blocks == block] = rng.permuted(shuffled[1:, blocks == block], axis=1)
        spreads = np.stack([_spread(shuffled, groups) for groups in open_groups.values()], axis=1)
        # By itself each setting's spread has a p-value, in the trials and in each shuffle. The smallest over
        # settings is what a reader sees first, so that is what is compared (Westfall and Young 1993).
        chances = rankdata(-spreads, axis=0, method="max") / len(shuffled)
        smallest = chances.min(axis=1)
        corrected = [max(least, float(np.mean(smallest <= chance))) for chance in chances[0]]
        ratios = spreads[0] / spreads.mean(axis=0)
        least, _, first = min(zip(corrected, -ratios, open_groups, strict=True))
        if least > _LEVEL:
            return p_values | dict(zip(open_groups, corrected, strict=True))
        p_values[first] = least
        rest = _centred(_centred(rest, open_groups.pop(first)), blocks)
    return p_values


def _centred(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    _, members = np.unique(groups, return_inverse=True)
    return values - (np.bincount(members, values) / np.bincount(members))[members]


def _groups(
    path: str,
    domain: Domain,
    tried: Sequence[Tried],
) -> np.ndarray | None:
    """Number the choices, or the parts of a range that have equally many trials.

    Returns:
        The group of each trial, -1 where its condition does not hold; None with too few trials.
    """
    has_path = np.array([path in params for params, _ in tried])
    values = [params[path] for params, _ in tried if path in params]
    num_groups = min(_MOST_GROUPS, len(values) // _FEWEST_IN_GROUP)
    if num_groups < 2:
        return None
    groups = np.full(len(tried), -1)
    if isinstance(domain, CategoricalDomain):
        groups[has_path] = [
            next(n for n, c in enumerate(domain.choices) if same(c, value)) for value in values
        ]
    else:
        groups[has_path] = rankdata(values) / (len(values) + 1) * num_groups
    return groups


def _spread(ranks: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the sum of squares between groups of each row, as in the test of Kruskal and Wallis (1952)."""
    ranks, groups = ranks[:, groups >= 0], groups[groups >= 0]
    members = groups == np.unique(groups)[:, None]
    sums = ranks @ members.T
    return (sums**2 / members.sum(axis=1)).sum(axis=1) - ranks.sum(axis=1) ** 2 / ranks.shape[1]
