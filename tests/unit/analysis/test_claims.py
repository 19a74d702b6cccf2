"""Verdicts on claims, and when published figures may stand beside ours."""

from dataclasses import replace

import pytest

from nlgraft.analysis.data.ledger import Look
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.noise_prior import Estimate
from nlgraft.analysis.policy.claims import ClaimResult, signatures_differ
from nlgraft.study.data.claim import Claim

OURS = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
ORDERING = Claim(better="patt", worse="avg", metric="test/bleu", source="Table 2", figures=[37.7, 37.0])


def comparison(difference, p, seeds=(1, 2, 3), variance=None, **more):
    estimate = None if variance is None else Estimate(difference, len(seeds), variance, 2)
    return Comparison(
        metric="test/bleu",
        a="patt",
        b="avg",
        seeds=seeds,
        difference=difference,
        p=p,
        p_holm=p,
        estimate=estimate,
        **more,
    )


def judge(compared, direction="maximize", claim=ORDERING, **more):
    return ClaimResult(
        claim=claim, comparison=compared, values=(2.0, 1.0), direction=direction, alpha=0.05, **more
    )


NO_WORSE = Claim(better="patt", worse="avg", metric="test/bleu", source="T2", margin=0.5)
MISSING = Comparison(metric="test/bleu", a="patt", b="avg", notes=("no seed finished in both cells",))
EXACT = "in the claimed direction, identical for every seed"


@pytest.mark.parametrize(
    ("compared", "direction", "claim", "verdict", "explanation"),
    [
        (comparison(1.0, 0.01), "maximize", ORDERING, "supported", "in the claimed direction"),
        (comparison(-1.0, 0.01), "minimize", ORDERING, "supported", "in the claimed direction"),
        (comparison(-1.0, 0.01), "maximize", ORDERING, "contradicted", "in the other direction"),
        (comparison(-127e6, None, is_exact=True), "minimize", ORDERING, "supported", EXACT),
        (comparison(1.0, None, is_exact=True), "minimize", ORDERING, "contradicted", "identical for every"),
        (comparison(0.01, 0.9), "maximize", ORDERING, "undecided", "its looks will hardly decide it"),
        (comparison(0.0, None, is_same=True), "maximize", ORDERING, "undecided", "every score is the same"),
        (comparison(5.0, 0.001, (1,)), "maximize", ORDERING, "undecided", "one seed decides nothing"),
        (replace(comparison(1.0, 0.01), p_holm=None), "maximize", ORDERING, "undecided", "hardly decide it"),
        (MISSING, "maximize", ORDERING, "undecided", "no seed finished in both cells"),
        (comparison(-0.2, 0.01, null=-0.5), "maximize", NO_WORSE, "supported", "not worse by more than 0.5"),
        (comparison(-0.7, 0.01, null=-0.5), "maximize", NO_WORSE, "contradicted", "worse by more than 0.5"),
        (comparison(0.2, 0.01, null=0.5), "minimize", NO_WORSE, "supported", "not worse by more than 0.5"),
        (comparison(-0.2, 0.2, null=-0.5), "maximize", NO_WORSE, "undecided", "hardly decide it"),
    ],
)
def test_verdicts_and_their_reasons(compared, direction, claim, verdict, explanation):
    answer = judge(compared, direction, claim)
    assert answer.verdict == verdict
    assert explanation in answer.explanation
    assert answer.seeds_more is None


def test_undecided_says_how_many_seeds_more():
    looks = {6: 0.01, 12: 0.01}
    compared = comparison(4.0, 0.06, variance=0.03, later_levels=looks)
    assert judge(compared).seeds_more == 3, "the first look that probably decides"
    assert judge(compared).text == "undecided (3 seeds more)"
    seen = {3: Look(difference=0.01, p=0.06)}
    small = replace(compared, estimate=replace(compared.estimate, difference=0.01), looks=seen)
    assert judge(small).seeds_more is None, "none of its looks does"
    assert compared.seeds_needed == 6
    assert replace(compared, standing="better").seeds_needed is None, "the verdict is given"


@pytest.mark.parametrize(
    ("published", "computed", "reason"),
    [
        (OURS.replace("2.6.0", "1.5.1"), OURS, ""),
        ("tok:13a|case:mixed", OURS, ""),
        ("tok:zh", OURS, "signatures differ (tok:zh, ours 13a)"),
        ("case:lc|tok:13a", OURS, "signatures differ (case:lc, ours mixed)"),
        ("tool not stated", "tok:13a", "signatures differ (tool not stated, ours tok:13a)"),
        ("accuracy|points", "accuracy|points", ""),
        ("accuracy|points", "accuracy", "signatures differ (points, ours accuracy)"),
        (None, OURS, "the paper does not state how its metric was computed"),
        ("tok:13a", None, "our metric has no signature"),
    ],
)
def test_figures_are_compared_only_when_signatures_are(published, computed, reason):
    assert signatures_differ(published, computed) == reason


@pytest.mark.parametrize(
    ("difference", "p", "verdict", "text"),
    [
        (1.0, 0.01, "same direction", "same direction, other data"),
        (-1.0, 0.01, "opposite direction", "opposite direction, other data"),
        (5.0, 0.2, "undecided", "undecided (3 seeds more), other data"),
    ],
)
def test_other_data_neither_support_nor_contradict(difference, p, verdict, text):
    compared = comparison(difference, p, variance=0.03, later_levels={6: 0.01})
    answer = judge(compared, other_data="downstream.test is b", why_not="other data: downstream.test is b")
    assert (answer.verdict, answer.text) == (verdict, text)
    assert answer.figures == ()
    document = answer.to_json()
    assert (document["verdict"], document["answer"], document["figures"]) == (verdict, text, [])
    assert document["other_data"] == "downstream.test is b"


def test_json_carries_the_published_figures():
    document = judge(comparison(1.0, 0.01)).to_json()
    assert document["text"] == "patt better than avg on test/bleu"
    assert NO_WORSE.text == "patt no worse than avg on test/bleu by more than 0.5"
    assert (document["figures"], document["ours"], document["is_comparable"]) == ([37.7, 37.0], [2, 1], True)
