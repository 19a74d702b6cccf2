"""Which verdicts hang on the metric, or on one seed."""

import numpy as np
import pytest

from nlgraft.analysis.statistics.sensitivity import sensitivities
from nlgraft.study.data.design import cells

NOISE = np.array([0.1, -0.2, 0.15, 0.05, -0.1])


@pytest.fixture
def found(make_study, scored):
    study = make_study(
        factors={"arm": {"target": "arm", "levels": ["random_init", "avg_eg", "patt_eg"],
                         "baseline": "random_init"}},
        seeds=[1, 2, 3, 4, 5], claims=[], published=[],
    )  # fmt: skip
    gaps = {
        "random_init": (np.zeros(5), np.zeros(5)),
        "avg_eg": (5 + NOISE, -3 + NOISE),
        # four seeds agree, one does not
        "patt_eg": (np.array([2.0, 2.1, 1.9, 2.05, -2.0]), 2 + NOISE),
    }
    base = 20 + np.roll(NOISE, 2)
    rows = {
        cell.label: dict(zip(("test/bleu", "test/accuracy"), (base + gap for gap in gaps[cell.levels["arm"]]),
                             strict=True))
        for cell in cells(study)
    }  # fmt: skip
    return scored(study, rows)


def test_a_verdict_may_hang_on_the_metric_or_on_one_seed(found):
    first, second = sensitivities(found)
    assert (first.label, first.standing) == ("arm=avg_eg", "better")
    assert first.changes == {"on test/accuracy": "worse"}
    assert len(first.others) == 1 + 5
    assert second.standing == "open"
    assert second.changes == {"on test/accuracy": "better", "without seed 5": "better"}


def test_the_report_says_so(found):
    text = found.render("md")
    assert "## Sensitivity of the verdicts" in text
    assert "| arm=avg_eg | better | 5 of 6 | worse on test/accuracy |" in text
    assert "| arm=patt_eg | undecided | 4 of 6 | better on test/accuracy; better without seed 5 |" in text


def test_two_seeds_leave_none_to_leave_out(make_small_study, scored):
    study = make_small_study(seeds=[1, 2], claims=[])
    rows = {cell.label: {"test/bleu": np.array([1.0, 2.0])} for cell in cells(study)}
    assert [one.others for one in sensitivities(scored(study, rows))] == [{}]
