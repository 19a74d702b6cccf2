"""Power of a comparison: the difference that it detects, and how many seeds decide it.

The mean difference over n seeds is normal with variance V / n + C: V between the seeds' differences, C from
the choice of segments. The test rejects beyond ``sqrt(t**2 * v / n + z**2 * C)``, with v the estimate of V,
t and z the quantiles of Student's t with its degrees of freedom and of the normal at the test's level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, gammaincinv, ndtr, ndtri, stdtrit

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.noise_prior import Estimate

POWER = 0.8
"""Probability of detecting the smallest detectable difference."""

PROBABILITY = 0.8
"""Predicted probability from which a number of seeds is named (how it is met: benchmarks.noise_priors)."""

FUTILE = 0.1
"""A cell is given up when its comparisons become significant by the last look with a lower probability."""

_NUM_DRAWS = 2048
_IRRATIONAL = np.array([0.8191725134, 0.6710436067, 0.5497004779])
"""Steps of an even sequence in three dimensions, powers of the inverse of the root of x^4 = x + 1."""
_GRID = (np.arange(32) + 0.5) / 32


def power(difference: float, noise: Estimate, level: float) -> float:
    """Compute the probability of finding a true difference at ``level``, given the noise of an estimate.

    The estimate of the seed variance, with its degrees of freedom, is integrated out, which is what makes few
    seeds weak.
    """
    estimated = noise.variance * _chi_squared(noise.df)
    # Seeds follow t, segments are so many that they follow the normal.
    t, z = stdtrit(noise.df, 1 - level / 2), ndtri(1 - level / 2)
    limit = np.sqrt(t**2 * estimated / noise.num_seeds + z**2 * noise.segment_variance)
    scale = math.sqrt(noise.variance / noise.num_seeds + noise.segment_variance)
    return float(np.mean(ndtr((difference - limit) / scale) + ndtr((-difference - limit) / scale)))


def smallest_detectable(noise: Estimate, level: float) -> float:
    """Find the true difference that n >= 2 seeds detect with probability 0.8; 0 when nothing varies."""
    total = noise.variance + noise.segment_variance
    if total == 0:
        return 0.0
    # In units of the noise, so that comparisons of the same number of seeds share the answer.
    segment_share = float(f"{noise.segment_variance / total:.6g}")
    return _smallest_detectable(segment_share, noise.num_seeds, noise.df, level) * math.sqrt(total)


@lru_cache(maxsize=4096)
def _smallest_detectable(
    segment_share: float,
    num_seeds: int,
    df: float,
    level: float,
) -> float:
    """Find the difference where both variances add up to 1, of which segments have a share."""
    noise = Estimate(0.0, num_seeds, 1 - segment_share, df, segment_share)
    low, high = 0.0, 1.0
    # Doubled until it brackets the answer, then bisected: the power increases with the difference.
    while power(high, noise, level) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, noise, level) >= POWER else (middle, high)
    return float(high)


def detectable_interval(noise: Estimate, level: float) -> tuple[float, float]:
    """Find the 95 % confidence interval of the smallest detectable difference, given n >= 2 seeds."""
    ends = [noise.variance * noise.df / chdtri(noise.df, tail) for tail in (0.025, 0.975)]
    low, high = (smallest_detectable(replace(noise, variance=end), level) for end in ends)
    return low, high


@lru_cache(maxsize=256)
def _chi_squared(dof: float) -> Array:
    """Return evenly spaced quantiles of a chi-squared variable over its degrees of freedom."""
    return chdtri(dof, 1 - _GRID) / dof


def likely_look(
    estimate: Estimate,
    levels: Mapping[int, float],
    margin: float | None = None,
) -> int | None:
    """Find the first later look that is likely to decide a question that is undecided now.

    Args:
        estimate: What is known now.
        levels: Levels of the looks that were not taken yet, by number of seeds, ascending.
        margin: Difference too small to matter; a decision may be that the difference is smaller.

    Returns:
        A number of seeds; None if no later look decides with `PROBABILITY`.
    """
    return next(
        (look for look, level in levels.items() if decided_by(estimate, look, level, margin) >= PROBABILITY),
        None,
    )


def decided_by(
    estimate: Estimate,
    num_seeds: int,
    level: float,
    margin: float | None = None,
) -> float:
    """Predict the probability that more seeds decide at their level, see `likely_look`.

    True difference and variance between seeds are drawn from what the present seeds leave open (a flat prior
    of the difference, the moderated variance); the noise of the test lines stays as it is.
    """
    now, more, df = estimate.num_seeds, num_seeds - estimate.num_seeds, estimate.df
    plausible, fresh, normal = _draws(df, more)
    variance = estimate.variance / plausible
    step = np.sqrt(variance * (1 / now + 1 / more)) * normal
    difference = np.abs(estimate.difference + step * more / num_seeds)
    squares = df * estimate.variance + variance * fresh + step**2 * now * more / num_seeds

    def reach(one_sided: float) -> Array:
        t, z = stdtrit(df + more, one_sided), ndtri(one_sided)
        return np.sqrt(t**2 * squares / (df + more) / num_seeds + z**2 * estimate.segment_variance)

    is_decided = difference > reach(level / 2)
    if margin is not None:
        is_decided |= difference + reach(level) < margin
    return float(np.mean(is_decided))


@lru_cache(maxsize=64)
def _draws(df: float, more: int) -> tuple[Array, Array, Array]:
    """Draw evenly: chi-squared over its degrees of freedom, chi-squared of ``more`` - 1, and normal."""
    places = (np.arange(1, _NUM_DRAWS + 1)[:, None] * _IRRATIONAL + 0.5) % 1
    fresh = 2 * gammaincinv((more - 1) / 2, places[:, 1]) if more > 1 else np.zeros(_NUM_DRAWS)
    return 2 * gammaincinv(df / 2, places[:, 0]) / df, fresh, ndtri(places[:, 2])
