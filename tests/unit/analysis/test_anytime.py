"""Tests that hold at every number of seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.stats import norm

from nlgraft.analysis.statistics.anytime import PRECISION, anytime_p, half_width, log_evidence


def variance(values: list[float]) -> float:
    return float(np.var(values, ddof=1))


def test_evidence_by_hand() -> None:
    # S = 3, Q = 5, n = 2, c^2 = 1: sqrt(1/3) * (15 / (15 - 9)) ** 1
    found = log_evidence(1.5, variance([1.0, 2.0]), 2, precision=1.0)
    assert math.exp(found) == pytest.approx(math.sqrt(1 / 3) * 15 / 6)


def test_evidence_is_the_ratio_of_two_marginal_likelihoods() -> None:
    values = np.array([0.9, 2.1, 1.4])

    def likelihood(log_sd: float, effect: float) -> float:
        return float(np.prod(norm.pdf(values, effect * math.exp(log_sd), math.exp(log_sd))))

    def with_prior(effect: float, log_sd: float) -> float:
        return likelihood(log_sd, effect) * float(norm.pdf(effect, scale=1 / math.sqrt(PRECISION)))

    grid = np.linspace(-4, 6, 4001)
    without = np.trapezoid([likelihood(one, 0.0) for one in grid], grid)
    above = dblquad(with_prior, -4, 6, -20, 20, epsabs=1e-7)[0]
    assert math.exp(log_evidence(values.mean(), variance(list(values)), 3)) == pytest.approx(
        above / without, rel=2e-3
    )


@pytest.mark.parametrize("segment_variance", [0.0, 0.04])
def test_p_is_the_level_at_which_the_interval_ends_at_zero(segment_variance: float) -> None:
    p = anytime_p(1.3, 0.3, segment_variance, 6)
    assert 0 < p < 0.2
    assert half_width(6, 0.3, segment_variance, math.log(p)) == pytest.approx(1.3)
    if segment_variance == 0:
        assert p == pytest.approx(math.exp(-float(log_evidence(1.3, 0.3, 6))))


def test_noise_of_the_test_set_is_never_averaged_away() -> None:
    widths = [half_width(num, 1.0, 0.25, math.log(0.05)) for num in (10, 1000, 10**6)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == pytest.approx(0.5 * norm.isf(0.0125), rel=0.02)


def test_what_cannot_be_tested() -> None:
    assert anytime_p(1.0, 0.1, 0.0, 1) == 1.0
    assert anytime_p(0.0, 0.1, 0.0, 5) == 1.0
    assert half_width(2, 1.0, 0.0, math.log(0.001)) == math.inf
    assert half_width(3, 0.0, 0.0, math.log(0.05)) == 0.0


@pytest.mark.parametrize("segment_variance", [0.0, 0.1])
def test_one_may_look_after_every_seed(segment_variance: float) -> None:
    num, last, level = 4000, 100, 0.05
    rng = np.random.default_rng(1)
    draws = 3.0 + rng.standard_normal((num, last)) * 2
    test_set = rng.standard_normal(num) * math.sqrt(segment_variance)
    ever = np.zeros(num, dtype=bool)
    for seeds in range(2, last + 1):
        part = draws[:, :seeds]
        deviation = np.sqrt(part.var(axis=1, ddof=1))
        one, reach = (
            half_width(seeds, v, 0.0, math.log(level / (2 if segment_variance else 1))) for v in (1.0, 0.0)
        )
        reach += half_width(10**9, 1e-12, segment_variance, math.log(level)) if segment_variance else 0.0
        ever |= np.abs(part.mean(axis=1) + test_set - 3.0) > one * deviation + reach
    assert ever.mean() < level + 3 * math.sqrt(level * (1 - level) / num)
    fixed = np.abs(draws.mean(axis=1) - 3.0) > norm.isf(level / 2) * 2 / math.sqrt(last)
    assert fixed.mean() > 0.03  # the draws are not too tame to show an error


NOISE = np.array([0.3, -0.1, 0.2, -0.4, 0.1, 0.0, -0.3, 0.35])


@pytest.fixture
def result_at(make_small_study, scored):
    """The result of a study whose second arm gains 1 on average, at a number of seeds."""

    def build(num: int, **changes):
        study = make_small_study(
            seeds=list(range(num)), sequential={"kind": "anytime"}, claims=[], published=[], **changes
        )
        rows = {"baseline": 20 + 0 * NOISE, "arm=patt_eg": 21 + 5 * NOISE}
        return scored(study, {label: {"test/accuracy": row[:num]} for label, row in rows.items()})

    return build


def test_a_study_that_may_be_looked_at_any_time(result_at) -> None:
    found = result_at(8).compare("patt_eg", metric="test/accuracy")
    gains = 1 + 5 * NOISE
    evidence = float(log_evidence(gains.mean(), gains.var(ddof=1), 8))
    assert found.p == pytest.approx(min(1.0, math.exp(-evidence)))
    low, high = found.ci
    reach = half_width(8, gains.var(ddof=1), 0.0, math.log(0.05))
    assert (low, high) == pytest.approx((gains.mean() - reach, gains.mean() + reach))


def test_its_interval_needs_a_few_seeds(result_at) -> None:
    found = result_at(2).compare("patt_eg", metric="test/accuracy")
    assert found.ci is None
    assert "too few seeds" in found.notes[-1]


def test_it_has_no_looks(result_at) -> None:
    result = result_at(4)
    assert result.study.first_seeds == 4
    assert result.granted == {}
    assert "may be added at will" in result.render("md")
