"""Power of a comparison: the difference, or the number of seeds, that a decision takes.

The mean difference over n seeds is normal with variance V / n + C: V between the seeds' differences, C from
the choice of segments. The test rejects beyond ``sqrt(t**2 * v / n + z**2 * C)``, with v the estimate of V
from n seeds, t and z the quantiles of Student's t with n - 1 degrees of freedom and of the normal at the
test's level.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

from nlgraft.analysis.data.trials import Array

POWER = 0.8
"""Probability of detecting the smallest detectable difference."""

MAX_SEEDS = 1000
"""Largest answer of ``seeds_needed``."""

_NO_SPREAD = 1e-150
_GRID = (np.arange(32) + 0.5) / 32


def power(
    difference: float,
    seed_variance: Array,
    segment_variance: float,
    num_seeds: int,
    level: float,
    margin: float | None = None,
) -> Array:
    """Compute the probability of a decision at ``level``, for each true seed variance.

    The test decides that there is a difference or, with a margin, that it is smaller. The estimate of the
    seed variance is integrated out, which is what makes few seeds weak.
    """
    estimated = seed_variance[..., None] * _chi_squared(num_seeds - 1)
    t, z = stdtrit(num_seeds - 1, 1 - level / 2), ndtri(1 - level / 2)
    limit = np.sqrt(t**2 * estimated / num_seeds + z**2 * segment_variance)
    scale = np.sqrt(seed_variance / num_seeds + segment_variance)[..., None]
    probability = ndtr((difference - limit) / scale) + ndtr((-difference - limit) / scale)
    if margin is not None:
        t, z = stdtrit(num_seeds - 1, 1 - level), ndtri(1 - level)
        inner = margin - np.sqrt(t**2 * estimated / num_seeds + z**2 * segment_variance)
        is_equal = ndtr((inner - difference) / scale) - ndtr((-inner - difference) / scale)
        # Beyond the limit and below the inner one exclude each other, unless one of them always holds.
        probability = np.where(inner >= limit, 1.0, probability + np.maximum(is_equal, 0.0))
    return probability.mean(axis=-1)


def smallest_detectable(seed_variance: float, segment_variance: float, num_seeds: int, level: float) -> float:
    """Find the true difference that n >= 2 seeds detect with probability 0.8; 0 when nothing varies."""
    total = seed_variance + segment_variance
    if total == 0:
        return 0.0
    # In units of the noise, so that comparisons of the same number of seeds share the answer.
    scaled = _smallest_detectable(float(f"{segment_variance / total:.6g}"), num_seeds, level)
    return scaled * math.sqrt(total)


@lru_cache(maxsize=4096)
def _smallest_detectable(segment_share: float, num_seeds: int, level: float) -> float:
    """Find the difference where both variances add up to 1, of which segments have a share."""
    variance = np.array(1 - segment_share)
    low, high = 0.0, 1.0
    # Doubled until it brackets the answer, then bisected: the power increases with the difference.
    while power(high, variance, segment_share, num_seeds, level) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        is_enough = power(middle, variance, segment_share, num_seeds, level) >= POWER
        low, high = (low, middle) if is_enough else (middle, high)
    return float(high)


def detectable_interval(
    seed_variance: float, segment_variance: float, num_seeds: int, level: float
) -> tuple[float, float]:
    """Find the 95 % confidence interval of the smallest detectable difference, given n >= 2 seeds."""
    dof = num_seeds - 1
    ends = [seed_variance * dof / chdtri(dof, tail) for tail in (0.025, 0.975)]
    low, high = (smallest_detectable(end, segment_variance, num_seeds, level) for end in ends)
    return low, high


def seeds_needed(
    difference: float,
    seed_variance: float,
    segment_variance: float,
    num_seeds: int,
    level: float,
    margin: float | None = None,
) -> int | None:
    """Find the fewest seeds that decide with probability 0.8 if the true difference has this size.

    The probability is averaged over the seed variances that are plausible after ``num_seeds`` seeds estimated
    it as ``seed_variance``.

    Returns:
        A number from 2 to ``MAX_SEEDS``; None when none is enough: the test set is too small, or there is
        neither a difference to detect nor a margin.
    """
    plausible = seed_variance / _chi_squared(num_seeds - 1)

    def is_enough(count: int) -> bool:
        powers = power(abs(difference), plausible, segment_variance, count, level, margin)
        return bool(powers.mean() >= POWER)

    # With ever more seeds the error of the test set remains, so even the most may not be enough.
    if (difference == 0 and margin is None) or not is_enough(MAX_SEEDS):
        return None
    low, high = 1, MAX_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def predictive_power(
    difference: Array | float,
    seed_variance: Array | float,
    segment_variance: Array | float,
    num_seeds: int,
    last: int,
    level: Array | float,
    margin: float | None = None,
) -> Array:
    """Predict how likely there is a decision at ``level`` after ``last`` seeds, from what ``num_seeds`` show.

    The mean difference over all seeds follows Student's t around the present one with variance
    ``V (1 / num_seeds - 1 / last)``: predictive power under a flat prior (Spiegelhalter et al. 1986).
    Arguments may be arrays; ``last`` is above ``num_seeds``. A decision is a difference or, with a margin,
    that it is smaller.
    """
    spread = np.maximum(np.sqrt(seed_variance * (1 / num_seeds - 1 / last)), _NO_SPREAD)
    scale = np.sqrt(seed_variance / last + segment_variance)
    limit = ndtri(1 - level / 2) * scale
    above, below = (stdtr(num_seeds - 1, (sign * difference - limit) / spread) for sign in (1, -1))
    if margin is None:
        return above + below
    inner = margin - ndtri(1 - level) * scale
    ends = [stdtr(num_seeds - 1, (sign * inner - difference) / spread) for sign in (1, -1)]
    return np.where(inner >= limit, 1.0, above + below + np.maximum(ends[0] - ends[1], 0.0))


@lru_cache(maxsize=256)
def _chi_squared(dof: int) -> Array:
    """Return evenly spaced quantiles of a chi-squared variable over its degrees of freedom."""
    return chdtri(dof, 1 - _GRID) / dof
