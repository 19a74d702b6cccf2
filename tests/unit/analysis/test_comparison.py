"""Defined outcomes of a comparison: seeds one, two and missing, ties, constants, different segments."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates import resampling
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import rounded_all

SIGNATURE = "nrefs:1|case:mixed|tok:13a"


def trial(losses, tokens=None, signature=SIGNATURE):
    """A trial measured by ``loss``: the mean of its segments' losses."""
    losses = np.asarray(losses, dtype=float)
    counts = np.ones_like(losses) if tokens is None else np.asarray(tokens, dtype=float)
    segments = np.stack([losses, counts], axis=1)
    return Measured(float(losses.sum() / counts.sum()), segments, signature)


def noise(seed, shift=0.0, num_segments=50):
    return trial(np.random.default_rng(seed).standard_normal(num_segments) + shift)


def compare(a, b, **settings):
    return Comparer(**settings).contrast("test/loss", "a", "b", [(1.0, a), (-1.0, b)])


def test_two_seeds_and_segments():
    comparison = compare({1: noise(1, 1.0), 2: noise(2, 1.2)}, {1: noise(3), 2: noise(4)})
    assert comparison.scope == "seeds and segments"
    assert comparison.num_seeds == 2
    assert comparison.num_segments == 50
    assert comparison.ci[0] < comparison.difference < comparison.ci[1]
    assert 1 / 1001 <= comparison.p <= 1
    assert comparison.smallest_detectable > 0
    assert comparison.estimate.df == 1
    assert comparison.notes == ()


def test_one_seed_speaks_of_segments_only():
    comparison = compare({1: noise(1, 1.0)}, {1: noise(2)})
    assert comparison.scope == "segments"
    assert comparison.p == comparison.p_segments
    assert comparison.smallest_detectable is None
    assert comparison.seeds_needed is None
    assert not replace(comparison, p_holm=0.001).is_significant(0.05)
    assert "one seed" in comparison.notes[0]


def scored(*values, signature=None):
    """Trials without segments, by seed from 1; None where a seed is missing."""
    return {
        seed: Measured(value, None, signature)
        for seed, value in enumerate(values, start=1)
        if value is not None
    }


SAME = {1: noise(1), 2: noise(2), 3: noise(3)}
OUTCOMES = {
    "one seed": (
        scored(3.0),
        scored(1.0),
        {"difference": 2.0, "ci": None, "p": None, "scope": "nothing"},
        "one seed",
    ),
    "identical systems": (
        SAME,
        SAME,
        {"difference": 0.0, "ci": (0.0, 0.0), "p": 1.0, "p_segments": 1.0, "is_same": True},
        "no variation",
    ),
    "one identical seed": ({1: noise(1)}, {1: noise(1)}, {"p": 1.0}, "one seed"),
    "a constant": (
        scored(10.0, 10.0),
        scored(8.0, 8.0),
        {"difference": 2.0, "ci": (2.0, 2.0), "p": None, "is_exact": True},
        "identical for every seed",
    ),
    "a tie of constants": (scored(8.0, 8.0), scored(8.0, 8.0), {"difference": 0.0, "p": 1.0}, "no variation"),
    "a varying cell": (
        scored(10.0, 11.0),
        scored(8.0, 9.0),
        {"difference": 2.0, "is_exact": False},
        "nothing to test",
    ),
    "missing seeds": (
        scored(1.0, 2.0, 9.0),
        scored(None, 1.0, 8.5, 0.0),
        {"seeds": (2, 3), "difference": 0.75},
        "difference over seeds 2, 3 alone",
    ),
    "no common seed": (
        scored(1.0),
        scored(None, 1.0),
        {"difference": None},
        "no seed finished in both cells",
    ),
    "no number": (scored(math.nan, 1.0), scored(1.0, 0.5), {"seeds": (2,)}, "difference over seed 2 alone"),
    "other signatures": (
        scored(1.0, signature="tok:13a"),
        scored(2.0, signature="tok:zh"),
        {"difference": None},
        "the metric was computed in different ways: tok:13a, tok:zh",
    ),
    "other segments": (
        {1: noise(1), 2: noise(2)},
        {1: noise(3, num_segments=20), 2: noise(4, num_segments=20)},
        {"scope": "seeds"},
        "different segments",
    ),
    "constant segments": (
        {1: trial([2, 2, 2]), 2: trial([2, 2, 2])},
        {1: trial([1, 1, 1]), 2: trial([1, 1, 1])},
        {"ci": (1.0, 1.0), "p": 1 / 1001, "is_same": False},
        "no variation",
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_is_defined_and_why_not_more(name):
    a, b, expected, note = OUTCOMES[name]
    comparison = compare(a, b)
    assert {key: getattr(comparison, key) for key in expected} == expected
    assert any(note in text for text in comparison.notes), comparison.notes
    is_exact = expected.get("is_exact", False)
    assert (comparison.is_exact, comparison.to_json()["is_exact"]) == (is_exact, is_exact)
    corrected = replace(comparison, p_holm=comparison.p)
    assert corrected.is_significant(0.05) == (is_exact or name == "constant segments")
    assert name in ("other segments", "missing seeds") or comparison.smallest_detectable is None


def test_seeds_only_is_the_paired_t_test():
    scores_a = [30.1, 30.9, 31.4, 30.2]
    scores_b = [29.0, 30.0, 30.1, 29.9]
    comparison = compare(
        {seed: Measured(value) for seed, value in enumerate(scores_a)},
        {seed: Measured(value) for seed, value in enumerate(scores_b)},
        samples=20_000,
    )
    expected = stats.ttest_rel(scores_a, scores_b)
    low, high = expected.confidence_interval()
    assert comparison.scope == "seeds"
    assert comparison.p == pytest.approx(expected.pvalue, abs=2e-4)
    assert comparison.ci == pytest.approx((low, high), rel=3e-3)
    assert "no per-segment statistics" in comparison.notes[0]


def test_a_seed_can_decide_nothing_that_one_seed_of_three_contradicts():
    shifts = {1: 1.0, 2: 1.1, 3: -0.9}
    comparison = compare(
        {seed: noise(seed, shift, 400) for seed, shift in shifts.items()},
        {seed: noise(seed + 10, 0.0, 400) for seed in shifts},
    )
    assert comparison.p_segments < 0.01  # the three models differ
    assert comparison.p > 0.2  # the recipes need not


def test_the_order_of_sides_only_turns_the_sign():
    a, b = {1: noise(1, 0.5), 2: noise(2, 0.1)}, {1: noise(3), 2: noise(4)}
    there, back = compare(a, b), compare(b, a)
    assert there.difference == -back.difference
    assert there.p == pytest.approx(back.p, abs=0.02)


def test_comparing_other_cells_before_changes_nothing():
    a, b, c = ({1: noise(k, 0.2 * k), 2: noise(k + 5)} for k in range(3))
    comparer = Comparer()
    comparer.contrast("test/loss", "c", "b", [(1.0, c), (-1.0, b)])
    assert comparer.contrast("test/loss", "a", "b", [(1.0, a), (-1.0, b)]) == compare(a, b)


def test_a_margin_shifts_the_null_hypothesis():
    values = [30.1, 30.9, 31.4, 30.2], [30.3, 31.0, 31.1, 30.9]
    a, b = ({seed: Measured(value) for seed, value in enumerate(side)} for side in values)
    comparison = Comparer(samples=20_000).contrast("test/loss", "a", "b", [(1.0, a), (-1.0, b)], null=-1.0)
    expected = stats.ttest_rel(values[0], np.array(values[1]) - 1.0)
    assert comparison.p == pytest.approx(expected.pvalue, abs=2e-4)
    assert comparison.difference == pytest.approx(np.mean(values[0]) - np.mean(values[1]))
    constant = {1: Measured(3.0), 2: Measured(3.0)}
    assert Comparer().contrast("test/loss", "a", "b", [(1.0, constant), (-1.0, constant)], null=-0.5).is_exact


def test_json_numbers_have_ten_digits_and_no_nan():
    assert rounded_all([1 / 3, math.inf, None, 7]) == [0.3333333333, None, None, 7]


def trials_of(values):
    return {seed: Measured(float(value)) for seed, value in enumerate(values)}


def test_small_p_values_are_not_those_of_the_number_of_resamples():
    """In a family of seven, 1 / 1001 times seven would be .007 at best, and a count of five says little."""
    base = np.array([20.0, 20.2, 19.9, 20.1])
    gaps = 1.0 + 0.02 * np.array([1.0, -0.5, 0.2, -0.7])
    comparison = compare(trials_of(base + gaps), trials_of(base))
    assert comparison.p == pytest.approx(stats.ttest_1samp(gaps, 0.0).pvalue, rel=1e-6)
    assert comparison.p < 1e-5


def test_the_tail_of_both_noises_is_that_of_many_more_resamples():
    rng = np.random.default_rng(4)
    lines = rng.integers(0, 2, (4, 300)).astype(float)
    better = np.clip(lines + (rng.random((4, 300)) < 0.16), 0, 1)

    def trials(rows):
        return {
            seed: Measured(100 * row.mean(), np.stack([row, np.ones_like(row)], axis=1))
            for seed, row in enumerate(rows)
        }

    few, many = (
        Comparer(samples=samples).contrast(
            "test/accuracy", "a", "b", [(1.0, trials(better)), (-1.0, trials(lines))]
        )
        for samples in (300, 200_000)
    )
    assert many.p == pytest.approx(few.p, rel=0.25)
    assert few.p < 1 / 301


def test_a_p_value_that_resamples_reach_is_theirs_to_the_digit():
    rng = np.random.default_rng(5)
    base, gaps = 20 + rng.standard_normal(5), 0.5 + rng.standard_normal(5)
    comparison = compare(trials_of(base + gaps), trials_of(base))
    draws, _ = resampling.spread(gaps, None, 1000)
    assert comparison.p == resampling.p_value(float(np.mean(gaps)), draws)
    assert comparison.p > 0.02
