"""What follows from the seeds of a proposal, lost ones included."""

import pytest
from scipy.stats import ttest_1samp

from nlgraft.analysis.data.stream import Pairs, Step
from nlgraft.analysis.policy.proposals import Gain, judge

GOOD = {1: 1.0, 2: 1.2, 3: 0.9, 4: 1.1, 5: 1.0, 6: 1.2}
ENTERED = Step(kind="proposed", stream="s", level=0.02)


def test_gains_decide_where_nothing_is_lost():
    answer = judge(Pairs(GOOD), ENTERED, (), is_last=False)
    assert (answer.decision, answer.reason, answer.gain.mean) == ("KEEP", "", pytest.approx(6.4 / 6))
    worse = {seed: -gain for seed, gain in GOOD.items()}
    assert judge(Pairs(worse), ENTERED, (), is_last=False).decision == "DISCARD"
    unclear = {1: 1.0, 2: -0.6, 3: 0.7}
    assert judge(Pairs(unclear), ENTERED, (), is_last=False).decision == "MORE"
    assert judge(Pairs(unclear), ENTERED, (), is_last=True).decision == "DISCARD"
    assert judge(Pairs({}), ENTERED, (), is_last=False).decision == "MORE"
    none = judge(Pairs(dict.fromkeys(GOOD, 0.0)), ENTERED, (), is_last=False)
    assert (none.decision, none.reason) == ("DISCARD", "it changes nothing: equal values with all 6 seeds")


def test_a_failed_trial_is_run_once_more_before_it_counts():
    failed = {("proposal", 7): "out of memory"}
    first = judge(Pairs(GOOD, failed), ENTERED, (), is_last=False)
    assert (first.decision, first.lost) == ("MORE", (("proposal", 7),))
    assert "out of memory" in first.reason
    second = judge(Pairs(GOOD, failed), ENTERED, [("proposal", 7)], is_last=False)
    assert (second.decision, second.lost) == ("DISCARD", ())
    assert "lost seed 7" in second.reason


def test_a_proposal_is_not_kept_for_the_seeds_that_it_survives():
    diverged = frozenset({("proposal", 7)})
    assert judge(Pairs(GOOD, diverged=diverged), ENTERED, (), is_last=False).decision == "DISCARD"
    both = frozenset({("proposal", 7), ("kept", 7)})
    assert judge(Pairs(GOOD, diverged=both), ENTERED, (), is_last=False).decision == "KEEP"


def test_a_seed_that_what_is_kept_loses_is_left_out():
    failed = {("kept", 7): "diverged"}
    assert judge(Pairs(GOOD, failed), ENTERED, (), is_last=False).decision == "MORE"
    assert judge(Pairs(GOOD, failed), ENTERED, [("kept", 7)], is_last=False).decision == "KEEP"
    assert (
        judge(Pairs(GOOD, diverged=frozenset({("kept", 7)})), ENTERED, (), is_last=False).decision == "KEEP"
    )


def test_nothing_is_decided_before_all_granted_seeds_have_ended():
    answer = judge(Pairs(GOOD, open=frozenset({7})), ENTERED, (), is_last=False)
    assert (answer.decision, answer.lost) == ("MORE", ())


def test_values_that_cannot_be_compared_keep_nothing():
    answer = judge(Pairs(GOOD, why_not="another tokenizer"), ENTERED, (), is_last=False)
    assert (answer.decision, answer.reason) == ("DISCARD", "another tokenizer")


def test_the_interval_of_a_gain_is_that_of_a_t_test():
    gains = list(GOOD.values())
    gain = Gain.of(list(GOOD), gains, alpha=0.1)
    assert gain.interval == pytest.approx(tuple(ttest_1samp(gains, 0.0).confidence_interval(0.9)))
    assert Gain.of([1], [0.3], alpha=0.1).interval is None
    assert Gain.of([1, 2], [0.3, 0.5]).interval is None
