"""A stream of proposals: p-values by another way, decisions, levels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.stream import Proposal, Step
from nlgraft.analysis.policy.proposals import LOOKS, decide, noise_of, p_of_gain, stream_level

STEP = Step(kind="decided", stream="s", decision="DISCARD")


def test_the_first_look_is_a_one_sided_t_test_at_half_of_the_level():
    gains = [0.4, 1.1, 0.7]
    assert p_of_gain([*gains, -5.0, -5.0], None) == p_of_gain(gains, None)
    assert p_of_gain(gains[:2], None) == 1.0
    for others in (gains, [100 * gain for gain in gains], [-gain for gain in gains], [0.4, -0.35, 0.0]):
        p = stats.ttest_1samp(others, 0.0, alternative="greater").pvalue
        assert p_of_gain(others, None) == pytest.approx(min(1.0, 2 * p))


def test_known_noise_makes_a_gain_clearer_unless_it_does_not_fit():
    gains = [0.4, 1.1, 0.7]
    quiet = NoisePrior(6.0, 0.1)
    error = math.sqrt((6 * 0.1 + 2 * np.var(gains, ddof=1)) / 8 / 3)
    assert p_of_gain(gains, quiet) == pytest.approx(stats.t.sf(np.mean(gains) / error, 8) * 2)
    assert p_of_gain(gains, replace(quiet, variance=1e-4)) == p_of_gain(gains, None)


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_where_nothing_is_gained_no_more_is_kept_than_the_level(level):
    rng = np.random.default_rng(2)
    earlier = [Proposal(STEP, replace(STEP, gains=tuple(rng.standard_normal(3)))) for _ in range(8)]
    prior = noise_of(earlier)
    kept = [
        p_of_gain(gains, replace(prior, variance=1.0)) <= level for gains in rng.standard_normal((3000, 12))
    ]
    assert np.mean(kept) < level + 3 * math.sqrt(level / 3000)


def test_only_what_is_decided_says_something_about_noise():
    undecided = Proposal(replace(STEP, kind="proposed"))
    assert noise_of([undecided]) is None
    noise = noise_of([undecided, Proposal(STEP, replace(STEP, gains=(1.0, 3.0, 2.0)))])
    assert noise is not None


def test_decisions():
    assert decide([1.0], 0.05) == "MORE"
    assert decide([1.0, 1.2, 0.9], 0.05) == "KEEP"
    assert decide([1.0, 1.2, 0.9], 1e-6) == "MORE"
    assert decide([1.0, 1.2, 0.9] * 4, 1e-6) == "KEEP"
    assert decide([-1.0, -0.8, -1.3], 0.05) == "DISCARD"
    assert decide([1.0, 0.5] * (LOOKS[-1] // 2), 1e-30) == "DISCARD"
    assert decide([0.0, 0.0], 0.05) == "MORE"
    assert decide([1.0, 1.2, 0.9], 1e-6, limit=3) == "DISCARD"


def test_levels_of_a_stream_that_keeps_nothing_add_up_to_one_in_ten():
    assert sum(stream_level(before, 0, 0.05) for before in range(20)) == pytest.approx(0.05)
    assert sum(stream_level(before, 0, 0.05) for before in range(100_000)) == pytest.approx(0.1, rel=2e-3)
    assert stream_level(10, 3, 0.05) == pytest.approx(4 * stream_level(10, 0, 0.05))
