"""Tests that a difference is smaller than a margin, under the same noise as the tests for a difference.

Two one-sided tests (Schuirmann 1987): *equal* rejects a difference of at least the margin on either side,
and its p-value is the larger of the two, that of the nearer end. *Different* rejects a difference of zero. Of
these hypotheses at most one is true, so a question that is asked both ways errs no more often than one that
is asked one way (three-sided testing: Goeman, Solari and Stijnen 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nlgraft.analysis.statistics.anytime import anytime_p
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.resampling import normal_p
from nlgraft.analysis.statistics.spending import overall_p


def equal_p(found: Comparison) -> float | None:
    """Compute the p-value of a difference of at least the margin; None without a margin or variances."""
    if found.margin is None or found.difference is None or found.seed_variance is None:
        return None
    gap = found.margin - abs(found.difference)
    noise = (found.seed_variance, found.segment_variance)
    one_sided = float(normal_p(np.array(gap), *noise, found.num_seeds)) / 2
    return one_sided if gap > 0 else 1 - one_sided


def equal_p_over_looks(looks: Sequence[int], taken: Mapping[int, Comparison]) -> float | None:
    """Combine the p-values of planned looks, each on its own seeds.

    The levels of looks are those of two-sided tests, half on each side; the larger p-value of the two
    one-sided tests is doubled to be compared with them.

    Args:
        looks: All planned looks, as ascending numbers of seeds.
        taken: The comparisons at those whose seeds have all finished.
    """
    p_values = {look: p for look, one in taken.items() if (p := equal_p(one)) is not None}
    if not p_values:
        return None
    return float(overall_p(looks, {look: min(1.0, 2 * p) for look, p in p_values.items()})) / 2


def equal_p_at_any_time(found: Comparison) -> float | None:
    """Compute the smallest level at which the confidence sequence lies within the margin.

    The sequence holds for all margins at once, so that a margin may be chosen after results were seen.
    """
    if found.margin is None or found.difference is None or found.seed_variance is None:
        return None
    if abs(found.difference) >= found.margin:
        return 1.0
    noise = (found.seed_variance, found.segment_variance, found.num_seeds)
    return max(anytime_p(found.difference - end, *noise) for end in (-found.margin, found.margin))
