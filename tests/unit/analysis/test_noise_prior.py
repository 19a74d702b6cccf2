"""Moderated t tests against scipy, against Smyth's model, and by their error rates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import polygamma

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.estimates.noise_prior import (
    StudyVariance,
    applicable,
    is_like,
    moderated,
    prior_of,
)

GAINS = [0.3, 0.9, 0.1, 0.7, 0.4]
SEED = 20261127


def test_a_prior_counts_as_so_many_further_seeds_of_known_variance():
    """Variance and degrees of freedom are those of two samples pooled, one of which is the prior."""
    earlier = np.array([-2.0, 1.0, 0.5, 0.5])
    prior = NoisePrior(df=3.0, variance=float(earlier.var(ddof=1)))
    estimate = moderated(GAINS, prior)
    squares = ((np.array(GAINS) - np.mean(GAINS)) ** 2).sum() + (earlier**2).sum()
    error = math.sqrt(squares / 7 / 5)
    assert estimate.df == 7
    assert estimate.p == pytest.approx(2 * stats.t.sf(np.mean(GAINS) / error, 7))


def test_segment_noise_is_joined_as_an_error_of_its_own():
    """The p-value is the share of drawn errors beyond the difference (Behrens and Fisher)."""
    estimate = replace(moderated(GAINS), segment_variance=0.01)
    rng = np.random.default_rng(SEED)
    over_seeds = np.std(GAINS, ddof=1) / math.sqrt(5) * rng.standard_t(4, 400_000)
    errors = over_seeds + 0.1 * rng.standard_normal(400_000)
    assert estimate.p == pytest.approx(float(np.mean(np.abs(errors) > np.mean(GAINS))), rel=0.05)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1.0])
def test_few_seeds_and_noisy_segments_do_not_err(ratio):
    """Where seeds look equal by chance, many segments do not make them certain."""
    rng = np.random.default_rng(SEED)
    seeds = rng.standard_normal((8000, 3)) + math.sqrt(ratio / 3) * rng.standard_normal((8000, 1))
    estimates = [replace(moderated(row), segment_variance=ratio / 3) for row in seeds]
    errors = [(estimate.p or 0) <= 0.0125 for estimate in estimates]
    assert np.mean(errors) < 0.0135


@pytest.mark.parametrize("num_arms", [1, 2, 4, 8])
def test_degrees_of_freedom_of_arms_with_a_common_baseline(num_arms):
    """A pooled variance with f degrees of freedom varies by 2 / f around its square."""
    scores = np.random.default_rng(SEED).standard_normal((6000, num_arms + 1, 4))
    studies = [StudyVariance.of(list(study_scores[1:] - study_scores[0])) for study_scores in scores]
    variances = np.array([study.variance for study in studies])
    assert studies[0].df == pytest.approx(4 * num_arms / (num_arms + 3) * 3)
    assert 2 * variances.mean() ** 2 / variances.var() == pytest.approx(studies[0].df, rel=0.1)
    assert variances.mean() == pytest.approx(2.0, rel=0.02)


def test_arms_of_one_seed_say_nothing_about_noise():
    assert StudyVariance.of([[1.0], GAINS]) == StudyVariance.of([GAINS])
    assert StudyVariance.of([[1.0]]).df == 0
    assert prior_of([StudyVariance.of([[1.0]]), StudyVariance(0.0, 4.0)]) is None


def test_many_studies_give_the_prior_that_made_them():
    rng = np.random.default_rng(SEED)
    true = 9.0 * 6.0 / rng.chisquare(6.0, 4000)
    dfs = rng.choice([2.0, 8.0], 4000)
    drawn = true * rng.chisquare(dfs) / dfs
    prior = prior_of(map(StudyVariance, drawn, dfs), weight=1.0)
    assert prior.df == pytest.approx(6.0, rel=0.12)
    assert prior.variance == pytest.approx(9.0, rel=0.04)


def test_one_study_moderates_by_its_own_variance_and_never_by_more_than_it_knows():
    prior = prior_of([StudyVariance(4.0, 4.6)], weight=1.0)
    miss = 0.1 + 0.1 + float(polygamma(1, 2.3))
    assert float(polygamma(1, prior.df / 2)) == pytest.approx(miss)
    assert prior.df < 4.6
    assert prior.variance == pytest.approx(4.0, rel=0.2)


def test_little_agreement_of_studies_leaves_little_weight():
    equal = prior_of([StudyVariance(1.0, 4.6)] * 5)
    unequal = prior_of([StudyVariance(10.0**power, 4.6) for power in range(-2, 3)])
    assert 7 < equal.df < 10
    assert unequal.df < 0.5


def test_a_study_far_noisier_than_the_earlier_ones_does_not_fit():
    prior = NoisePrior(8.0, 1.0)
    limit = float(stats.f.isf(0.1, 4.6, 8.0))
    assert is_like(prior, StudyVariance(limit * 0.999, 4.6))
    assert not is_like(prior, StudyVariance(limit * 1.001, 4.6))
    assert is_like(prior, StudyVariance(0.001, 4.6))


def test_a_study_that_a_prior_does_not_fit_is_moderated_by_its_own_other_arms():
    prior = NoisePrior(8.0, 1.0, ("a",))
    noisy = StudyVariance(9.0, 4.6)
    assert applicable(prior, StudyVariance(1.2, 4.6), 3) is prior
    pooled = applicable(prior, noisy, 3)
    assert (pooled.df, pooled.variance) == (pytest.approx(2.6), 9.0)
    assert applicable(NoisePrior(1.0, 1.0), StudyVariance(99.0, 4.6), 3) == NoisePrior(1.0, 99.0)
    quiet = StudyVariance(0.05, 4.6)
    assert applicable(prior, quiet, 3).variance == 0.05, "the prior's 1.0 would hide what four arms agree on"
    assert applicable(prior, StudyVariance(0.05, 2.0), 3) is prior
    assert applicable(prior, StudyVariance.of([[0.0, 9.0, -9.0]]), 3) is None, "one arm knows no more"


def test_equal_gains_are_not_certain_where_other_studies_vary():
    assert moderated([1.0, 1.0, 1.0]).p is None
    assert moderated([0.0, 0.0]).p == 1.0
    p = moderated([1.0, 1.0, 1.0], NoisePrior(2.0, 1.0)).p
    assert p == pytest.approx(2 * stats.t.sf(math.sqrt(3 * 2), 4))


@pytest.mark.parametrize(("spread", "power"), [(0.0, 0.45), (0.3, 0.36)])
def test_errors_and_power_with_a_prior_of_five_studies(spread, power):
    """Four arms of three seeds, Holm, arms that differ by .3; a plain t test has .15 of power."""
    rng = np.random.default_rng(SEED)

    def study():
        deviations = np.exp(spread * rng.standard_normal() + 0.3 * rng.standard_normal((5, 1)))
        scores = rng.standard_normal((5, 3)) * deviations
        return scores[1:] - scores[0], np.hypot(deviations[1:], deviations[0])

    wrong = right = 0
    for _ in range(500):
        prior = prior_of(StudyVariance.of(study()[0]) for _ in range(5))
        differences, deviations = study()
        usable = applicable(prior, StudyVariance.of(differences), 3)
        wrong += min(moderated(arm, usable).p or 0 for arm in differences) <= 0.05 / 4
        right += (moderated(differences[0] + 2 * deviations[0], usable).p or 0) <= 0.05 / 4
    assert wrong / 500 < 0.05
    assert right / 500 > power
