"""Power against textbook values: noncentral t where seeds are all the noise, normal where segments are."""

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.estimates.noise_prior import Estimate, tail
from nlgraft.analysis.estimates.power import detectable_interval, power, smallest_detectable


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.05 / 14])
def test_seed_noise_alone_is_the_paired_t_test(num_seeds, level):
    shift = 1.7
    estimate = power(shift, Estimate(0.0, num_seeds, 1.0, num_seeds - 1), level)
    limit = stats.t.ppf(1 - level / 2, num_seeds - 1)
    exact = stats.nct.sf(limit, num_seeds - 1, shift * np.sqrt(num_seeds))
    assert estimate == pytest.approx(exact, abs=0.012)


def test_segment_noise_alone_is_the_normal_test():
    # (1.95996 + 0.84162) * 2, whatever the number of seeds
    assert smallest_detectable(Estimate(0.0, 3, 0.0, 2, 4.0), 0.05) == pytest.approx(5.6032, abs=1e-3)
    assert smallest_detectable(Estimate(0.0, 3, 0.0, 2), 0.05) == 0.0


def test_the_smallest_detectable_difference_has_the_power():
    noise = Estimate(0.0, 4, 3.0, 3, 1.0)
    assert power(smallest_detectable(noise, 0.01), noise, 0.01) == pytest.approx(0.8, abs=1e-6)


def test_few_seeds_know_the_detectable_difference_badly():
    noise = Estimate(0.0, 3, 3.0, 2)
    low, high = detectable_interval(noise, 0.05)
    point = smallest_detectable(noise, 0.05)
    # the variance lies between 2 * 3 / 7.3778 and 2 * 3 / 0.050636
    assert (low / point, high / point) == pytest.approx(
        (np.sqrt(2 / 7.3778), np.sqrt(2 / 0.050636)), rel=1e-3
    )


def test_p_without_segments_is_students_and_without_seed_noise_normal():
    assert 2 * tail(1.0, 1 / 5, 4) == pytest.approx(2 * stats.t.sf(5**0.5, 4))
    assert 2 * tail(2.0, 0.0, 4, 1.0) == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-2)


def test_p_of_both_noises_is_that_of_their_sum():
    rng = np.random.default_rng(0)
    drawn = np.abs(rng.standard_t(4, 400_000) * np.sqrt(1 / 5) + rng.standard_normal(400_000) * np.sqrt(0.3))
    assert 2 * tail(1.5, 1 / 5, 4, 0.3) == pytest.approx(np.mean(drawn >= 1.5), rel=0.02)
