"""Seed noise borrowed from earlier studies: moderated t tests (Smyth 2004, as in limma's ``squeezeVar``).

The variance s^2 of n paired differences has n - 1 degrees of freedom, too few to be trusted alone. With a
prior of d0 degrees of freedom and variance s0^2

    s~^2 = (d0 s0^2 + (n - 1) s^2) / (d0 + n - 1),

and the mean over its standard error follows Student's t with d0 + n - 1 degrees of freedom, on average over
the variances of studies, not for each of them: a study that is noisier than the earlier ones errs more often.

**What enters.** Arms of a study share a baseline and settings, so a study is one piece of evidence: its
variances are pooled (`StudyVariance`), and the prior is about what differs between studies.

**Its degrees of freedom.** The logarithms of variances of J studies vary by sampling, trigamma(f / 2) with f
degrees of freedom, and by t^2 between studies, which is estimated by moments and averaged with `_BETWEEN`, at
the weight of one study. A further study's log variance then misses the prior's by a variance of t^2 plus that
of the J studies' mean; a part of the d0 with this trigamma(d0 / 2) counts, as arms differ within studies and
noise is not normal. So a prior never says more than its studies (``benchmarks/noise_priors.py`` has rates).

**When it does not fit.** `applicable` compares the variance of a whole study with the prior's, before a mean
is looked at. In the place of a prior that is too low, or for a study of several arms too high, the study's
pooled variance moderates, with the degrees of freedom that it has beyond those of one comparison. With a
prior of twice the true deviation an effect of two among four arms is so found in .26 of studies, not in .05.

**An empty store** borrows from the studies that nlgraft ships (`published_prior`): of the same system and
metric, and of a like size, but of other text. Two degrees of freedom are the most that they count for: then
four arms of three seeds err no more than .05 even if their deviation is twice the published one, and a single
arm .08; an effect of two deviations among four is found in .31 of studies instead of .15.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self, cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, fdtr, fdtrc, polygamma, stdtr

from nlgraft.analysis.data.ledger import Entry, NoisePrior, Training
from nlgraft.analysis.data.published_noise import PublishedNoise
from nlgraft.analysis.data.trials import Array

_BETWEEN = 0.1
_WEIGHT = 0.5
WEIGHT_OF_STUDIES = 0.75
"""Of the degrees of freedom of earlier studies, where noisier ones fall back (`applicable`)."""

PUBLISHED_DF = 2.0
_LIKE_SIZE = 4.0
"""Factor within which trained tokens and test segments of a published study are alike."""
_EXACT = 1e-9
_PLACES = np.linspace(-8.0, 8.0, 401)
_DENSITY = np.exp(-(_PLACES**2) / 2)
_DENSITY /= _DENSITY.sum()
_FIT_LEVEL, _QUIET_LEVEL = 0.25, 0.05
_SHARED = 0.25
"""Squared correlation of two differences from a common baseline that varies as the arms do."""


@dataclass(frozen=True)
class StudyVariance:
    """The seed noise of one study on one metric.

    Attributes:
        variance: Pooled variance of a paired difference between seeds.
        df: Its degrees of freedom.
    """

    variance: float
    df: float

    @classmethod
    def of(cls, differences: Iterable[Sequence[float] | Array]) -> Self:
        """Pool the variances of differences from a common baseline.

        With f_i = n_i - 1 the pooled variance has the degrees of freedom (sum f_i)^2 / sum over i and j of
        rho_ij^2 min(f_i, f_j), with correlations rho_ij = 1/2: 4 k / (k + 3) times n - 1 for k arms of n
        seeds.

        Args:
            differences: For each arm its differences from the baseline by seed; one seed says nothing.

        Returns:
            Both 0 without an arm of two seeds.
        """
        samples = [np.asarray(arm, dtype=float) for arm in differences if len(arm) > 1]
        if not samples:
            return cls(0.0, 0.0)
        dfs = np.array([len(arm) - 1 for arm in samples])
        shared = _SHARED * np.minimum.outer(dfs, dfs).sum() + (1 - _SHARED) * dfs.sum()
        variances = [arm.var(ddof=1) for arm in samples]
        return cls(float(np.average(variances, weights=dfs)), float(dfs.sum() ** 2 / shared))


def prior_of(studies: Iterable[StudyVariance], weight: float = _WEIGHT) -> NoisePrior | None:
    """Fit a prior to studies.

    Args:
        studies: One variance a study; those that do not vary count for nothing.
        weight: Factor of the degrees of freedom.

    Returns:
        None without a study that varies.
    """
    # Studies whose scores never vary would make the prior certain.
    varying = [study for study in studies if study.variance > 0 and study.df > 0]
    if not varying:
        return None
    half = np.array([study.df for study in varying]) / 2
    logs = np.log([study.variance for study in varying]) - digamma(half) + np.log(half)
    sampling = polygamma(1, half)
    num = len(varying)
    excess = max(0.0, float(logs.var(ddof=1) - sampling.mean())) if num > 1 else 0.0
    between = ((num - 1) * excess + _BETWEEN) / num
    precisions = 1 / (between + sampling)
    missed = between + 1 / float(precisions.sum())
    # trigamma(y) lies between 1 / y and 1 / y + 1 / y^2.
    # A number, as a full output is not asked for; scipy has no types that say so.
    d0 = 2 * cast(
        "float", brentq(lambda half: polygamma(1, half) - missed, 1 / missed, 1 + 1 / missed, xtol=1e-14)
    )
    center = float(np.average(logs, weights=precisions)) + float(digamma(d0 / 2)) - math.log(d0 / 2)
    return NoisePrior(weight * d0, math.exp(center))


def applicable(
    prior: NoisePrior,
    study: StudyVariance,
    num_seeds: int,
) -> NoisePrior | None:
    """Return a prior that fits a study, or else what it knows beyond a comparison of n seeds, if any."""
    df = min(prior.df, study.df - (num_seeds - 1))
    pooled = NoisePrior(df=df, variance=study.variance) if df > _EXACT else None
    if not is_like(prior, study, _FIT_LEVEL):
        return pooled
    # A single comparison keeps a prior that is too high: quiet by chance, it would err by itself.
    is_quieter = fdtr(study.df, prior.df, study.variance / prior.variance) <= _QUIET_LEVEL
    return pooled if pooled and is_quieter else prior


def is_like(
    prior: NoisePrior,
    study: StudyVariance,
    level: float = 0.1,
) -> bool:
    """Test whether a study is no noisier than a prior says; an F test at ``level``."""
    return study.df == 0 or bool(fdtrc(study.df, prior.df, study.variance / prior.variance) > level)


def paired_kinds(cells: Sequence[Training]) -> tuple[str, str] | None:
    """Say which kinds of training vary in a difference of cells.

    Returns:
        None where they are no two trainings that a prior can know: the same one decoded in two ways, or more
        than two of unlike kinds.
    """
    kinds = sorted(cell.kind for cell in cells)
    is_known = len(cells) > 1 and (len(cells) == 2 or kinds[0] == kinds[-1])
    differ = all(a.weights != b.weights for a, b in combinations(cells, 2))
    return (kinds[0], kinds[-1]) if is_known and differ else None


def study_variance(
    cells: Mapping[str, Training],
    scores: Mapping[str, Mapping[int, float]],
    kinds: tuple[str, str],
) -> StudyVariance:
    """Pool the differences of a study's cells from one of them, seed by seed.

    Args:
        cells: What is trained in each cell, the baseline first.
        scores: Scores by cell and seed.
        kinds: Kinds of the two trainings whose difference it is.
    """
    for base, training in cells.items():
        arms = {
            other.weights: cell
            for cell, other in cells.items()
            if paired_kinds([training, other]) == kinds and cell != base
        }
        against = scores[base]
        gains = [
            [scores[arm][seed] - against[seed] for seed in sorted(scores[arm].keys() & against.keys())]
            for arm in arms.values()
        ]
        if (variance := StudyVariance.of(gains)).df:
            return variance
    return StudyVariance(0.0, 0.0)


def prior_from(
    entries: Iterable[Entry],
    metric: str,
    kinds: tuple[str, str],
    judged: Mapping[str, Collection[int]],
) -> NoisePrior | None:
    """Fit a prior to the studies of ledger entries that are alike.

    Args:
        entries: Analyses of other studies.
        metric: The metric.
        kinds: Kinds of the two trainings whose difference it is about.
        judged: Seeds by cell of the trials that the prior will judge; they do not enter it.
    """
    cells = defaultdict(dict)
    scores = defaultdict(lambda: defaultdict(dict))
    for entry in entries:
        scored = entry.scores if metric == entry.metrics[0] else entry.further_scores.get(metric, {})
        for cell, by_seed in scored.items():
            if cell in entry.trainings:
                cells[entry.study][cell] = entry.trainings[cell]
                kept = {seed: score for seed, score in by_seed.items() if seed not in judged.get(cell, ())}
                scores[entry.study][cell] |= kept
    variances = {study: study_variance(cells[study], scores[study], kinds) for study in cells}
    varying = {study: variance for study, variance in variances.items() if variance.variance > 0}
    prior = prior_of(varying.values(), WEIGHT_OF_STUDIES)
    return prior and replace(prior, studies=tuple(varying))


def published_prior(
    rows: Iterable[PublishedNoise],
    system: str,
    metric: str,
    trainings: Sequence[Training],
    num_segments: int,
    judged: Mapping[str, Collection[int]],
) -> NoisePrior | None:
    """Fit a prior to published studies of a like size.

    Args:
        rows: What is published.
        system: The system.
        metric: The metric.
        trainings: The trainings that are compared.
        num_segments: Segments of the test set.
        judged: Seeds by digest of the settings of the trials that the prior will judge; a study that shares
            one does not enter.
    """
    stages = {training.stages for training in trainings}
    num_tokens = max(training.num_tokens for training in trainings)
    closest: dict[str, PublishedNoise] = {}
    for row in sorted(rows, key=lambda row: _factor(row.num_tokens, num_tokens)):
        is_judged = any(set(row.seeds) & set(judged.get(config, ())) for config in row.configs)
        factors = [_factor(row.num_tokens, num_tokens)]
        # A single segment stands for lines that the store does not hold.
        if 1 not in (row.num_segments, num_segments):
            factors.append(_factor(row.num_segments, num_segments))
        is_of_same = (row.system, row.metric, set(row.stages)) == (system, metric, stages)
        if is_of_same and not is_judged and max(factors) <= _LIKE_SIZE:
            closest.setdefault(row.study, row)
    prior = prior_of(StudyVariance(row.variance, row.df) for row in closest.values())
    if prior is None:
        return None
    return replace(prior, df=min(prior.df, PUBLISHED_DF), studies=tuple(closest), is_published=True)


def _factor(a: float, b: float) -> float:
    return max(a, b) / min(a, b) if min(a, b) > 0 else math.inf


@dataclass(frozen=True)
class Estimate:
    """A mean difference over seeds and its uncertainty.

    Attributes:
        difference: The mean.
        num_seeds: Number of paired seeds.
        variance: Variance of the differences between seeds, moderated.
        df: Degrees of freedom of ``variance``.
        segment_variance: Variance of the mean from the choice of segments.
    """

    difference: float
    num_seeds: int
    variance: float
    df: float
    segment_variance: float = 0.0

    @property
    def p(self) -> float | None:
        """Two-sided p-value of no difference; None where something differs and nothing varies."""
        if self.variance + self.segment_variance == 0:
            return None if self.difference else 1.0
        return 2 * self._tail(abs(self.difference))

    def equal_p(self, margin: float) -> float:
        """p-value of a difference of at least a margin: the larger of two one-sided tests (Schuirmann 1987).

        Of this hypothesis and that of no difference at most one is true, so a question that is asked both
        ways errs no more often than one that is asked one way (Goeman, Solari and Stijnen 2010).
        """
        gap = margin - abs(self.difference)
        one_sided = self._tail(abs(gap))
        return one_sided if gap > 0 else 1 - one_sided

    def _tail(self, gap: float) -> float:
        return float(tail(gap, self.variance / self.num_seeds, self.df, self.segment_variance))


def moderated(differences: Sequence[float] | Array, prior: NoisePrior | None = None) -> Estimate:
    """Estimate a mean difference over seeds.

    Args:
        differences: Difference of each seed, shape (n,), n >= 2.
        prior: What is known about their variance; None for Student's t test.
    """
    values = np.asarray(differences, dtype=float)
    variance, df = moderate(float(values.var(ddof=1)), len(values), prior)
    return Estimate(float(values.mean()), len(values), variance, df)


def moderate(
    variance: float,
    num_seeds: int,
    prior: NoisePrior | None,
) -> tuple[float, float]:
    """Join the variance of n >= 2 differences with a prior; return it with its degrees of freedom."""
    df = num_seeds - 1.0
    if prior is None:
        return variance, df
    total = prior.df + df
    return (prior.df * prior.variance + df * variance) / total, total


def tail(
    gap: Array | float,
    over_seeds: Array | float,
    df: Array | float,
    segment_variance: float = 0.0,
) -> Array:
    """Compute the probability that the error of a mean exceeds a gap.

    The error is sqrt(A) T + sqrt(C) Z with A from seeds, C from segments, T of Student's distribution and Z
    normal (Behrens and Fisher): exact without segments, else a little wide (.009 to .012 for .0125 with three
    seeds and a prior of 5). Satterthwaite's approximation finds a little more, but errs .079 at .05 and .038
    at .0125 with three seeds and no prior: where seeds look equal by chance, it takes the segments' many
    degrees of freedom.

    Args:
        gap: Gaps, at least 0, of any shape.
        over_seeds: A, likewise.
        df: Degrees of freedom of A, likewise.
        segment_variance: C.
    """
    gap, df = np.asarray(gap), np.asarray(df)
    if segment_variance == 0:
        return stdtr(df, -gap / np.sqrt(over_seeds))
    scale = math.sqrt(segment_variance)
    spread = np.maximum(np.sqrt(over_seeds), scale / _PLACES.size)  # no step is finer than the grid
    return stdtr(df[..., None], (scale * _PLACES - gap[..., None]) / spread[..., None]) @ _DENSITY
