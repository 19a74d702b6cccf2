"""Verdicts of a launched study against t tests and Holm's procedure by hand, and after other launches."""

import io
import math
from pathlib import Path

import pytest

import nlgraft
from nlgraft import api
from nlgraft.commands.progress import LineReporter

NUM_DRAWS = 1000
ARMS = {"strong": (1.0, 0.5), "fair": (0.1, 0.5), "weak": (-0.1, 0.5)}
"""Gain and noise of each arm, which with seeds 1, 2, 3 is 10 gain + noise (2, 4, 1) above the baseline."""
OTHER = (0.3, 0.5)
FIRST = 0.8
"""Share of alpha that a first declaration has, and share of that at its first look."""


@pytest.fixture
def document(toy_document):
    components = {name: {"without": {"gain": gain, "noise": noise}} for name, (gain, noise) in ARMS.items()}
    del toy_document["factors"]
    return {**toy_document, "components": components, "seeds": [1, 2, 3]}


def launched(document, *overrides):
    """Launch a study whose trials have run one by one, which needs no Ray."""
    study = nlgraft.Study.from_dict(document, list(overrides))
    for cell in ("baseline", *(f"without {name}" for name in document["components"])):
        for seed in study.seeds:
            api.run_one(study, cell, seed, LineReporter(io.StringIO()))
    return nlgraft.launch(study)


def with_arm(document, name):
    """A study of one arm alone."""
    return {**document, "name": f"{name}_alone", "components": {name: document["components"][name]}}


def t_test(gain, noise):
    """The two-sided p-value of three differences; Student's t has a closed form for two degrees of freedom.

    It is counted over a thousand equally likely values of t where at least twenty of them are as large.
    """
    gains = [10 * gain + noise * step for step in (2, 4, 1)]
    mean = sum(gains) / 3
    error = math.sqrt(sum((gain_of_seed - mean) ** 2 for gain_of_seed in gains) / 2 / 3)
    places = [(number + 0.5) / NUM_DRAWS for number in range(NUM_DRAWS)]
    draws = [(2 * place - 1) / math.sqrt(2 * place * (1 - place)) for place in places]
    num_far = sum(abs(draw) * error >= abs(mean) * (1 - 1e-9) for draw in draws)
    t = abs(mean) / error
    return (1 + num_far) / (1 + NUM_DRAWS) if num_far >= 20 else 1 - t / math.sqrt(2 + t**2)


def by_hand():
    """Holm's procedure: of m p-values the smallest times m, the next times m - 1, never below the last."""
    adjusted, last = {}, 0.0
    raw = {name: t_test(*arm) for name, arm in ARMS.items()}
    for rank, name in enumerate(sorted(raw, key=raw.__getitem__)):
        last = max(last, min(1.0, (len(raw) - rank) * raw[name] / FIRST**2))
        adjusted[name] = last
    return adjusted


def verdicts(result):
    comparisons = {name: result.compare(f"without {name}") for name in ARMS}
    return {name: (comparison.p_holm, comparison.standing) for name, comparison in comparisons.items()}


def test_a_study_keeps_its_own_p_values_also_after_a_launch_with_fewer_seeds(
    document,
):
    """Two seeds after three are no earlier look, but a later one."""
    first = launched(document)
    before, expected = verdicts(first), by_hand()
    assert {name: p for name, (p, _) in before.items()} == pytest.approx(expected, rel=1e-9)
    assert expected["strong"] < 0.05 < expected["fair"] < expected["weak"]
    assert [standing for _, standing in before.values()] == ["better", "open", "open"]
    report = Path(first.invocation.report_dir, "report.md")
    text = report.read_text()
    fewer = launched(document, "seeds=[1, 2]")
    assert {standing for _, standing in verdicts(fewer).values()} == {"open"}
    after = nlgraft.load(nlgraft.Study.from_dict(document))
    assert verdicts(after) == before
    assert report.read_text() == text
    assert "Analysis 1 of" in after.render("md")
    assert "extended after" not in after.render("md")


def test_another_study_with_the_same_baseline_is_asked_about_its_own_pairs(document):
    """After a decided study the arms of the next one have its level, and a tenth of alpha of their own."""
    first = launched(with_arm(document, "strong"))
    assert first.compare("without strong").standing == "better"
    document["components"]["fair"]["without"] = dict(zip(("gain", "noise"), OTHER, strict=True))
    second = launched(with_arm(document, "fair"))
    comparison = second.compare("without fair")
    assert comparison.p_holm == pytest.approx(t_test(*OTHER) / FIRST * 0.05 / 0.045, rel=1e-9)
    assert comparison.basis == "declared later"
    assert comparison.standing == "better"


def test_another_study_after_an_open_one_pays_and_is_told_why(document):
    """Nobody can tell it from arms that are swapped in the file until one is significant."""
    launched(with_arm(document, "weak"))
    comparison = launched(with_arm(document, "strong")).compare("without strong")
    assert comparison.basis == "declared later"
    assert comparison.p_holm == pytest.approx(t_test(*ARMS["strong"]) / FIRST * 10, rel=1e-9)
    assert "declaration 2 on these test lines, which has a level of 0.005" in comparison.notes[-1]
