"""One p-value over looks at growing numbers of seeds, such as 3, 6 and 12.

A family-wise level is shared between the looks: `FIRST` of it is the level of the first, and all later looks
have one and the same, as high as the whole allows. Both grow with the level, so the smallest level at which
some look rejects is a p-value, whatever made the study stop or go on.

**The later level** comes from the joint distribution of the t statistics, whose variance has a prior of d0
degrees of freedom or none. With S the sum of the n differences so far and Q the sum of their squares and of
the prior's, sin(a) = S / sqrt(n Q) holds the t statistic, tan(a) sqrt(d0 + n - 1), and is independent of Q.
So it is a Markov chain: with m more seeds

    sin(a') sqrt(n + m) = sin(a) sqrt(n c) cos(b) + sqrt(m) sin(b),

where tan(b) is a t statistic over the square root of its degrees of freedom, d0 + n + m - 1, and c a beta
variable, Q over the sum of Q and the squares of the new seeds about their mean. Its transitions are tabulated
on bins of the normal deviates that have the same p-values. Noise of the test lines is the same at all looks,
which makes them agree more: then the level is an upper bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, roots_jacobi, stdtr, stdtrit

from nlgraft.analysis.data.trials import Array

FIRST = 0.8
"""Share of the level that the first look has unless another one is given."""

_EDGES = np.linspace(0.0, 6.0, 151)
_P_VALUES = 2 * ndtr(-_EDGES)
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2
_NODES = 12
_ANGLES = np.linspace(-math.pi / 2, math.pi / 2, 4001)
_TINY = np.finfo(float).tiny
_STEPS = 4
"""Prior degrees of freedom are rounded to a fourth."""


def look_levels(
    looks: Sequence[int],
    level: float,
    prior_df: float = 0.0,
) -> list[float]:
    """Compute the two-sided level of each look.

    Args:
        looks: Ascending numbers of seeds, from 2.
        level: Level of all looks together.
        prior_df: Degrees of freedom of the prior of the variance.
    """
    # One look needs no table, and keeps its p-value to the digit.
    if len(looks) == 1:
        return [level]
    later = math.exp(_shift(math.log(level), *_table(tuple(looks), round(prior_df * _STEPS), FIRST)))
    return [FIRST * level, *[later] * (len(looks) - 1)]


def p_over_looks(
    p_values: Mapping[int, Array | float],
    looks: Sequence[int],
    prior_df: float = 0.0,
    first: float = FIRST,
    most: float = 1.0,
) -> Array:
    """Combine the p-values of the looks taken so far: the smallest level at which one of them rejects.

    Args:
        p_values: Two-sided p-values by number of seeds, of any shape; at least one.
        looks: All looks that are declared, as in `look_levels`.
        prior_df: Degrees of freedom of the prior of the variance.
        first: Share of the first look.
        most: Bound of the result.
    """
    if len(looks) == 1:
        return np.asarray(p_values[looks[0]])
    levels, later = _table(tuple(looks), round(prior_df * _STEPS), first)
    over = [
        np.asarray(p) / first
        if look == looks[0]
        else np.exp(_shift(np.log(np.maximum(p, _TINY)), later, levels))
        for look, p in p_values.items()
    ]
    return np.minimum(np.minimum.reduce(over), most)


@lru_cache(maxsize=512)
def _table(
    looks: tuple[int, ...],
    quarters: int,
    first: float,
) -> tuple[Array, Array]:
    """Tabulate the logarithms of levels, ascending, and of the level that each leaves for later looks."""
    df = quarters / _STEPS
    chains = [_transition(before, look, df) for before, look in itertools.pairwise(looks)]
    staying = chains[-1]
    for chain in chains[-2::-1]:
        staying = np.diff(chain, axis=1) @ np.triu(staying, 1)
    crossing = np.cumsum(-np.diff(_P_VALUES)[:, None] * (1 - staying), axis=0)
    # what has not crossed at the first look, up to each of its edges, against what later looks may spend
    excess = np.pad(crossing, ((1, 0), (0, 0))) - _P_VALUES[:, None] * (1 / first - 1)
    ends = np.array([np.interp(0.0, column, _EDGES) for column in excess.T])
    is_inside = excess[-1] > 0
    levels = np.log(2 * ndtr(-ends[is_inside]) / first)
    # the share of later looks falls with the level; few nodes overestimate it where tails are heavy
    shares = np.minimum.accumulate(np.log(_P_VALUES[is_inside]) - levels)
    return levels[::-1], (levels + shares)[::-1]


def _transition(before: int, look: int, prior_df: float) -> Array:
    """Compute the probability to be below each edge at a look, from each bin, shape (bins, edges)."""
    df, more = prior_df + before, look - before
    total = df + more - 1
    sines, edges = _sines(_MIDDLES, df - 1), _sines(_EDGES, total)
    shares, weights = np.ones(1), np.ones(1)
    if more > 1:
        places, weights = roots_jacobi(_NODES, (more - 3) / 2, df / 2 - 1)
        shares = (1 + places) / 2
    steps = stdtr(total, math.sqrt(total) * np.tan(_ANGLES))
    moved = sines[:, None, None] * np.sqrt(before * shares)
    reach = np.arcsin(np.minimum(1.0, edges[:, None] * math.sqrt(look) / np.hypot(moved, math.sqrt(more))))
    turn = np.arctan2(moved, math.sqrt(more))
    below, above, around = (
        np.interp(angle, _ANGLES, steps) for angle in (-reach - turn, reach - turn, math.pi - reach - turn)
    )
    return (above - below + 1 - around) @ (weights / weights.sum())


def _sines(deviates: Array, df: float) -> Array:
    """Turn normal deviates into t statistics of the same p-value, as sines."""
    t = -stdtrit(df, ndtr(-deviates))
    return t / np.sqrt(df + t**2)


def _shift(
    log: Array | float,
    places: Array,
    values: Array,
) -> Array:
    """Interpolate logarithms, beyond the table along a line of slope one."""
    inside = np.clip(log, places[0], places[-1])
    return np.interp(inside, places, values) + log - inside
