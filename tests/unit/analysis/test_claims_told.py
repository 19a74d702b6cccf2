"""Claims of every kind in one result: their verdicts in every format."""

import numpy as np
import pytest

from nlgraft.analysis.policy.rules import FIRST

ARM = {"target": "arm", "levels": ["random_init", "patt_eg"], "baseline": "random_init"}
LR = {"target": "lr", "levels": [1e-3, 1e-2], "baseline": 1e-3}
TABLE = {
    "source": "T1",
    "metric": "test/bleu",
    "signature": "tok:13a",
    "data": {"corpus": "files"},
    "values": {"baseline": 30.0, "patt_eg": 31.0, "lr=0.01": 30.0, "arm=patt_eg, lr=0.01": 36.0},
}


@pytest.fixture
def crossed(make_study, scored):
    """Four cells of five seeds each, with means 30.1, 31, 30 and 36 and hardly any noise."""
    study = make_study(
        data={"corpus": "files"},
        factors={"arm": ARM, "lr": LR},
        design={"kind": "full"},
        published=[TABLE],
        claims=[
            {"better": "patt_eg", "worse": "baseline"},
            {"better": "lr=0.01", "worse": "baseline", "margin": 0.5},
            {
                "better": "baseline",
                "worse": "lr=0.01",
                "metric": "test/bleu",
                "source": "text",
                "data": {"corpus": "f*"},
                "margin": 0.02,
            },
            {"better": "arm=patt_eg, lr=0.01", "worse": "lr=0.01", "exceeds": ["patt_eg", "baseline"]},
        ],
        analysis={"family": "claims"},
        seeds=[1, 2, 3, 4, 5],
    )
    rng = np.random.default_rng(3)
    means = {"baseline": 30.1, "arm=patt_eg": 31, "lr=0.01": 30, "arm=patt_eg, lr=0.01": 36}
    noise = {label: 0.01 * rng.standard_normal(5) for label in means}
    return scored(study, {label: {"test/bleu": mean + noise[label]} for label, mean in means.items()})


def test_claims_of_every_kind_are_one_family(crossed):
    answers = crossed.claims
    assert [answer.verdict for answer in answers] == ["supported"] * 4
    assert all(answer.comparison.p_holm >= answer.comparison.p for answer in answers)
    assert answers[1].comparison.null == -0.5
    assert answers[3].comparison.difference == pytest.approx((36 - 30) - (31 - 30.1), abs=0.05)
    smallest = min(answer.comparison.p for answer in answers)
    assert min(answer.comparison.p_holm for answer in answers) == pytest.approx(4 * smallest / FIRST**2)


def test_a_claim_within_a_cell_is_paired_by_seed_and_segment(make_study, store, run):
    """A cell against itself on another metric: both are means over the same trials and the same lines."""
    claims = [
        {"better": "patt_eg", "worse": "patt_eg", "metric": "test/bleu", "worse_metric": "dev/bleu"},
        {"better": "patt_eg", "worse": "random_init", "metric": "test/bleu", "worse_metric": "dev/bleu"},
    ]
    claims = [claim | {"source": "ours", "data": {"upstream.domain": "a"}} for claim in claims]
    analysis = run(make_study(claims=claims, analysis={"family": "claims"}), store)
    patt, start = analysis.cell("patt_eg"), analysis.cell("random_init")
    within, across = analysis.claims
    test, dev = patt.mean("test/bleu"), patt.mean("dev/bleu")
    assert within.values == (test, dev)
    assert within.comparison.difference == pytest.approx(test - dev)
    assert within.comparison.scope == "seeds and segments"
    assert across.values == (test, start.mean("dev/bleu"))
    smallest = min(within.comparison, across.comparison, key=lambda comparison: comparison.p)
    assert smallest.p_holm == pytest.approx(2 * smallest.p / FIRST**2)
    assert "patt_eg's test/bleu better than patt_eg's dev/bleu" in analysis.render("md")


def test_no_format_sets_a_figure_beside_other_data(make_study, scored, crossed):
    study = make_study(**{**crossed.study.to_dict(), "data": {"corpus": "conlang"}})
    scores = {cell.label: {"test/bleu": [*cell.values("test/bleu").values()]} for cell in crossed.cells}
    analysis = scored(study, scores)
    assert [answer.verdict for answer in analysis.claims] == ["same direction"] * 4
    assert all("supported" not in claim["answer"] for claim in analysis.to_json()["claims"])
    assert all(claim["figures"] == [] for claim in analysis.to_json()["claims"])
    assert "36.00 against 30.00; 31.00 against 30.00" not in analysis.render("md")
    for kind in ("md", "html", "latex"):
        assert "same direction, other data" in analysis.render(kind)
    assert "same direction, other data" in analysis.note()
    assert "other data: corpus is conlang, the paper's is files" in analysis.render("md")


def test_claims_of_every_kind_are_told_in_every_format(crossed):
    text = crossed.render("md")
    assert "lr=0.01 no worse than baseline on test/bleu by more than 0.5 | T1 | supported" in text
    assert "36.00 against 30.00; 31.00 against 30.10 (" in text
    assert "36.00 against 30.00; 31.00 against 30.00 (+5.00)" in text
    assert "| seeds needed |" not in text, "decided in every row"
    assert crossed.render("latex").isascii()
    assert crossed.to_json()["claims"][0]["figures"] == [31.0, 30.0]
