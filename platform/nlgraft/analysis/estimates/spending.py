"""Tests at several looks: the level of each planned look, and one p-value for all looks so far.

The first look spends `FIRST_LOOK` of the level, the later ones equal parts of the rest, so that most studies
end at the first and the others can be gone on with. What a look may spend fixes its level by a recursion as
that of Armitage, McPherson and Rowe (1969), over the t statistic of so few seeds (`t_process`) and not over
the Brownian motion that it becomes with many. Since the levels of all looks grow with the overall level, the
smallest overall level at which any look so far rejects is a p-value (Liu and Anderson 2008), and Holm's
procedure holds for such p-values (Maurer and Bretz 2013), whatever made the study stop after a planned look.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.t_process import EDGES, first_masses, transition

FIRST_LOOK = 0.8
"""Share of the level that is spent at the first of several looks."""

_SMALLEST = 1e-12
_TINY = np.finfo(float).tiny
_LEVELS = np.log(np.geomspace(_SMALLEST, 1.0, 80))


def look_levels(looks: Sequence[int], level: float) -> list[float]:
    """Compute the two-sided level of each look.

    Args:
        looks: Ascending numbers of seeds; the last is the most that the study may have.
        level: Level of all looks together, above 0 and at most 1.
    """
    return list(_levels(tuple(looks), level))


def overall_p(looks: Sequence[int], p_values: Mapping[int, Array | float]) -> Array:
    """Combine the p-values of the looks taken so far.

    Args:
        looks: All planned looks, as ascending numbers of seeds.
        p_values: Two-sided p-values of those taken, by number of seeds; at least one.

    Returns:
        The smallest level at which one of them rejects, at least 1e-12 and at most 1.
    """
    tables = dict(zip(looks, _tables(tuple(looks)).T, strict=True))
    logs = [np.interp(np.log(np.maximum(p, _TINY)), tables[look], _LEVELS) for look, p in p_values.items()]
    return np.exp(np.minimum.reduce(logs))


@lru_cache(maxsize=32)
def _tables(looks: tuple[int, ...]) -> Array:
    """Return the logarithms of the looks' levels, shape (levels, looks)."""
    return _log_levels(looks, _LEVELS)


@lru_cache(maxsize=256)
def _levels(looks: tuple[int, ...], level: float) -> tuple[float, ...]:
    return tuple(np.exp(_log_levels(looks, np.log([level]))[0]).tolist())


def _log_levels(looks: Sequence[int], log_levels: Array) -> Array:
    """Return the logarithms of the looks' levels for each overall level, shape (levels, looks)."""
    num = len(looks)
    shares = np.array([FIRST_LOOK] + [(1 - FIRST_LOOK) / (num - 1)] * (num - 1)) if num > 1 else np.ones(1)
    spent = np.exp(log_levels)[:, None] * shares
    found = [log_levels + np.log(shares[0])]
    masses = np.tile(first_masses(looks[0]), (len(log_levels), 1)) if len(looks) > 1 else np.empty(0)
    for index, (before, look) in enumerate(itertools.pairwise(looks), 1):
        masses = _not_ended(masses, _boundary(found[-1]))
        # Between looks nothing is tested: the surviving paths only spread, one seed at a time.
        for number in range(before, look):
            masses = masses @ transition(number)
        found.append(_spend(spent[:, index], masses))
    return np.stack(found, axis=1)


def _not_ended(masses: Array, boundaries: Array) -> Array:
    """Cut off the paths that a look has ended, beyond a boundary for each level, shape (levels, bins)."""
    share = np.clip((boundaries[:, None] - EDGES[:-1]) / np.diff(EDGES), 0.0, 1.0)
    kept = masses * share
    # the rest of a bin lies nearer to the bin below: moving a part there keeps the mean
    moved = kept * (1 - share) / 2
    kept -= moved
    kept[:, :-1] += moved[:, 1:]
    return kept


def _spend(allowed: Array, masses: Array) -> Array:
    """Return the logarithm of the level at which paths cross for the first time with a given probability.

    It is at least that probability itself (Bonferroni), which is taken where the bins do not reach.
    """
    wanted = np.log(np.maximum(allowed, _TINY))
    log_tails = _log_tails(masses)
    squares = EDGES[:-1][::-1] ** 2  # in which the logarithm of a normal tail is almost linear
    z = (
        np.array([np.interp(one, row[::-1], squares) for one, row in zip(wanted, log_tails, strict=True)])
        ** 0.5
    )
    levels = np.where(wanted >= log_tails[:, -1], np.log(2) + log_ndtr(-z), wanted)
    return np.maximum(np.where(z <= 0, 0.0, levels), wanted)


def _log_tails(masses: Array) -> Array:
    """Return the logarithm of the mass from the lower end of each bin on, shape (levels, bins)."""
    return np.log(np.maximum(np.cumsum(masses[:, ::-1], axis=1)[:, ::-1], _TINY))


def _boundary(log_levels: Array) -> Array:
    return -ndtri_exp(np.minimum(log_levels - np.log(2), -np.log(2)))
