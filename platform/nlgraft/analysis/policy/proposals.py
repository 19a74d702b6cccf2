"""A stream of proposals: what to keep, what to discard, and what needs more seeds.

Each proposal is paired by seed with what it would replace. Its evidence after n seeds is a likelihood ratio
that depends on the gains' ratio to their spread alone, so that their variance need not be known (the t test's
invariant likelihood, Wang and Ramdas 2023, arXiv 2310.03722, section 4): with S the sum of the gains, Q the
sum of their squares and d the gain in standard deviations,

    L_n(d) = exp(-n d^2 / 2) * I(d S / sqrt(Q)) / I(0),   I(b) = integral over u > 0 of u^(n-1) exp(-u^2/2 +
    u b),

averaged over the d of `GAINS`. Without a gain, the probability that it ever reaches x is at most 1 / x,
however often one looks.

A proposal is kept when its evidence reaches 1 / level. Levels are those of e-LOND (Xu and Ramdas 2024): the
t-th proposal has alpha * g(t) * (1 + number kept so far), and the g(t) sum to one. The expected share of
false keeps among all keeps is at most alpha, whatever the proposals have in common, and wherever the stream
is stopped: the share never exceeds the sum over false keeps of 1 / (1 + number kept before), which is at most
alpha * sum of g(t) * evidence at the decision, whose expectation is at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from nlgraft.analysis.data.trials import Array

GAINS = (1.0, 2.0)
"""Gains, in standard deviations between seeds, that the evidence is tuned to find."""

FUTILE = math.exp(-1.0)
"""A proposal is discarded when a gain of size `GAINS[0]` is less likely than none by this factor."""

FIRST_SEEDS = 3
"""Seeds before the first decision."""

LIMIT = 24
"""Most seeds of a proposal."""

FRESH_SEEDS = 5
"""Seeds, none of those that decided, on which a kept proposal is measured again."""

_HALF_LIFE = 100
"""The first so many proposals share half of alpha, the next twice as many a sixth, and so on."""

_FEW = 2
_NODES = 2001
_FAR = 9.0

Decision = Literal["KEEP", "DISCARD", "MORE"]


def stream_level(num_before: int, num_kept: int, alpha: float) -> float:
    """Compute the level of a proposal.

    Args:
        num_before: Proposals of the stream before it, decided or not.
        num_kept: Those of them that were kept.
        alpha: Bound on the expected share of false keeps among keeps.
    """
    number = num_before + 1
    share = _HALF_LIFE / ((number + _HALF_LIFE - 1) * (number + _HALF_LIFE))
    return min(1.0, alpha * share * (1 + num_kept))


def log_evidence_of_gain(gains: Array, sizes: Sequence[float] = GAINS) -> Array:
    """Compute the logarithm of the evidence that something is gained.

    Args:
        gains: Proposal minus the kept config, seed by seed, shape (..., n); positive is better.
        sizes: Gains in standard deviations.

    Returns:
        Shape (...); zero with fewer than two seeds or where nothing differs.
    """
    num = gains.shape[-1]
    if num < _FEW:
        return np.zeros(gains.shape[:-1])
    squares = np.square(gains).sum(axis=-1)
    scale = np.sqrt(num * np.where(squares > 0, squares, 1.0))
    places, logs = _table(num, tuple(sizes))
    return np.where(squares > 0, np.interp(gains.sum(axis=-1) / scale, places, logs), 0.0)


def decide(gains: Array, level: float, limit: int = LIMIT) -> Decision:
    """Decide on a proposal after its present seeds, shape (n,)."""
    if log_evidence_of_gain(gains) >= -math.log(level):
        return "KEEP"
    is_futile = log_evidence_of_gain(gains, GAINS[:1]) <= math.log(FUTILE)
    return "DISCARD" if len(gains) >= limit or is_futile else "MORE"


@lru_cache(maxsize=256)
def _table(num: int, sizes: tuple[float, ...]) -> tuple[Array, Array]:
    """Tabulate the evidence of n seeds over S / sqrt(n Q), which lies between -1 and 1."""
    places = np.linspace(-1.0, 1.0, _NODES)
    u = np.linspace(0.0, math.sqrt(num) * (1 + max(sizes)) + _FAR, _NODES)[1:]
    weights = (num - 1) * np.log(u) - u**2 / 2
    logs = [
        logsumexp(weights + size * math.sqrt(num) * places[:, None] * u, axis=1)
        - logsumexp(weights)
        - num * size**2 / 2
        for size in sizes
    ]
    return places, logsumexp(logs, axis=0) - math.log(len(sizes))
