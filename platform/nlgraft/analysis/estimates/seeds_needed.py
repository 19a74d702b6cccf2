"""How many seeds decide a question: predicted for the test and the level that will judge later looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaincinv, ndtri, stdtrit

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.noise_prior import Estimate, NoisePrior

PROBABILITY = 0.8
"""Predicted probability from which a number of seeds is named (how it is met: benchmarks.noise_priors)."""

_NUM_DRAWS = 2048
_IRRATIONAL = np.array([0.8191725134, 0.6710436067, 0.5497004779])
"""Steps of an even sequence in three dimensions, powers of the inverse of the root of x^4 = x + 1."""


def seeds_needed(
    estimate: Estimate, looks: Sequence[int], level: float, prior: NoisePrior | None = None
) -> int | None:
    """Find the first later look that is likely to decide a question that is undecided now.

    Args:
        estimate: What is known now.
        looks: All declared numbers of seeds, ascending.
        level: Level of the question over all looks, after correction.
        prior: The prior that judges.

    Returns:
        A number of seeds; None if no later look decides with `PROBABILITY`.
    """
    levels = look_levels(looks, level, 0.0 if prior is None else prior.df)
    for look, at in zip(looks, levels, strict=True):
        if look > estimate.num_seeds and decided_by(estimate, look, at) >= PROBABILITY:
            return look
    return None


def decided_by(estimate: Estimate, num_seeds: int, level: float) -> float:
    """Predict the probability that a test of more seeds rejects at its level.

    True difference and variance between seeds are drawn from what the present seeds leave open (a flat prior
    of the difference, the moderated variance); the noise of the test lines stays as it is.
    """
    now, more, df = estimate.num_seeds, num_seeds - estimate.num_seeds, estimate.df
    plausible, fresh, normal = _draws(df, more)
    variance = estimate.variance / plausible
    step = np.sqrt(variance * (1 / now + 1 / more)) * normal
    difference = estimate.difference + step * more / num_seeds
    squares = df * estimate.variance + variance * fresh + step**2 * now * more / num_seeds
    t = stdtrit(df + more, level / 2)
    u = stdtrit(estimate.num_segments - 1, level / 2) if estimate.segment_variance else 0.0
    limit = t**2 * squares / (df + more) / num_seeds + u**2 * estimate.segment_variance
    return float(np.mean(difference**2 > limit))


@lru_cache(maxsize=64)
def _draws(df: float, more: int) -> tuple[Array, Array, Array]:
    """Draw evenly: chi-squared over its degrees of freedom, chi-squared of ``more`` - 1, and normal."""
    places = (np.arange(1, _NUM_DRAWS + 1)[:, None] * _IRRATIONAL + 0.5) % 1
    fresh = 2 * gammaincinv((more - 1) / 2, places[:, 1]) if more > 1 else np.zeros(_NUM_DRAWS)
    return 2 * gammaincinv(df / 2, places[:, 0]) / df, fresh, ndtri(places[:, 2])
