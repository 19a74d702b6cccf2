"""A stream of proposals: evidence by another way, decisions, levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from nlgraft.analysis.policy.proposals import LIMIT, decide, log_evidence_of_gain, stream_level


@pytest.mark.parametrize("gains", [[1.0, 2.0], [0.3, -0.2, 0.9, 0.5], [-1.0, -0.4, -2.0]])
def test_evidence_is_the_ratio_of_likelihoods_over_all_deviations(gains: list[float]) -> None:
    def marginal(size: float) -> float:
        def density(log_sd: float) -> float:
            sd = math.exp(log_sd)
            return float(np.prod(norm.pdf(gains, size * sd, sd)))

        return quad(density, -8, 8, limit=400)[0]

    found = math.exp(log_evidence_of_gain(np.array(gains), [1.5]))
    assert found == pytest.approx(marginal(1.5) / marginal(0.0), rel=1e-3)


def test_evidence_does_not_depend_on_units_or_order() -> None:
    gains = np.array([0.4, 1.1, 0.7, 2.0])
    assert log_evidence_of_gain(100 * gains[::-1]) == pytest.approx(log_evidence_of_gain(gains))


@pytest.mark.parametrize("loss", [0.0, -0.5])
def test_evidence_where_nothing_is_gained_is_one_at_most_on_average(loss: float) -> None:
    gains = loss + np.random.default_rng(2).standard_normal((200_000, 6))
    assert np.exp(log_evidence_of_gain(gains)).mean() < 1.05


def test_decisions() -> None:
    assert decide(np.array([1.0]), 0.05) == "MORE"
    assert decide(np.array([1.0, 1.2, 0.9] * 2), 0.05) == "KEEP"
    assert decide(np.array([1.0, 1.2, 0.9]), 1e-6) == "MORE"
    assert decide(np.array([-1.0, -0.8, -1.3]), 0.05) == "DISCARD"
    assert decide(np.array([1.0, -0.5] * (LIMIT // 2)), 1e-6) == "DISCARD"
    assert decide(np.array([0.0, 0.0]), 0.05) == "MORE"
    assert decide(np.array([1.0, 1.2, 0.9]), 1e-6, limit=3) == "DISCARD"


def test_levels_of_a_stream_that_keeps_nothing_add_up_to_alpha() -> None:
    assert sum(stream_level(before, 0, 0.05) for before in range(100)) == pytest.approx(0.025)
    assert sum(stream_level(before, 0, 0.05) for before in range(100_000)) == pytest.approx(0.05, rel=2e-3)
    assert stream_level(10, 3, 0.05) == pytest.approx(4 * stream_level(10, 0, 0.05))
