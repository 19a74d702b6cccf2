"""Seeds that crash or collapse, models that learned nothing, and what reports say of them."""

from dataclasses import replace

import numpy as np
import pytest

from nlgraft.analysis.estimates.stability import interquartile_mean
from nlgraft.evaluation.classification import evaluate_labels
from nlgraft.evaluation.sufficient import aggregate, segment_rows

BASE = np.array([20.0, 20.4, 19.7, 20.1, 19.9])
GOOD = BASE + 1.0 + np.array([0.1, -0.05, 0.0, 0.08, -0.02])
NOISE = np.array([1.5, -1.2, 0.3, -0.6, 0.1])


@pytest.fixture
def build(make_small_study, scored, with_trials):
    """A baseline and an arm with these scores on a metric; a score of None is a seed that crashed."""

    def make(baseline, arm, metric="test/bleu"):
        study = make_small_study(
            seeds=list(range(1, len(arm) + 1)),
            claims=[{"better": "patt_eg", "worse": "random_init", "metric": metric, "source": "a table"}],
        )
        rows = {"baseline": baseline, "arm=patt_eg": arm}
        scores = {label: {metric: [0.0 if v is None else v for v in row]} for label, row in rows.items()}
        crashed = {"state": "failed", "reason": "CUDA error", "record": None}
        return with_trials(
            scored(study, scores),
            lambda label, index: crashed if rows[label][index] is None else {},
        )

    return make


def with_objective(result, metric):
    direction = result.system.metrics[metric].direction
    objective = result.study.objective.model_copy(update={"metric": metric, "direction": direction})
    return replace(result, study=result.study.model_copy(update={"objective": objective}))


def test_an_arm_whose_worst_seed_crashed_is_not_called_better(build):
    """The pair of a crashed seed is dropped, and the seeds that crash are rarely the good ones."""
    whole = build(BASE, GOOD)
    assert whole.compare("patt_eg").standing == "better"
    crashed = build(BASE, [*GOOD[:4], None])
    comparison = crashed.compare("patt_eg")
    assert (comparison.standing, comparison.open_because) == ("open", "seeds lost")
    assert crashed.claims[0].text == "undecided: seeds lost, other data"
    text = crashed.render("md")
    assert "Unstable: 1 of 5 seeds of arm=patt_eg failed." in text
    assert "| arm=patt_eg | 5 | 20 % (seed 5) | 0 % |" in text


def test_a_seed_that_both_lost_leaves_the_question_undecided_until_it_has_finished(build):
    both = build([*BASE[:4], None], [*GOOD[:4], None])
    comparison = both.compare("patt_eg")
    assert (comparison.standing, comparison.open_because) == ("open", "")
    assert any("the first is at 5 seeds" in note for note in comparison.notes)
    base_lost = build([*BASE[:4], None], GOOD)  # the baseline's worst may have crashed, too
    assert base_lost.compare("patt_eg").standing == "open"


def test_a_collapsed_seed_is_flagged_and_stands_beside_means_that_it_does_not_move(build):
    analysis = build(BASE, [*GOOD[:4], 0.0])
    assert analysis.compare("patt_eg").standing == "open"
    text = analysis.render("md")
    assert "Unstable: 1 of 5 seeds of arm=patt_eg diverged." in text
    assert "| arm=patt_eg | 5 | 0 % | 20 % (seed 5) | 16.87 | 21.10 | 21.00 |" in text
    assert analysis.to_json()["stability"]["arm=patt_eg"]["diverged"] == [5]
    assert "diverged" in analysis.render("html")


def test_ordinary_noise_is_no_divergence(build):
    rng = np.random.default_rng(1)
    flagged = 0
    for _ in range(200):
        analysis = build(20 + 2 * rng.standard_normal(3), 12 + 1.2 * rng.standard_normal(3))
        flagged += any(stability.diverged or stability.lost for stability in analysis.stabilities)
    assert flagged <= 2


@pytest.mark.parametrize(
    ("metric", "values", "diverged"),
    [
        ("dev/loss", [2.0, 2.1, 7.5], (3,)),
        ("dev/loss", [2.0, 2.1, 3.5], ()),
        ("test/bleu", [0.3, 0.0, 0.1], ()),  # nothing learned is not unstable
        ("test/bleu", [0.0, 0.0, 18.0], (1, 2)),
    ],
)
def test_the_rule_of_divergence(build, metric, values, diverged):
    analysis = with_objective(build(values, values, metric), metric)
    assert [stability.diverged for stability in analysis.stabilities] == [diverged, diverged]


def test_the_interquartile_mean_counts_parts():
    assert interquartile_mean([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert interquartile_mean([0.0, 3.0, 6.0]) == pytest.approx(3.0)
    assert interquartile_mean([0.0, 3.0, 30.0]) == pytest.approx((3 + 30 / 4) / 1.5)
    assert interquartile_mean([7.0]) == 7.0


REFERENCES = [
    "das ist ein haus",
    "ein hund sieht den alten baum",
    "ein hund sieht den alten baum",
    "der rest",
] * 5
SOURCES = ["that is a house", "a dog sees the old tree", "a dog sees the old tree", "the rest"] * 5


@pytest.fixture
def with_texts(with_trials):
    """Replicates that wrote these lines: by label."""

    def write(result, outputs, sources=SOURCES):
        def written(label, index):
            lines = outputs[label]
            rows, signature = segment_rows("bleu", lines, REFERENCES)
            metrics = {"test/bleu": float(segment_score(rows)) + index / 100}
            record = result.cell(label).trials[index].record
            return {
                "record": replace(record, metrics=metrics, signatures={"test/bleu": signature}),
                "read_texts": lambda _: (lines, REFERENCES),
                "read_stream": lambda _, role: sources if role == "source 0" else None,
            }

        return with_trials(result, written)

    return write


def segment_score(rows):
    return aggregate("bleu", rows.sum(axis=0))


def test_nothing_learned_is_said_first_and_nothing_is_decided(build, with_texts):
    frequent = ["ein hund sieht den alten baum"] * 20
    junk = {"baseline": ["ein ein ein ein"] * 20, "arm=patt_eg": ["hund ein der"] * 20}
    analysis = with_texts(build(BASE, GOOD), junk)
    trivial = segment_score(segment_rows("bleu", frequent, REFERENCES)[0])
    assert analysis.headline().startswith(
        "No cell has learned: not more than 1 better on test/bleu than a trivial output (the most frequent "
        f"reference for every line), which scores {trivial:.2f}"
    )
    assert analysis.compare("patt_eg").standing == "open"
    assert analysis.compare("patt_eg").open_because == "neither cell has learned"
    row = next(row for row in analysis.comparison().plain() if row[0] == "arm=patt_eg")
    assert row[-1] == "–", "no number of seeds is advised"
    assert "seeds more" not in analysis.claims[0].text


def test_copying_the_source_is_a_trivial_output(build, with_texts):
    """A model that edits drafts has learned nothing as long as the drafts are as good."""
    drafts = [line.replace("haus", "maus") for line in REFERENCES]
    worse = [line.replace("baum", "raum") for line in drafts]
    analysis = with_texts(build(BASE, GOOD), {"baseline": worse, "arm=patt_eg": REFERENCES}, drafts)
    assert analysis.headline().startswith(
        "Nothing learned in baseline: not more than 1 better on test/bleu than a trivial output (source 0, "
    )
    assert analysis.compare("patt_eg").standing != "worse"
    assert "has learned" not in analysis.compare("patt_eg").open_because


def test_a_classifier_at_chance_has_not_learned(build, with_trials):
    true = np.array([0] * 60 + [1] * 40)
    guesses = {"baseline": np.zeros(100, int), "arm=patt_eg": np.where(np.arange(100) == 99, 1, 0)}
    evaluations = {label: evaluate_labels(labels, true, 2) for label, labels in guesses.items()}
    values = [evaluations[label].scores["accuracy"].value for label in guesses]
    result = build(*([value] * 3 for value in values), "test/accuracy")
    result = with_trials(
        with_objective(result, "test/accuracy"),
        lambda label, _: {
            "segments": {f"test/{name}": rows for name, rows in evaluations[label].statistics.items()}
        },
    )
    assert result.headline().startswith(
        "No cell has learned: not more than 1 better on test/accuracy than a trivial output (the most "
        "frequent class for every line), which scores 60.00"
    )


def test_results_without_texts_make_no_such_statement(build):
    assert build(BASE * 0, GOOD * 0).trivial is None
    assert "learned" not in build(BASE * 0, GOOD * 0).headline()


def test_a_comparison_prints_as_a_verdict(build):
    text = str(build(BASE, GOOD).compare("patt_eg"))
    assert text.startswith("arm=patt_eg against baseline on test/bleu: better\n")
    assert "difference +1.022 BLEU points, interval [+0.9" in text
    assert "(5 seeds)" in text
    open_one = str(build(BASE, BASE + NOISE).compare("patt_eg"))
    assert "undecided (equal within 1.3 BLEU points)" in open_one
    assert "no result" in str(build([None] * 5, GOOD).compare("patt_eg"))


def test_an_undecided_verdict_gives_the_smallest_margin_that_the_data_support(build):
    analysis = build(BASE, BASE + NOISE)
    low, high = analysis.compare("patt_eg").ci
    assert max(-low, high) <= 1.3 <= max(-low, high) + 0.1
    assert "Undecided, but equal within (BLEU points): arm=patt_eg 1.3." in analysis.render("md")
    assert "(equal within 1.3 BLEU points)" in analysis.claims[0].text


def test_cells_are_equal_within_the_margin_as_often_as_it_says(build):
    """A true difference is beyond the printed margin in at most one of twenty studies."""
    rng = np.random.default_rng(3)
    truth, beyond = 0.5, 0
    for _ in range(300):
        arm = 20 + truth + rng.standard_normal(4)
        beyond += truth > build(20 + rng.standard_normal(4), arm).compare("patt_eg").equal_within
    assert beyond / 300 <= 0.05
