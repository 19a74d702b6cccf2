"""Which questions p-values are corrected over: the declared family, run or not."""

import numpy as np
import pytest

from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.rendering import prose
from nlgraft.study.data.design import cells

ARMS = ["random_init", "single_run", "avg_eg", "att_eg", "patt_eg"]


def test_holm_goes_over_all_cells_and_claims_of_a_metric(result):
    family = [result.compare(arm) for arm in ARMS[1:]]
    family.append(result.compare("patt_eg", "att_eg"))  # claimed, hence one of them
    smallest = min(family, key=lambda comparison: comparison.p)
    assert smallest.p_holm == pytest.approx(min(1, 5 * smallest.p / FIRST**2))
    assert all(comparison.p_holm >= comparison.p for comparison in family)
    num_open = sum(comparison.p_holm > 0.05 for comparison in family)
    # .8 of alpha for the first declaration, .8 of that for its first look
    assert [comparison.level for comparison in family] == pytest.approx([0.032 / num_open] * len(family))
    outside = result.compare("avg_eg", "att_eg")
    assert outside.basis == "exploratory"
    assert any("the study does not declare it" in note for note in outside.notes)


def test_the_family_of_claims_leaves_other_cells_uncorrected(make_study, result):
    settings = {"family": "claims"}
    study = make_study(analysis=settings)
    claimed = type(result)(study, result.system, result.cells, result.provenance)
    assert claimed.compare("avg_eg").p_holm is None
    assert [claimed.compare(arm).verdict for arm in ("avg_eg", "att_eg")] == [
        "exploratory",
        "judged as a claim",
    ]
    raw = sorted(
        claimed.compare(*pair).p
        for pair in [("patt_eg", "baseline"), ("patt_eg", "att_eg"), ("single_run", "baseline")]
    )
    assert min(claimed.compare(arm).p_holm for arm in ("patt_eg", "single_run")) == pytest.approx(
        3 * raw[0] / FIRST**2
    )


def test_samples_grow_with_the_family(make_arms, scored):
    """With 1,000 resamples no p is below 1 / 1001, which Holm multiplies by sixty."""
    arms = [f"a{index}" for index in range(61)]
    study = make_arms(arms, seeds=[1, 2, 3, 4, 5])
    rng = np.random.default_rng(0)
    scores = {cell.label: {"test/bleu": 30 + 0.1 * rng.standard_normal(5)} for cell in cells(study)}
    scores["arm=a7"]["test/bleu"] += 20
    analysis = scored(study, scores)
    assert analysis.samples == 10 * 60 / 0.05
    assert analysis.compare("a7").standing == "better"
    assert f"{analysis.samples:,} times" in " ".join(prose.method(analysis))
    assert analysis.to_json()["analysis"]["samples"] == analysis.samples


@pytest.fixture
def family(make_study, scored, with_trials):
    """Four arms and three claims of which one is between arms: five questions on test/bleu."""
    study = make_study(
        claims=[
            {"better": "patt_eg", "worse": "random_init", "metric": "test/bleu", "source": "a table"},
            {"better": "patt_eg", "worse": "avg_eg", "metric": "test/bleu", "source": "a table"},
            {"better": "att_eg", "worse": "random_init", "metric": "test/bleu", "source": "a table"},
        ],
    )
    base = np.array([20.0, 20.3, 19.8])
    gaps = {
        "baseline": np.zeros(3), "arm=single_run": np.array([0.3, -0.2, 0.4]),
        "arm=avg_eg": np.array([0.8, 1.2, 1.1]), "arm=att_eg": np.array([0.5, 1.4, -0.3]),
        "arm=patt_eg": np.array([2.0, 2.2, 2.5]),
    }  # fmt: skip

    def build(ran=tuple(gaps), state="planned"):
        analysis = scored(study, {label: {"test/bleu": base + gap} for label, gap in gaps.items()})
        unfinished = {"state": state, "record": None}
        return with_trials(analysis, lambda label, _: {} if label in ran else unfinished)

    return build


@pytest.mark.parametrize("state", ["planned", "failed", "running"])
def test_what_has_not_run_or_failed_stays_in_the_family(family, state):
    """Running one arm of four with --only must not make its p-value smaller than the whole study's."""
    raw = family().compare("patt_eg").p
    whole, alone = family(), family(("baseline", "arm=patt_eg"), state)
    assert whole.compare("patt_eg").p_holm == pytest.approx(5 * raw / FIRST**2)
    assert alone.compare("patt_eg").p_holm == pytest.approx(5 * raw / FIRST**2)
    assert alone.compare("patt_eg").family == (5, 1)
    assert alone.compare("single_run").p_holm is None
    text = alone.render("md")
    assert "family of 5 questions, 1 tested" in text
    assert "5 tested" not in text
    assert "tested" not in whole.render("md").split("## Claims")[0]
    assert alone.to_json()["cells"][4]["comparison"]["test/bleu"]["family"] == {"declared": 5, "tested": 1}


def test_a_claim_about_cells_that_did_not_run_says_so(family):
    claims = family(("baseline", "arm=patt_eg")).claims
    assert [claim.text for claim in claims][1:] == ["not run", "not run"]
    assert "2 not run" in family(("baseline", "arm=patt_eg")).render("md")


def test_a_metric_that_a_finished_cell_does_not_have_asks_nothing_of_it(family):
    analysis = family()
    for trial in analysis.cells[1].trials:
        trial.record.metrics["test/accuracy"] = 1.0 + trial.seed
        del trial.record.metrics["test/bleu"]
    assert analysis.compare("patt_eg", metric="test/bleu").family == (4, 4)
