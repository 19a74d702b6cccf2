"""Tests and intervals for paired differences that hold at every number of seeds at once.

The t test of Wang and Ramdas (2023, arXiv 2310.03722, section 4.3): for differences with S their sum, Q their
sum of squares, n their number and c^2 the precision of a normal prior on the effect in standard deviations,

    M_n = sqrt(c^2 / (n + c^2)) * ((n + c^2) Q / ((n + c^2) Q - S^2))^(n / 2)

is a martingale that starts at 1 if the differences are normal with mean 0, whatever their variance. By
Ville's inequality it ever reaches 1 / level with a probability of at most ``level``: one may look after
every seed, stop, and go on. The means for which it has not reached it form a confidence sequence.

The error due to the test set is the same at every number of seeds, so a single normal bound covers it; where
there is such an error, half of the level is spent on it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import ndtri_exp

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.statistics.comparison import Comparison

PRECISION = 0.1
"""c^2: tuned to effects of about three standard deviations, which a few seeds can decide."""

_LOWEST = -700.0
_FEW = 2
_TIE = 1e-12


def log_evidence(
    difference: Array | float, seed_variance: Array | float, num_seeds: int, precision: float = PRECISION
) -> Array:
    """Compute log M_n against a mean of zero, without noise of the test set.

    Args:
        difference: Mean differences over seeds, of any shape.
        seed_variance: Variances between the seeds' differences, same shape, with n - 1 below the fraction;
            none may be 0 where the difference is.
        num_seeds: Number n of paired seeds, at least 2.
        precision: c^2.
    """
    size = np.square(difference)
    squares = (num_seeds - 1) / num_seeds * np.asarray(seed_variance) + size
    total = num_seeds + precision
    return 0.5 * math.log(precision / total) - num_seeds / 2 * np.log1p(-num_seeds / total * size / squares)


def half_width(
    num_seeds: int,
    seed_variance: Array | float,
    segment_variance: float,
    log_level: float,
    precision: float = PRECISION,
) -> Array | float:
    """Compute half the width of the confidence sequence at a number of seeds; infinite with too few.

    Args:
        num_seeds: Number n of paired seeds.
        seed_variance: Variances between the seeds' differences, of any shape, with n - 1 below the fraction.
        segment_variance: Variance of the mean difference from the choice of segments.
        log_level: Logarithm of one minus the confidence.
        precision: c^2.
    """
    reach = 0.0
    if segment_variance > 0:
        # Half of the level for the test set, the other half for the seeds.
        log_level -= math.log(2)
        reach = -float(ndtri_exp(log_level - math.log(2))) * math.sqrt(segment_variance)
    if num_seeds < _FEW:
        return math.inf
    if not np.any(seed_variance):
        return reach
    total = num_seeds + precision
    share = -math.expm1((2 * log_level + math.log(precision / total)) / num_seeds)
    room = num_seeds - share * total
    if room <= 0:
        return math.inf
    return reach + np.sqrt(seed_variance * ((num_seeds - 1) / num_seeds * share * total / room))


def anytime_p(
    difference: float,
    seed_variance: float,
    segment_variance: float,
    num_seeds: int,
    precision: float = PRECISION,
) -> float:
    """Compute the smallest level at which the confidence sequence leaves out a mean difference of zero.

    A p-value at every number of seeds and at any time one stops: 1 / M_n without noise of the test set.

    Args:
        difference: Mean difference, minus that under the null hypothesis.
        seed_variance: Variance between the seeds' differences.
        segment_variance: Variance of the mean difference from the choice of segments.
        num_seeds: Number of paired seeds.
        precision: c^2.
    """
    size = abs(difference)
    if num_seeds < _FEW or size <= _TIE * math.sqrt(seed_variance):
        return 1.0

    # Without error of the test set the level has a closed form; with it the half width is inverted.
    if segment_variance == 0:
        log_p = -float(log_evidence(difference, seed_variance, num_seeds, precision))
        return math.exp(min(0.0, log_p))

    def gap(log_level: float) -> float:
        width = half_width(num_seeds, seed_variance, segment_variance, log_level, precision)
        return min(float(width), 1e300) - size

    if gap(0.0) > 0:
        return 1.0
    if gap(_LOWEST) <= 0:
        return math.exp(_LOWEST)
    from scipy.optimize import root_scalar  # takes .2 s to import

    return math.exp(root_scalar(gap, bracket=(_LOWEST, 0.0), xtol=1e-12).root)


def at_any_time(found: Comparison, alpha: float) -> Comparison:
    """Replace the p-value and the interval of a comparison by those that hold at every number of seeds.

    Against a published figure, whose own seeds are unknown, there is none.
    """
    if found.difference is None or found.num_seeds < _FEW or found.difference == found.null:
        return found
    if found.seed_variance is None:
        note = "no test holds at every number of seeds here"
        return replace(found, p=None, notes=(*found.notes, note))
    noise = (found.seed_variance, found.segment_variance)
    p = anytime_p(found.difference - found.null, *noise, found.num_seeds)
    width = float(half_width(found.num_seeds, *noise, math.log(alpha)))
    if math.isinf(width):
        notes = (*found.notes, "too few seeds for an interval that holds at every number of seeds")
        return replace(found, p=p, ci=None, notes=notes)
    return replace(found, p=p, ci=(found.difference - width, found.difference + width))
