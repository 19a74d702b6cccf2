"""How many seeds decide a question: predicted for the test and the level that will judge later looks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from scipy.special import gammaincinv, ndtri, stdtrit

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.noise_prior import Estimate

PROBABILITY = 0.8
"""Predicted probability from which a number of seeds is named (how it is met: benchmarks.noise_priors)."""

_NUM_DRAWS = 2048
_IRRATIONAL = np.array([0.8191725134, 0.6710436067, 0.5497004779])
"""Steps of an even sequence in three dimensions, powers of the inverse of the root of x^4 = x + 1."""


def likely_look(estimate: Estimate, levels: Mapping[int, float], margin: float | None = None) -> int | None:
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


def decided_by(estimate: Estimate, num_seeds: int, level: float, margin: float | None = None) -> float:
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
