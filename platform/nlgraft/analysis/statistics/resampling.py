"""Resampling of segments and seeds: the arithmetic behind every interval and p-value.

Two things make a difference between two cells uncertain. Another training seed gives another model, and
another test set gives another score. Test segments and seeds are *crossed* (every model is scored on the same
segments), so a difference of corpus scores has three random parts: seed, segment, and their interaction.

**Segments** are resampled from sufficient statistics: a matrix of resample counts times the statistics gives
the corpus statistics of all resamples at once. The same resamples serve both systems and all seeds, hence the
pairing. With one seed the draws are those of ``sacrebleu.significance.PairedTest`` for the same random seed.

**Seeds** are few. Resampling three seeds with replacement gives intervals that hold the truth three times in
four instead of nineteen times in twenty (a test in ``tests/unit/analysis`` measures it), because a bootstrap
knows no Student's t. The seed level is therefore drawn from Student's t with ``S - 1`` degrees of freedom
and the standard error of the mean over seeds, and added to the segment draws (the Behrens-Fisher
distribution: exact when either level dominates, a little too wide in between).

**Interaction** would be counted in both levels; the segment draws are shrunk by the share of their variance
that changing the seed also changes, estimated from the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from nlgraft.analysis.data.trials import Array

Score = Callable[[Array], Array]
"""Corpus scores, shape (...), from summed sufficient statistics, shape (..., k)."""

RANDOM_SEED = 12345
"""sacreBLEU's default, so that one-seed tests draw the same resamples as ``sacrebleu --paired-bs``."""

POWER = 0.8
"""Probability with which the smallest detectable difference is found."""

MAX_SEEDS = 1000
"""Beyond this many seeds ``seeds_needed`` answers None."""

_COUNT_CELLS = 1 << 21
_MASK_CELLS = 1 << 24
_TIE = 1e-9


def bootstrap_counts(num_segments: int, num_samples: int, seed: int = RANDOM_SEED) -> Iterator[Array]:
    """Draw how often each segment occurs in each bootstrap resample, in chunks of resamples.

    Args:
        num_segments: Segments of the test set.
        num_samples: Resamples in all.
        seed: Random seed; the draws do not depend on the chunking.

    Yields:
        Counts, shape (chunk, num_segments); each row sums to num_segments.
    """
    rng = np.random.default_rng(seed)
    rows = max(1, _COUNT_CELLS // num_segments)
    for start in range(0, num_samples, rows):
        size = min(rows, num_samples - start)
        drawn = rng.integers(0, num_segments, size=(size, num_segments))
        drawn += np.arange(size)[:, None] * num_segments
        counts = np.bincount(drawn.ravel(), minlength=size * num_segments)
        yield counts.reshape(size, num_segments).astype(np.float64)


def bootstrap_scores(
    statistics: Sequence[Array], score: Score, num_samples: int, seed: int = RANDOM_SEED
) -> Array:
    """Score every system on the same bootstrap resamples of the test set.

    Args:
        statistics: Per system the sufficient statistics of its segments, each of shape (N, k).
        score: Corpus score of summed statistics.
        num_samples: Number of resamples n.
        seed: Random seed.

    Returns:
        Scores, shape (len(statistics), n).
    """
    out = np.empty((len(statistics), num_samples))
    start = 0
    for counts in bootstrap_counts(statistics[0].shape[0], num_samples, seed):
        stop = start + counts.shape[0]
        for row, segments in enumerate(statistics):
            out[row, start:stop] = score(counts @ segments)
        start = stop
    return out


def randomised_differences(
    a: Array, b: Array, score: Score, num_samples: int, seed: int = RANDOM_SEED
) -> Array:
    """Differences of scores after exchanging the two systems' outputs on random segments.

    The exchanged segments are the same for all seeds, as the segments are.

    Args:
        a: Statistics of the first system, shape (S, N, k): S seeds, N segments.
        b: Statistics of the second system, same shape.
        score: Corpus score of summed statistics.
        num_samples: Number of random exchanges n.
        seed: Random seed.

    Returns:
        Score of the shuffled first system minus that of the shuffled second, shape (S, n).
    """
    num_seeds, num_segments, _ = a.shape
    rng = np.random.default_rng(seed)
    rows = max(1, _MASK_CELLS // num_segments)
    total_a, total_b, gap = a.sum(axis=1), b.sum(axis=1), a - b
    out = np.empty((num_seeds, num_samples))
    for start in range(0, num_samples, rows):
        stop = min(start + rows, num_samples)
        kept = rng.integers(2, size=(stop - start, num_segments), dtype=bool)
        exchanged = (~kept).astype(np.float64)
        for index in range(num_seeds):
            moved = exchanged @ gap[index]
            out[index, start:stop] = score(total_a[index] - moved) - score(total_b[index] + moved)
    return out


@dataclass(frozen=True)
class Spread:
    """How uncertain a mean difference over seeds is, split by where the uncertainty comes from.

    Attributes:
        draws: Errors of the mean difference, centred at zero, shape (n,).
        seed_variance: Variance between the seeds' differences; None with one seed.
        segment_variance: Variance of the mean difference from the choice of segments alone, interaction
            with the seeds taken out; 0 without segment statistics.
        num_seeds: Number of paired seeds.
    """

    draws: Array
    seed_variance: float | None
    segment_variance: float
    num_seeds: int


def spread(differences: Array, segment_draws: Array | None, num_samples: int) -> Spread:
    """Combine the noise over seeds with the noise over segments.

    With S seeds let A = (variance of the S differences) / S, B = the variance of the draws of the mean
    difference, W = the mean over seeds of the variance of one seed's draws. Then (W - B) / (S - 1) is the
    part of B that is interaction of seed and segment and already in A (a difference of mean squares, as in a
    two-way layout without replication); C = B - (W - B) / (S - 1), not below zero, is the segments' own.
    One draw is sqrt(A) t + sqrt(C / B) (segment draw), t from Student's t with S - 1 degrees of freedom,
    taken at evenly spaced quantiles in random order so that the tails carry no Monte-Carlo noise.

    Args:
        differences: Observed difference of each seed, shape (S,).
        segment_draws: Differences of each seed on resampled segments, shape (S, n); None when the metric has
            no per-segment statistics.
        num_samples: Number of draws n.

    Returns:
        The combined draws and both variance components. With one seed the segment draws as they are.
    """
    num_seeds = len(differences)
    draws = np.zeros(num_samples)
    total = within = 0.0
    if segment_draws is not None:
        mean_draws = segment_draws.mean(axis=0)
        draws = mean_draws - mean_draws.mean()
        total = float(np.mean(draws**2))
        within = float(segment_draws.var(axis=1).mean())
    if num_seeds == 1:
        return Spread(draws, None, total, 1)
    between = float(np.var(differences, ddof=1))
    if between <= (_TIE * float(np.max(np.abs(differences), initial=1e-300))) ** 2:
        between = 0.0
    own = max(0.0, total - (within - total) / (num_seeds - 1))
    if total > 0:
        draws = draws * np.sqrt(own / total)
    quantiles = stdtrit(num_seeds - 1, (np.arange(num_samples) + 0.5) / num_samples)
    order = np.random.default_rng(RANDOM_SEED).permutation(num_samples)
    draws = draws + np.sqrt(between / num_seeds) * quantiles[order]
    return Spread(draws, between, own, num_seeds)


def p_value(difference: float, draws: Array) -> float:
    """Two-sided p-value of an observed difference under draws of its error.

    (1 + number of draws at least as far from zero as the difference) / (n + 1): never 0, and exactly 1 for
    identical systems. sacreBLEU's paired bootstrap instead compares ``|d*| - mean |d*|`` with ``|d|``, which
    counts one tail only and gives about half of this value; its approximate randomisation agrees with ours.

    Args:
        difference: Observed difference.
        draws: Errors centred at zero, shape (n,).

    Returns:
        A probability in [1 / (n + 1), 1].
    """
    limit = abs(difference) * (1 - _TIE)
    return float(1 + np.count_nonzero(np.abs(draws) >= limit)) / (len(draws) + 1)


def interval(difference: float, draws: Array, alpha: float) -> tuple[float, float]:
    """Percentile interval of a difference.

    Args:
        difference: Observed difference.
        draws: Errors centred at zero, shape (n,).
        alpha: One minus the confidence, e.g. 0.05.

    Returns:
        Lower and upper end.
    """
    low, high = np.quantile(draws, [alpha / 2, 1 - alpha / 2])
    return difference + float(low), difference + float(high)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of one family after Holm (1979).

    Args:
        p_values: One per comparison; None stays None and does not count.

    Returns:
        Adjusted values in the same order, never above 1, monotone in the raw values.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return adjusted


def _detectable(seed_variance: float, segment_variance: float, num_seeds: Array, alpha: float) -> Array:
    seeds_part = seed_variance / num_seeds
    variance = seeds_part + segment_variance
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(variance > 0, seeds_part / variance, 0.0)
    multiple = np.zeros_like(num_seeds)
    for probability in (1 - alpha / 2, POWER):
        student = stdtrit(num_seeds - 1, probability)
        multiple += share * student + (1 - share) * ndtri(probability)
    return multiple * np.sqrt(variance)


def smallest_detectable(seed_variance: float, segment_variance: float, num_seeds: int, alpha: float) -> float:
    """The true difference that this many seeds find with probability 0.8 at level alpha (uncorrected).

    ``(q(1 - alpha/2) + q(0.8)) * sqrt(V / n + C)`` with V the variance between seeds of the paired
    difference, C the segments' variance, and q a quantile between Student's t with n - 1 degrees of freedom
    and the normal, weighted by V/n and C (Cochran and Cox 1957): Student's when the seeds are all the noise,
    the normal when the segments are.

    Args:
        seed_variance: V, as in ``Spread``.
        segment_variance: C, as in ``Spread``.
        num_seeds: n, at least 2.
        alpha: Level of the two-sided test.

    Returns:
        A difference in the metric's unit; 0 when nothing varies.
    """
    return float(_detectable(seed_variance, segment_variance, np.array([float(num_seeds)]), alpha)[0])


def seeds_needed(
    difference: float, seed_variance: float, segment_variance: float, alpha: float
) -> int | None:
    """The fewest seeds whose smallest detectable difference is no larger than the observed one.

    Args:
        difference: Observed difference.
        seed_variance: V, as in ``Spread``.
        segment_variance: C, as in ``Spread``.
        alpha: Level of the two-sided test.

    Returns:
        A number from 2 to ``MAX_SEEDS``; None when no such number is enough, which says that the test set is
        too small or that there is no difference to find.
    """
    if difference == 0:
        return None
    counts = np.arange(2.0, MAX_SEEDS + 1)
    enough = np.flatnonzero(_detectable(seed_variance, segment_variance, counts, alpha) <= abs(difference))
    return int(counts[enough[0]]) if enough.size else None
