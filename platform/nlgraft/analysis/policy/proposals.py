"""A stream of proposals: what to keep, what to discard, and what needs more seeds.

Each proposal is paired by seed with what it would replace, and judged at the looks of `LOOKS`: by a one-sided
t test of its gain, whose variance is moderated by that of the proposals decided before it (`estimates`), with
one p-value over the looks. It is kept when that is at most its level, and given up when a gain of one
standard deviation between seeds is e times less likely than none.

Levels are those of LOND (Javanmard and Montanari 2018): the t-th proposal has 2 alpha g(t) (1 + number kept
so far), and the g(t) sum to one. The expected share of false keeps among all keeps is then at most 2 alpha
for p-values that are independent, or that depend positively as those do that share the kept config's scores.
``benchmarks/streams.py`` has what happens otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.stream import Proposal
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import p_over_looks
from nlgraft.analysis.estimates.noise_prior import StudyVariance, is_like, moderated, prior_of

LOOKS = (3, 6, 12, 24)
"""Numbers of seeds at which a proposal may be kept; it gets no more than the last."""

FRESH_SEEDS = 5
"""Seeds, none of those that decided, on which a kept proposal is measured again."""

_FIRST = 0.5
"""Share of the first look: .8 keeps .33 of what gains 1 deviation by 12 seeds, .5 keeps .42."""

_HALF_LIFE = 20
"""The first so many proposals share half of the levels, the next as many a sixth, and so on."""

Decision = Literal["KEEP", "DISCARD", "MORE"]


def false_share(alpha: float) -> float:
    """Return the bound on the expected share of false keeps among keeps: one in ten at a level of .05."""
    return 2 * alpha


def stream_level(num_before: int, num_kept: int, alpha: float) -> float:
    """Compute the level of a proposal.

    Args:
        num_before: Proposals of the stream before it, decided or not.
        num_kept: Those of them that were kept.
        alpha: Level of the study.
    """
    number = num_before + 1
    share = _HALF_LIFE / ((number + _HALF_LIFE - 1) * (number + _HALF_LIFE))
    return min(1.0, false_share(alpha) * share * (1 + num_kept))


def noise_of(proposals: Iterable[Proposal]) -> NoisePrior | None:
    """Fit a prior to the noise of those proposals that are decided; None before there are any."""
    decided = (proposal.decided for proposal in proposals)
    return prior_of(StudyVariance.of([step.gains]) for step in decided if step is not None)


def p_of_gain(gains: Sequence[float] | Array, prior: NoisePrior | None) -> float:
    """Compute the p-value of no gain, over all looks that were taken.

    Args:
        gains: Proposal minus the kept config, seed by seed, shape (n,); positive is better.
        prior: Noise of earlier proposals, fixed before there were any gains.

    Returns:
        1 before the first look.
    """
    taken = {}
    for look in LOOKS:
        if look <= len(gains):
            # Decided by variances alone: a test that looked at means first would err more often.
            usable = prior if prior and is_like(prior, StudyVariance.of([gains[:look]])) else None
            estimate = moderated(gains[:look], usable)
            taken[look] = (estimate.p or 0.0) if estimate.difference > 0 else 1.0
    return float(p_over_looks(taken, LOOKS, prior.df if prior else 0.0, _FIRST)) / 2 if taken else 1.0


def decide(
    gains: Sequence[float] | Array, level: float, prior: NoisePrior | None = None, limit: int = LOOKS[-1]
) -> Decision:
    """Decide on a proposal after its present seeds, shape (n,)."""
    num = len(gains)
    if p_of_gain(gains, prior) <= level:
        return "KEEP"
    if num < LOOKS[0]:
        return "MORE"
    deviation = moderated(gains, prior).variance ** 0.5
    is_futile = num * float(np.mean(gains)) <= (num / 2 - 1) * deviation
    return "DISCARD" if num >= limit or is_futile else "MORE"
