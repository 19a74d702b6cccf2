"""What follows from the seeds of a proposal, lost ones included."""

import pytest
from scipy.stats import ttest_1samp

from nlgraft.analysis.data.stream import Pairs, Step
from nlgraft.analysis.policy.proposals import Gain, judge

GOOD = {1: 1.0, 2: 1.2, 3: 0.9, 4: 1.1, 5: 1.0, 6: 1.2}
ENTERED = Step(kind="proposed", stream="s", level=0.02)


def answer_to(gains=GOOD, failed=None, again=(), *, is_last=False, **pairs):
    return judge(Pairs(gains, failed or {}, **pairs), ENTERED, again, is_last=is_last)


def test_gains_decide_where_nothing_is_lost():
    answer = answer_to()
    assert (answer.decision, answer.reason, answer.gain.mean) == ("KEEP", "", pytest.approx(6.4 / 6))
    worse = {seed: -gain for seed, gain in GOOD.items()}
    assert answer_to(worse).decision == "DISCARD"
    unclear = {1: 1.0, 2: -0.6, 3: 0.7}
    assert answer_to(unclear).decision == "MORE"
    assert answer_to(unclear, is_last=True).decision == "DISCARD"
    assert answer_to({}).decision == "MORE"
    none = answer_to(dict.fromkeys(GOOD, 0.0))
    assert (none.decision, none.reason) == ("DISCARD", "it changes nothing: equal values with all 6 seeds")


def test_a_failed_trial_is_run_once_more_before_it_counts():
    failed = {("proposal", 7): "out of memory"}
    first = answer_to(GOOD, failed)
    assert (first.decision, first.lost) == ("MORE", (("proposal", 7),))
    assert "out of memory" in first.reason
    second = answer_to(GOOD, failed, [("proposal", 7)])
    assert (second.decision, second.lost) == ("DISCARD", ())
    assert "lost seed 7" in second.reason


def test_a_proposal_is_not_kept_for_the_seeds_that_it_survives():
    diverged = frozenset({("proposal", 7)})
    assert answer_to(diverged=diverged).decision == "DISCARD"
    both = frozenset({("proposal", 7), ("kept", 7)})
    assert answer_to(diverged=both).decision == "KEEP"


def test_a_seed_that_what_is_kept_loses_is_left_out():
    failed = {("kept", 7): "diverged"}
    assert answer_to(GOOD, failed).decision == "MORE"
    assert answer_to(GOOD, failed, [("kept", 7)]).decision == "KEEP"
    assert answer_to(diverged=frozenset({("kept", 7)})).decision == "KEEP"


def test_nothing_is_decided_before_all_granted_seeds_have_ended():
    answer = answer_to(open=frozenset({7}))
    assert (answer.decision, answer.lost) == ("MORE", ())


def test_values_that_cannot_be_compared_keep_nothing():
    answer = answer_to(why_not="another tokenizer")
    assert (answer.decision, answer.reason) == ("DISCARD", "another tokenizer")


def test_the_interval_of_a_gain_is_that_of_a_t_test():
    expected = ttest_1samp(list(GOOD.values()), 0.0).confidence_interval(0.9)
    assert Gain.of(GOOD, alpha=0.1).interval == pytest.approx(tuple(expected))
    assert Gain.of({1: 0.3}, alpha=0.1).interval is None
    assert Gain.of({1: 0.3, 2: 0.5}).interval is None
