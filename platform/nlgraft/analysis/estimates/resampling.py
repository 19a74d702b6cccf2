"""Resampling of segments and seeds: the arithmetic behind every interval and p-value.

A difference between two cells is uncertain for two reasons: another training seed gives another model, and
another test set gives another score. Test segments and seeds are *crossed* (every model is scored on the same
segments), so a difference of corpus scores has three random components: seed, segment, and their interaction.

**Segments** are resampled from sufficient statistics: a matrix of resample counts times the statistics gives
the corpus statistics of all resamples at once. Both systems and all seeds are scored on the same resamples,
hence the pairing. With one seed the draws are those of ``sacrebleu.significance.PairedTest`` for the same
random seed.

**Seeds** are few. Resampling three seeds with replacement gives intervals that cover the truth three times in
four instead of nineteen times in twenty (``tests/invariants/test_statistics.py`` measures it), because the
bootstrap ignores that the variance itself is estimated. The seed component is therefore drawn from Student's
t with ``S - 1`` degrees of freedom, and those of a prior (`noise_prior`), and the standard error of the mean
over seeds, and added to the segment draws (the Behrens-Fisher distribution: exact when either component
dominates, slightly wide in between).

**Interaction** would be counted in both components; the segment draws are shrunk by the share of their
variance that changes with the seed, estimated from the same draws.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from scipy.special import stdtrit

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.noise_prior import Estimate, moderate

Score = Callable[[Array], Array]
"""Corpus scores, shape (...), from summed sufficient statistics, shape (..., k)."""

Either = tuple[float | None, float | None]
"""p-values of no difference, and of a difference of at least the margin."""

RANDOM_SEED = 12345
"""sacreBLEU's default, so that one-seed tests draw the same resamples as ``sacrebleu --paired-bs``."""

_COUNT_CELLS = 1 << 21
_GROUP_CELLS = 1 << 22
_TIE = 1e-9
_FEW_DRAWS = 20


def bootstrap_counts(num_segments: int, num_samples: int) -> Iterator[Array]:
    """Draw how often each segment occurs in each bootstrap resample.

    Yields:
        Counts in chunks of resamples, shape (chunk, num_segments); each row sums to num_segments. The draws
        do not depend on the chunking.
    """
    rng = np.random.default_rng(RANDOM_SEED)
    rows = max(1, _COUNT_CELLS // num_segments)
    for start in range(0, num_samples, rows):
        size = min(rows, num_samples - start)
        drawn = rng.integers(0, num_segments, size=(size, num_segments))
        drawn += np.arange(size)[:, None] * num_segments
        counts = np.bincount(drawn.ravel(), minlength=size * num_segments)
        yield counts.reshape(size, num_segments).astype(np.float64)


def bootstrap_scores(
    statistics: Sequence[Array],
    score: Score,
    num_samples: int,
) -> Array:
    """Score every system on the same bootstrap resamples of the test set.

    Args:
        statistics: Per system the sufficient statistics of its segments, each of shape (N, k).
        score: Corpus score of summed statistics.
        num_samples: Number of resamples n.

    Returns:
        Scores, shape (len(statistics), n).
    """
    out = np.empty((len(statistics), num_samples))
    num_segments, num_columns = statistics[0].shape
    size = max(1, _GROUP_CELLS // (num_segments * num_columns))
    start = 0
    for counts in bootstrap_counts(num_segments, num_samples):
        stop = start + counts.shape[0]
        # One product for many systems: counts are far larger than the statistics of one.
        for first in range(0, len(statistics), size):
            group = np.hstack(statistics[first : first + size])
            sums = (counts @ group).reshape(len(counts), -1, num_columns)
            out[first : first + size, start:stop] = score(sums).T
        start = stop
    return out


def spread(
    differences: Array,
    segment_draws: Array | None,
    num_samples: int,
    prior: NoisePrior | None = None,
) -> tuple[Array, Estimate]:
    """Combine the noise over seeds with the noise over segments.

    With S seeds let A = (variance of the S differences) / S, B = the variance of the draws of the mean
    difference, W = the mean over seeds of the variance of one seed's draws. Then (W - B) / (S - 1) is the
    part of B that is interaction of seed and segment and already in A (a difference of mean squares, as in a
    two-way layout without replication); C = max(0, B - (W - B) / (S - 1)) is due to segments alone.
    One draw is sqrt(A) t + sqrt(C / B) (segment draw), with t from Student's t with S - 1 degrees of freedom,
    taken at evenly spaced quantiles in random order so that the tails carry no Monte-Carlo noise.

    Args:
        differences: Observed difference of each seed, shape (S,).
        segment_draws: Differences of each seed on resampled segments, shape (S, n); None when the metric has
            no per-segment statistics.
        num_samples: Number of draws n.
        prior: What is known of the variance of the differences.

    Returns:
        Errors of the mean difference, centred at zero, shape (n,), and the mean with its variance between
        seeds, moderated by the prior, and that from the choice of segments without the interaction. With one
        seed the draws are the segment draws, and the variance between seeds has no degrees of freedom.
    """
    num_seeds, mean = len(differences), float(differences.mean())
    draws = np.zeros(num_samples)
    total = within = 0.0
    if segment_draws is not None:
        mean_draws = segment_draws.mean(axis=0)
        draws = mean_draws - mean_draws.mean()
        total = float(np.mean(draws**2))
        within = float(segment_draws.var(axis=1).mean())
    if num_seeds == 1:
        return draws, Estimate(mean, 1, 0.0, 0.0, total)
    between = float(np.var(differences, ddof=1))
    # Equal differences leave a variance of rounding errors, over which a t test would reject anything.
    if between <= (_TIE * float(np.max(np.abs(differences), initial=1e-300))) ** 2:
        between = 0.0
    segment_variance = max(0.0, total - (within - total) / (num_seeds - 1))
    if total > 0:
        draws = draws * np.sqrt(segment_variance / total)
    variance, df = moderate(between, num_seeds, prior)
    draws = draws + np.sqrt(variance / num_seeds) * _t_draws(df, num_samples)
    return draws, Estimate(mean, num_seeds, variance, df, segment_variance)


@lru_cache(maxsize=32)
def _t_draws(dof: float, num_samples: int) -> Array:
    """Return evenly spaced quantiles of Student's t in random order, the same at every call."""
    quantiles: Array = stdtrit(dof, (np.arange(num_samples) + 0.5) / num_samples)
    draws = np.random.default_rng(RANDOM_SEED).permutation(quantiles)
    draws.setflags(write=False)
    return draws


def p_value(difference: float, draws: Array) -> float:
    """Compute the two-sided p-value of a difference from draws of its error, centred at zero, shape (n,).

    (1 + number of draws at least as far from zero as the difference) / (n + 1): never below 1 / (n + 1), and
    exactly 1 for identical systems. sacreBLEU's paired bootstrap instead compares ``|d*| - mean |d*|`` with
    ``|d|``, which counts one tail only and gives about half of this value.
    """
    # Draws equal to the difference count as reaching it, also if they were summed in another order.
    limit = abs(difference) * (1 - _TIE)
    return float(1 + np.count_nonzero(np.abs(draws) >= limit)) / (len(draws) + 1)


def two_sided_p(estimate: Estimate, draws: Array) -> float:
    """Compute the two-sided p-value of a difference from draws of its error, or their distribution's tail.

    If fewer than `_FEW_DRAWS` of the n draws reach the difference, their number is a poor estimate, and p
    could never fall below 1 / (n + 1). Segment noise is then taken as normal. With one seed only the draws
    are used, as in sacreBLEU.
    """
    p = p_value(estimate.difference, draws)
    is_far = p * (len(draws) + 1) < 1 + _FEW_DRAWS
    varies = estimate.df > 0 and estimate.variance + estimate.segment_variance > 0
    return float(estimate.p or 0.0) if varies and is_far else p


def interval(
    difference: float,
    draws: Array,
    alpha: float,
) -> tuple[float, float]:
    """Compute the percentile interval, confidence 1 - alpha, from draws centred at zero, shape (n,)."""
    low, high = np.quantile(draws, [alpha / 2, 1 - alpha / 2])
    return difference + float(low), difference + float(high)


def open_as_one(pair: Either, margin: float | None) -> Either:
    """Count p-values that are missing as 1 in a family; that of equality only where there is a margin."""
    p, p_equal = pair
    return 1.0 if p is None else p, None if margin is None else 1.0 if p_equal is None else p_equal


def holm_either(pairs: Sequence[Either]) -> list[Either]:
    """Adjust the p-values of a family whose questions have two hypotheses, of which only one can be true.

    Of *no difference* and *a difference of at least the margin* at most one is true, so m questions have at
    most m true hypotheses, and Holm's factors are those of m, not of 2 m. While either hypothesis of a
    question stands it counts: a question leaves the family when both are rejected. This is the closed test
    with Bonferroni's inequality; without second hypotheses it is the procedure of Holm (1979).

    Args:
        pairs: For each question the p-value of no difference, None if it does not count, and that of a
            difference of at least the margin, None without a margin.

    Returns:
        Adjusted pairs in the same order, never above 1.
    """
    larger = sorted(max(p, other or 0.0) for p, other in pairs if p is not None)
    num = len(larger)
    # Step-down: an adjusted p-value is never below that of a smaller one.
    running = [0.0, *accumulate(((num - rank) * p for rank, p in enumerate(larger)), max)]

    def adjusted(p: float | None) -> float | None:
        if p is None:
            return None
        rank = bisect_left(larger, p)
        return min(1.0, max((num - rank) * p, running[rank]))

    return [(adjusted(p), None if p is None else adjusted(other)) for p, other in pairs]
