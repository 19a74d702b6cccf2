"""Seeds that a question needs, against studies that are run to their end."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.noise_prior import moderated
from nlgraft.analysis.estimates.power import PROBABILITY, decided_by, likely_look

LOOKS = (3, 6, 12)


def with_moments(mean, deviation):
    """Three gains of a mean and a deviation."""
    return [mean - deviation, mean, mean + deviation]


def seeds_needed(now, looks, level, prior=None):
    """Ask for the likely look among those that are left."""
    levels = zip(looks, look_levels(looks, level, prior.df if prior else 0.0), strict=True)
    return likely_look(now, {look: at for look, at in levels if look > now.num_seeds})


@pytest.mark.parametrize("prior", [None, NoisePrior(5.0, 1.0)])
@pytest.mark.parametrize("segments", [0.0, 0.2])
def test_the_prediction_is_the_share_of_studies_that_decide(prior, segments):
    """A study goes on with any effect and variance that its three seeds leave open."""
    rng = np.random.default_rng(20261127)
    gains = with_moments(1.4, 0.8)
    now = replace(moderated(gains, prior), segment_variance=segments)
    rejects = []
    for _ in range(2000):
        deviation = math.sqrt(now.df * now.variance / rng.chisquare(now.df))
        effect = rng.normal(1.4, deviation / math.sqrt(3))
        after = moderated([*gains, *rng.normal(effect, deviation, 9)], prior)
        after = replace(after, segment_variance=segments)
        rejects.append((after.p or 0) <= 0.01)
    assert decided_by(now, 12, 0.01) == pytest.approx(np.mean(rejects), abs=0.05)


def test_more_seeds_may_show_that_a_difference_is_below_a_margin():
    now = moderated(with_moments(0.0, 1.0))
    rng = np.random.default_rng(20261127)
    decided = []
    for _ in range(3000):
        deviation = math.sqrt(2 / rng.chisquare(2))
        effect = rng.normal(0.0, deviation / math.sqrt(3))
        gains = [*with_moments(0.0, 1.0), *rng.normal(effect, deviation, 9)]
        is_equal = all(moderated([gain + shift for gain in gains]).p < 0.1 for shift in (-1.5, 1.5))
        decided.append(moderated(gains).p <= 0.05 or (is_equal and abs(np.mean(gains)) < 1.5))
    assert decided_by(now, 12, 0.05, 1.5) == pytest.approx(np.mean(decided), abs=0.03)
    assert decided_by(now, 12, 0.05, 1.5) > decided_by(now, 12, 0.05) + 0.3


def test_one_more_seed_is_one_more_observation():
    now = moderated(with_moments(1.0, 1.0))
    rng = np.random.default_rng(1)
    further = 1.0 + rng.standard_t(2, 4000) * math.sqrt(1 + 1 / 3)
    rejects = [stats.ttest_1samp([0.0, 1.0, 2.0, difference], 0).pvalue <= 0.1 for difference in further]
    assert decided_by(now, 4, 0.1) == pytest.approx(np.mean(rejects), abs=0.03)


def test_the_first_look_that_is_likely_to_decide_is_named():
    prior = NoisePrior(8.0, 1.0)
    assert seeds_needed(moderated(with_moments(2.1, 0.9), prior), (3, 9, 12), 0.006, prior) == 9
    middling = moderated(with_moments(2.2, 1.0))
    assert seeds_needed(middling, LOOKS, 0.05) == 12
    assert seeds_needed(middling, (3, 6), 0.05) is None
    assert seeds_needed(moderated(with_moments(0.1, 1.0)), LOOKS, 0.05) is None
    assert seeds_needed(moderated([0.5, 1.5] * 6), LOOKS, 0.05) is None, "there is no later look"


def test_noise_of_the_test_lines_is_not_averaged_away_by_seeds():
    gains = with_moments(3.0, 1.2)
    assert seeds_needed(replace(moderated(gains), segment_variance=4.0), (3, 100, 1000), 0.05) is None


def test_a_prior_shortens_the_way():
    gains = with_moments(1.3, 1.0)
    assert seeds_needed(moderated(gains), LOOKS, 0.05) is None
    prior = NoisePrior(8.0, 0.5)
    assert seeds_needed(moderated(gains, prior), LOOKS, 0.05, prior) in LOOKS[1:]


def test_advice_holds_where_effects_are_of_any_size():
    rng = np.random.default_rng(5)
    prior = NoisePrior(4.0, 1.0)
    followed = []
    for _ in range(1500):
        deviation = math.sqrt(4 / rng.chisquare(4))
        gains = deviation * (2 * rng.standard_normal() + rng.standard_normal(12))
        now = moderated(gains[:3], prior)
        needed = seeds_needed(now, LOOKS, 0.0125, prior) if (now.p or 0) > 0.01 else None
        if needed is not None:
            after = moderated(gains[:needed], prior)
            followed.append((after.p or 0) <= 0.0018)  # the later looks' share of .0125
    assert len(followed) > 100
    assert PROBABILITY - 0.05 < np.mean(followed) < 0.95
