"""`nlgraft why`: the noise of a comparison, what would decide it, and what that costs."""

from dataclasses import replace

import pytest

from nlgraft.analysis.rendering.prose import explain


@pytest.fixture
def why(make_small_study, scored, with_trials):
    """Explain three seeds of an arm with these differences from a baseline; trials take a minute each."""

    def make(differences):
        study = make_small_study(seeds=[1, 2, 3])
        rows = {"baseline": [20.0] * 3, "arm=patt_eg": [20.0 + value for value in differences]}
        result = scored(study, {label: {"test/bleu": row} for label, row in rows.items()})
        record = replace(result.cells[0].trials[0].record, started_at=0.0, ended_at=60.0)
        timed = with_trials(
            result, lambda label, n: {"record": replace(record, metrics={"test/bleu": rows[label][n]})}
        )
        return "\n".join(explain(timed, "patt_eg", "baseline", None, "mine.yaml"))

    return make


def test_a_question_that_more_seeds_decide_names_them_their_cost_and_the_command(why):
    text = why([1.0, 1.6, 0.7])
    assert "undecided" in text
    assert "difference by seed: 1: +1, 2: +1.6, 3: +0.7" in text
    assert "100% of its square between seeds" in text
    assert "no earlier study" in text
    assert "a look at 12 seeds decides it" in text
    assert "cost: 18 trials, some 18 min" in text
    assert "nlgraft run mine.yaml --next-look   # 2 times" in text


def test_a_question_that_looks_will_not_decide_and_one_that_is_decided_name_no_command(why):
    text = why([1.0, -1.6, 0.7])
    assert "a look at 12 seeds hardly decides it: with a probability of 0." in text
    assert "--next-look" not in text
    text = why([5.0, 5.1, 4.9])
    assert "better" in text.splitlines()[0]
    assert "look" not in text
