"""Levels of planned looks against published boundaries, and the p-value of all looks so far."""

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.estimates.power import predictive_power
from nlgraft.analysis.estimates.resampling import normal_p
from nlgraft.analysis.estimates.spending import look_levels, overall_p
from nlgraft.analysis.estimates.t_process import EDGES, first_masses, transition


def test_most_of_the_level_is_spent_at_the_first_look():
    first, second, third = look_levels([3, 6, 12], 0.05)
    assert first == pytest.approx(0.8 * 0.05)
    assert 0.005 < third < second < first


@pytest.mark.parametrize("looks", [(3, 6), (3, 5, 10), tuple(range(3, 11))])
def test_few_seeds_reject_as_often_as_the_level_says(looks):
    studies = 200_000
    values = np.random.default_rng(7).standard_normal((studies, looks[-1]))
    p_values = {look: stats.ttest_1samp(values[:, :look], 0.0, axis=1).pvalue for look in looks}
    rejected = overall_p(looks, p_values) <= 0.05
    assert rejected.mean() == pytest.approx(0.05, abs=3 * np.sqrt(0.05 * 0.95 / studies))


def test_the_t_statistic_passes_from_n_to_more_values_as_simulated():
    values = np.random.default_rng(8).standard_normal((400_000, 5))
    before, after = (stats.ttest_1samp(values[:, :n], 0.0, axis=1).pvalue for n in (3, 5))
    edge = 2 * stats.norm.sf(EDGES[30])  # z = 1.5
    masses = first_masses(3) * (np.arange(len(EDGES) - 1) >= 30)
    both = (masses @ transition(3) @ transition(4))[30:].sum()
    assert both == pytest.approx(np.mean((before <= edge) & (after <= edge)), rel=0.02)


def test_a_single_look_has_the_whole_level():
    assert look_levels([5], 0.05) == pytest.approx([0.05])


@pytest.mark.parametrize("level", [0.2, 0.05, 0.05 / 14, 1e-6])
def test_a_p_value_at_the_level_of_a_look_has_the_overall_level(level):
    looks = [3, 5, 10]
    for look, one in zip(looks, look_levels(looks, level), strict=True):
        assert overall_p(looks, {look: one}) == pytest.approx(level, rel=1e-3)


def test_the_strongest_look_counts_and_p_stays_between_its_ends():
    looks = [3, 5, 10]
    found = overall_p(looks, {3: 1e-4, 5: 0.5})
    assert found == overall_p(looks, {3: 1e-4})
    assert overall_p(looks, {3: 0.0}) == pytest.approx(1e-12)
    assert overall_p(looks, {3: 1.0, 5: 1.0, 10: 1.0}) == 1.0


def test_p_without_segments_is_students_and_without_seed_noise_normal():
    assert normal_p(np.array(1.0), 1.0, 0.0, 5) == pytest.approx(2 * stats.t.sf(5**0.5, 4))
    assert normal_p(np.array(2.0), 0.0, 1.0, 5) == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-2)


def test_p_of_both_noises_is_that_of_their_sum():
    rng = np.random.default_rng(0)
    drawn = np.abs(rng.standard_t(4, 400_000) * np.sqrt(1 / 5) + rng.standard_normal(400_000) * np.sqrt(0.3))
    assert normal_p(np.array(1.5), 1.0, 0.3, 5) == pytest.approx(np.mean(drawn >= 1.5), rel=0.02)


def test_predictive_power_by_simulation():
    rng = np.random.default_rng(1)
    now, deviation, size = 0.8, 1.3, 200_000
    # posterior of the truth and of the mean of the new seeds, under a flat prior
    t = rng.standard_t(4, size)
    later = now + t * deviation * np.sqrt(1 / 5 - 1 / 10)
    limit = stats.norm.isf(0.025) * deviation / np.sqrt(10)
    found = predictive_power(now, deviation**2, 0.0, 5, 10, 0.05)
    assert found == pytest.approx(np.mean(np.abs(later) >= limit), abs=0.005)


def test_no_number_of_seeds_decides_against_the_noise_of_segments():
    assert predictive_power(0.5, 0.01, 1.0, 5, 1000, 0.05) < 1e-5
