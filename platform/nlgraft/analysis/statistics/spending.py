"""Group-sequential tests: the level of each planned look, and one p-value for all looks so far.

The level is spent after Lan and DeMets (1983) by their function of O'Brien and Fleming's type, half of it on
each side as in their program (Reboussin et al. 2000): up to the share t of the seeds

    spent(t) = 4 - 4 Phi(z / sqrt(t)),   z the 1 - level/4 quantile of the normal.

What a look may spend fixes its level by the recursion of Armitage, McPherson and Rowe (1969) over a Brownian
motion. With few seeds the levels are applied to p-values of t tests (Jennison and Turnbull 2000, 4.4).
Since the levels of all looks grow with the overall level, the smallest overall level at which any look so far
rejects is a p-value (Liu and Anderson 2008), and Holm's procedure holds for such p-values (Maurer and Bretz
2013), whatever made the study stop after a planned look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import log_ndtr, ndtr, ndtri_exp

from nlgraft.analysis.data.trials import Array

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
_FARTHEST = 40.0
_SMALLEST = 1e-12
_LEVELS = np.log(np.geomspace(_SMALLEST, 1.0, 80))


def look_levels(looks: Sequence[int], level: float) -> list[float]:
    """Compute the two-sided level of each look.

    Args:
        looks: Ascending numbers of seeds; the last is the most that the study may have.
        level: Level of all looks together, above 0 and at most 1.
    """
    return [math.exp(one) for one in _log_levels(tuple(looks), math.log(level))]


def overall_p(looks: Sequence[int], p_values: Mapping[int, Array | float]) -> Array:
    """Combine the p-values of the looks taken so far.

    Args:
        looks: All planned looks, as ascending numbers of seeds.
        p_values: Two-sided p-values of those taken, by number of seeds; at least one.

    Returns:
        The smallest level at which one of them rejects, at least 1e-12 and at most 1.
    """
    tables = dict(zip(looks, _tables(tuple(looks)).T, strict=True))
    smallest = np.finfo(float).tiny
    logs = [np.interp(np.log(np.maximum(p, smallest)), tables[look], _LEVELS) for look, p in p_values.items()]
    return np.exp(np.minimum.reduce(logs))


@lru_cache(maxsize=32)
def _tables(looks: tuple[int, ...]) -> Array:
    """Return the logarithms of the looks' levels, shape (levels, looks)."""
    return np.array([_log_levels(looks, log_level) for log_level in _LEVELS])


@lru_cache(maxsize=256)
def _log_levels(looks: tuple[int, ...], log_level: float) -> tuple[float, ...]:
    times = np.array(looks) / looks[-1]
    z = -ndtri_exp(log_level - math.log(4))
    spent = 4 * ndtr(-z / np.sqrt(times))
    found = [math.log(4) + float(log_ndtr(-z / math.sqrt(times[0])))]
    steps = np.sqrt(np.diff(times))
    places, masses = np.zeros(1), np.ones(1)  # of the paths that no look has ended, at the time before
    step = math.sqrt(times[0])
    for index in range(1, len(looks)):
        limit = _boundary(found[-1]) * math.sqrt(times[index - 1])
        new = limit * _NODES
        density = np.exp(-(((new[:, None] - places) / step) ** 2) / 2) @ masses
        places, masses = new, density * limit * _WEIGHTS / (step * math.sqrt(2 * math.pi))
        step, scale = float(steps[index - 1]), math.sqrt(times[index])
        found.append(_spend(spent[index] - spent[index - 1], places, masses, step, scale))
    return tuple(found)


def _spend(allowed: float, places: Array, masses: Array, step: float, scale: float) -> float:
    """Return the logarithm of the level at which paths cross for the first time with a given probability."""

    def excess(boundary: float) -> float:
        crossing = 2 * masses @ ndtr((places - boundary * scale) / step)
        return math.log(crossing + np.finfo(float).tiny) - math.log(allowed)

    if excess(0.0) <= 0:
        return 0.0
    boundary = root_scalar(excess, bracket=(0.0, _FARTHEST), xtol=1e-10).root
    return math.log(2) + float(log_ndtr(-boundary))


def _boundary(log_level: float) -> float:
    return -float(ndtri_exp(log_level - math.log(2)))
