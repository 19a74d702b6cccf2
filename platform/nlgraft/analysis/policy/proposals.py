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

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.stream import Arm, Pairs, Proposal, Step
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import p_over_looks
from nlgraft.analysis.estimates.noise_prior import StudyVariance, is_like, moderated, prior_of
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.basics.wording import count
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Study

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
            p = estimate.p or 0.0
            taken[look] = p if estimate.difference > 0 else 2 - p
    # Twice the one-sided p-values, as the looks have two-sided ones.
    return float(p_over_looks(taken, LOOKS, prior.df if prior else 0.0, _FIRST, 2.0)) / 2 if taken else 1.0


def decide(
    gains: Sequence[float] | Array,
    level: float,
    prior: NoisePrior | None = None,
    limit: int = LOOKS[-1],
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


@dataclass(frozen=True)
class Gain:
    """A mean gain over seeds.

    Attributes:
        seeds: The seeds.
        gains: Proposal minus what is kept, by seed; positive is better.
        mean: Their mean; None without any.
        interval: Student's t interval of the expected gain on this dev set; None below two seeds, and for
            seeds that decided, on which it would not hold.
    """

    seeds: tuple[int, ...]
    gains: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, by_seed: Mapping[int, float], alpha: float | None = None) -> Gain:
        """Average gains; with ``alpha``, with an interval that covers 1 - alpha."""
        gains = tuple(by_seed.values())
        mean = float(np.mean(gains)) if gains else None
        interval = None
        if alpha is not None and mean is not None and len(gains) >= 2:
            t = stdtrit(len(gains) - 1, 1 - alpha / 2)
            half = float(t * np.std(gains, ddof=1) / math.sqrt(len(gains)))
            interval = (mean - half, mean + half)
        return cls(tuple(by_seed), gains, mean, interval)


@dataclass(frozen=True)
class Judgement:
    """What follows from the present seeds.

    Attributes:
        decision: The decision.
        reason: Why, where the gains are not the reason.
        lost: Arms and seeds that failed now, and that are run once more before they count as lost.
        gain: The gains so far.
        p: The p-value of no gain.
    """

    decision: Decision
    reason: str = ""
    lost: tuple[tuple[Arm, int], ...] = ()
    _: KW_ONLY
    gain: Gain
    p: float


def judge(
    pairs: Pairs,
    entered: Step,
    lost_before: Collection[tuple[Arm, int]],
    is_last: bool,
) -> Judgement:
    """Decide on a proposal.

    A seed lost by what is kept is left out, which flatters what is kept. A proposal that loses a seed on
    which what is kept succeeds is discarded: without its worst seed it would look better than it is. A trial
    that fails for the first time is not lost yet.

    Args:
        pairs: The seeds so far.
        entered: The proposal with its level and the noise that was expected.
        lost_before: Arms and seeds that failed before.
        is_last: True if there are no more seeds.
    """
    gains = list(pairs.gains.values())
    prior = NoisePrior(entered.prior_df, entered.prior_variance) if entered.prior_df else None
    verdict = partial(Judgement, gain=Gain.of(pairs.gains), p=p_of_gain(gains, prior))
    failed_now = tuple(failure for failure in pairs.failed if failure not in lost_before)
    if pairs.why_not:
        return verdict("DISCARD", pairs.why_not)
    # A trial that failed for the first time gets another try before it counts.
    gone = {*pairs.diverged, *pairs.failed} - {*failed_now}
    alone = sorted(seed for arm, seed in gone if arm == "proposal" and ("kept", seed) not in gone)
    if alone:
        why = pairs.failed.get(("proposal", alone[0]), "its value is not finite")
        return verdict("DISCARD", f"it lost seed {alone[0]}, which what is kept did not: {why}")
    if failed_now:
        arm, seed = failed_now[0]
        reason = f"seed {seed} of the {arm} config failed: {pairs.failed[arm, seed]}; it is run once more"
        return verdict("MORE", reason, failed_now)
    if pairs.open:
        return verdict("MORE", f"not ended yet: {count(len(pairs.open), 'seed')}")
    if len(gains) >= LOOKS[0] and not any(gains):
        return verdict("DISCARD", f"it changes nothing: equal values with all {len(gains)} seeds")
    limit = len(gains) if is_last else max(LOOKS[-1], len(gains) + 1)
    return verdict(decide(gains, entered.level, prior, limit))


def gain_of(step: Step | None, alpha: float | None = None) -> Gain | None:
    """Return the gain on the seeds of a step, see `Gain.of`."""
    return None if step is None else Gain.of(dict(zip(step.seeds, step.gains, strict=True)), alpha)


def enter_seen(
    pair: Study,
    variant: str,
    gain: Gain,
    store: ArtifactStore,
) -> None:
    """Enter what was seen of a proposal beside what is kept into the ledger, before it is shown.

    It is an analysis of the dev segments, which no later report may take for unseen: later questions about
    these cells there are exploratory. Its question belongs to no family, since the stream's levels decide.

    Args:
        pair: The study of both cells.
        variant: Name of the study that proposed it.
        gain: Gains by seed; nothing is entered without any.
    """
    if gain.mean is not None:
        name, difference = pair.name.rpartition("-")[0], pair.objective.sign * gain.mean
        RecordedResults.read_dev(pair, store).enter_seen(name, variant, gain.seeds, difference)
