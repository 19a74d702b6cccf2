"""A study asks only about metrics of text that its cells compute."""

import pytest

from nlgraft.study.public import Study
from tests.contract.toys.minimal_system import ARMS

ROUGE = {"metric": "dev/rouge1", "direction": "maximize"}
LACKING = "dev/rouge1 is not computed: add rouge1 to base.score.metrics"


@pytest.fixture
def translating(good):
    """A study of a system that is told which metrics of text to compute."""
    toy = ARMS["first"]
    factors = {"read": {"target": "read", "levels": ["first", "both"], "baseline": "first"}}
    system = {"system": "examples.minimal_system", "data": toy["data"], "factors": factors, "components": {}}
    return {**good, **system, "base": {name: toy[name] for name in ("tokenizer", "train", "decode")}}


def test_a_metric_of_text_that_no_cell_computes_is_refused(translating, problems):
    claim = {"better": "both", "worse": "first", "metric": "test/meteor", "source": "T1"}
    messages = problems({**translating, "objective": ROUGE, "claims": [claim]})
    assert messages["objective.metric"] == LACKING
    assert messages["claims[0].metric"].startswith("test/meteor is not computed")


@pytest.mark.parametrize(
    "change",
    [
        {"base": {"score": {"metrics": ["rouge1"]}}},
        {
            "factors": {
                "score": {"target": "score.metrics", "levels": [["bleu"], ["rouge1"]], "baseline": ["bleu"]}
            }
        },
        {"components": {"bleu": {"without": {"score.metrics": ["rouge1"]}}}},
    ],
)
def test_a_metric_of_text_that_some_cell_computes_is_taken(translating, change):
    changed = {name: {**translating[name], **value} for name, value in change.items()}
    Study.from_dict({**translating, **changed, "objective": ROUGE})
