"""Levels of looks, by drawing the seeds of studies."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.estimates.looks import FIRST, look_levels, p_over_looks

PLANS = [(3, 6, 12), (2, 4, 8), (5, 10), (2, 3, 4, 5)]


@cache
def p_values(looks, prior_df, effect=0.0):
    """Moderated t tests of 200,000 studies at each look; the prior is a variance that was seen before."""
    rng = np.random.default_rng(20261127)
    gains = rng.standard_normal((200_000, looks[-1])) + effect
    earlier = 2 * rng.standard_gamma(prior_df / 2, 200_000) if prior_df else 0.0
    tests = {}
    for look in looks:
        seen = gains[:, :look]
        df = prior_df + look - 1
        variance = (earlier + (look - 1) * seen.var(axis=1, ddof=1)) / df
        tests[look] = 2 * stats.t.sf(np.abs(seen.mean(axis=1)) / np.sqrt(variance / look), df)
    return tests


def rejects_at(levels, tests):
    """Whether any look does, of p-values by look."""
    return np.any([p <= level for level, p in zip(levels, tests.values(), strict=True)], axis=0)


@pytest.mark.parametrize("looks", PLANS)
@pytest.mark.parametrize("prior_df", [0.0, 5.0])
@pytest.mark.parametrize("level", [0.5, 0.05, 0.0125])
def test_all_looks_together_err_at_their_level(looks, prior_df, level):
    tests = p_values(looks, prior_df)
    levels = look_levels(looks, level, prior_df)
    assert levels[0] == pytest.approx(FIRST * level)
    assert len(set(levels[1:])) == 1
    errs = rejects_at(levels, tests)
    assert errs.mean() == pytest.approx(level, abs=3 * (level / 200_000) ** 0.5)


@pytest.mark.parametrize("looks", PLANS)
def test_the_p_value_is_the_smallest_level_that_rejects(looks):
    tests = {look: p[:300] for look, p in p_values(looks, 5.0, 1.0).items()}
    p = p_over_looks(tests, looks, 5.0)
    for level in (0.2, 0.05, 0.001):
        levels = look_levels(looks, level, 5.0)
        rejects = rejects_at(levels, tests)
        near = np.abs(np.log(p / level)) < 1e-3
        assert (rejects == (p <= level))[~near].all()


def test_levels_grow_with_the_level_and_no_more_is_taken_than_was_seen():
    levels = np.array([look_levels((3, 6, 12), level) for level in np.geomspace(1e-7, 0.99, 60)])
    assert (np.diff(levels, axis=0) > 0).all()
    first = float(p_over_looks({3: 0.03}, (3, 6, 12)))
    assert first == pytest.approx(0.03 / FIRST)
    assert float(p_over_looks({3: 0.03, 6: 0.5}, (3, 6, 12))) == first
    assert float(p_over_looks({3: 0.9, 6: 1e-9, 12: 0.5}, (3, 6, 12))) < 1e-7
    assert float(p_over_looks({3: 0.9}, (3, 6, 12))) == 1.0


def test_one_look_is_a_test_like_any_other():
    assert look_levels((4,), 0.05, 3.0) == [0.05]
    assert float(p_over_looks({4: 0.2}, (4,), 3.0)) == 0.2


def test_very_small_levels_of_few_seeds_leave_no_more_than_larger_ones():
    """Where tails are heavy the share of later looks is that of Bonferroni, within a factor of two."""
    for level in (1e-4, 1e-6):
        assert look_levels((2, 4, 8), level)[1] / level < 2 * (1 - FIRST) / 2
