"""Tests that a difference is smaller than a margin, under the same noise as the tests for a difference.

Two one-sided tests (Schuirmann 1987): *equal* rejects a difference of at least the margin on either side,
and its p-value is the larger of the two, that of the nearer end. *Different* rejects a difference of zero. Of
these hypotheses at most one is true, so a question that is asked both ways errs no more often than one that
is asked one way (three-sided testing: Goeman, Solari and Stijnen 2010).
"""

from __future__ import annotations

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.noise_prior import tail


def equal_p(comparison: Comparison) -> float | None:
    """Compute the p-value of a difference of at least the margin; None without a margin or variances."""
    if comparison.margin is None or comparison.difference is None or comparison.seed_variance is None:
        return None
    gap = comparison.margin - abs(comparison.difference)
    over_seeds = comparison.seed_variance / comparison.num_seeds
    one_sided = float(tail(abs(gap), over_seeds, comparison.df, comparison.segment_variance))
    return one_sided if gap > 0 else 1 - one_sided
