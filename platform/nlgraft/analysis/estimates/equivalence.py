"""Tests that a difference is smaller than a margin, under the same noise as the tests for a difference.

Two one-sided tests (Schuirmann 1987): *equal* rejects a difference of at least the margin on either side,
and its p-value is the larger of the two, that of the nearer end. *Different* rejects a difference of zero. Of
these hypotheses at most one is true, so a question that is asked both ways errs no more often than one that
is asked one way (three-sided testing: Goeman, Solari and Stijnen 2010).
"""

from __future__ import annotations

import numpy as np

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.resampling import normal_p


def equal_p(comparison: Comparison) -> float | None:
    """Compute the p-value of a difference of at least the margin; None without a margin or variances."""
    if comparison.margin is None or comparison.difference is None or comparison.seed_variance is None:
        return None
    gap = comparison.margin - abs(comparison.difference)
    noise = (comparison.seed_variance, comparison.segment_variance)
    one_sided = float(normal_p(np.array(gap), *noise, comparison.num_seeds)) / 2
    return one_sided if gap > 0 else 1 - one_sided
