"""Power against textbook values: noncentral t where seeds are all the noise, normal where segments are."""

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.estimates.power import (
    MAX_SEEDS,
    detectable_interval,
    power,
    predictive_power,
    seeds_needed,
    smallest_detectable,
)
from nlgraft.analysis.estimates.resampling import normal_p


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.05 / 14])
def test_seed_noise_alone_is_the_paired_t_test(num_seeds, level):
    shift = 1.7
    estimate = power(shift, np.array(1.0), 0.0, num_seeds, level)
    limit = stats.t.ppf(1 - level / 2, num_seeds - 1)
    exact = stats.nct.sf(limit, num_seeds - 1, shift * np.sqrt(num_seeds))
    assert estimate == pytest.approx(exact, abs=0.012)


def test_segment_noise_alone_is_the_normal_test():
    # (1.95996 + 0.84162) * 2, whatever the number of seeds
    assert smallest_detectable(0.0, 4.0, 3, 0.05) == pytest.approx(5.6032, abs=1e-3)
    assert smallest_detectable(0.0, 0.0, 3, 0.05) == 0.0


def test_the_smallest_detectable_difference_has_the_power():
    detectable = smallest_detectable(3.0, 1.0, 4, 0.01)
    assert power(detectable, np.array(3.0), 1.0, 4, 0.01) == pytest.approx(0.8, abs=1e-6)


def test_few_seeds_know_the_detectable_difference_badly():
    low, high = detectable_interval(3.0, 0.0, 3, 0.05)
    point = smallest_detectable(3.0, 0.0, 3, 0.05)
    # the variance lies between 2 * 3 / 7.3778 and 2 * 3 / 0.050636
    assert (low / point, high / point) == pytest.approx(
        (np.sqrt(2 / 7.3778), np.sqrt(2 / 0.050636)), rel=1e-3
    )


@pytest.mark.parametrize("difference", [0.0, 1.0, -1.0])
def test_predictive_power_is_students_t_around_what_was_seen(difference):
    """Three of six seeds and V = 6: the mean moves by t(2) * sqrt(6 (1/3 - 1/6)) = t(2); the limit is z."""
    predicted = predictive_power(difference, 6.0, 0.0, 3, 6, 0.05)

    def below(x):  # the distribution function of t with two degrees of freedom
        return 0.5 + x / (2 * np.sqrt(2 + x**2))

    assert predicted == pytest.approx(below(difference - 1.959964) + below(-difference - 1.959964), abs=1e-6)


def test_seeds_needed_is_the_first_number_that_is_enough():
    num_seeds = seeds_needed(1.0, 1.0, 0.0, 100_000, 0.05)
    assert num_seeds == 10  # a paired t-test of one standard deviation at power .8 needs 10
    # a variance that three seeds estimated may as well be larger
    assert seeds_needed(1.0, 1.0, 0.0, 3, 0.05) > seeds_needed(1.0, 1.0, 0.0, 5, 0.05) > num_seeds
    assert seeds_needed(1.0, 1.0, 0.0, 100_000, 0.05 / 14) == 19
    assert seeds_needed(-1.0, 1.0, 0.0, 100_000, 0.05) == num_seeds


def test_no_number_of_seeds_helps_a_small_test_set():
    assert seeds_needed(0.0, 1.0, 0.0, 3, 0.05) is None
    assert seeds_needed(0.1, 1.0, 1.0, 3, 0.05) is None
    assert MAX_SEEDS == 1000


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
    predicted = predictive_power(now, deviation**2, 0.0, 5, 10, 0.05)
    assert predicted == pytest.approx(np.mean(np.abs(later) >= limit), abs=0.005)


def test_no_number_of_seeds_decides_against_the_noise_of_segments():
    assert predictive_power(0.5, 0.01, 1.0, 5, 1000, 0.05) < 1e-5
