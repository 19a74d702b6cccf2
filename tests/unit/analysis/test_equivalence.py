"""Verdicts within a margin: the tests, the correction, and what a reader is shown."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.resampling import holm_either
from nlgraft.analysis.rendering import figures
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import StudyError
from nlgraft.study.reading.rules import warnings

METRIC = "test/bleu"


def compared(differences, margin):
    a = {seed: Measured(10.0 + value) for seed, value in enumerate(differences)}
    b = {seed: Measured(10.0) for seed in range(len(differences))}
    return replace(Comparer().contrast(METRIC, "a", "b", [(1.0, a), (-1.0, b)]), margin=margin)


@pytest.mark.parametrize("shift", [-1.2, 0.0, 0.3, 0.9, 1.5])
def test_without_segments_it_is_two_one_sided_t_tests(shift):
    differences = shift + np.random.default_rng(3).standard_normal(7)
    tests = [
        stats.ttest_1samp(differences, end, alternative=side).pvalue
        for end, side in ((-1.0, "greater"), (1.0, "less"))
    ]
    assert compared(differences, 1.0).estimate.equal_p(1.0) == pytest.approx(max(tests), rel=1e-9)


def test_noise_of_the_test_set_makes_equality_harder_to_show():
    comparison = compared(0.2 * np.random.default_rng(3).standard_normal(7), 1.0)
    noisy = replace(comparison.estimate, segment_variance=0.3)
    assert comparison.estimate.equal_p(1.0) < 0.01 < noisy.equal_p(1.0)


def test_a_margin_of_the_interval_is_the_least_that_half_alpha_supports():
    differences = np.random.default_rng(4).standard_normal(6)
    comparison = compared(differences, 1.0)
    reach = np.abs(stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)).max()
    assert comparison.estimate.equal_p(reach) == pytest.approx(0.025)


def closed_test(pairs):
    """Adjust by the definition: the largest Bonferroni p-value of all sets with one hypothesis a question."""
    sides = [[0] if pair[1] is None else [0, 1] for pair in pairs]
    adjusted = [[0.0, 0.0] for _ in pairs]
    for size in range(1, len(pairs) + 1):
        for indices in itertools.combinations(range(len(pairs)), size):
            for chosen in itertools.product(*(sides[index] for index in indices)):
                values = [pairs[index][side] for index, side in zip(indices, chosen, strict=True)]
                for index, side in zip(indices, chosen, strict=True):
                    adjusted[index][side] = max(adjusted[index][side], min(1.0, size * min(values)))
    return adjusted


def test_the_correction_is_the_closed_test_of_hypotheses_that_exclude_each_other():
    rng = np.random.default_rng(7)
    for _ in range(60):
        pairs = [tuple(pair) if rng.random() < 0.7 else (pair[0], None) for pair in rng.random((4, 2)) ** 3]
        for (p, p_equal), want in zip(holm_either(pairs), closed_test(pairs), strict=True):
            assert p == pytest.approx(want[0])
            assert p_equal is None or p_equal == pytest.approx(want[1])


def test_a_question_that_is_open_in_one_way_keeps_its_factor():
    # By hand: the first is different and not equal, so the second still pays for two questions.
    assert holm_either([(0.001, 0.9), (0.03, 0.8)]) == [(0.002, 1.0), (0.06, 1.0)]
    # A difference that is smaller than the margin for certain leaves the family.
    assert holm_either([(0.001, 0.01), (0.03, 0.8)]) == [(0.002, 0.02), (0.03, 0.8)]


# --- what a reader is shown

SCORES = {
    "baseline": [20.0, 20.6, 19.7, 20.2, 20.4],
    "arm=single_run": [20.1, 20.5, 19.8, 20.1, 20.5],  # certainly within .5
    "arm=avg_eg": [23.0, 23.7, 22.6, 23.3, 23.4],  # better
    "arm=att_eg": [20.2, 21.6, 20.4, 19.6, 21.3],  # neither
    "arm=patt_eg": [20.21, 20.8, 19.9, 20.4, 20.6],  # better, by less than the margin
}


SEEDS = [1, 2, 3, 4, 5]


def rows(scores):
    return {label: {METRIC: values} for label, values in scores.items()}


@pytest.fixture(scope="module")
def verdicts(make_study, scored):
    study = make_study(
        seeds=SEEDS,
        analysis={"margin": {METRIC: 0.5}},
        claims=[
            {"better": "single_run", "worse": "random_init", "metric": METRIC, "source": "us"},
            {"better": "avg_eg", "worse": "random_init", "metric": METRIC, "source": "us"},
        ],
    )
    return scored(study, rows(SCORES))


def test_there_are_three_verdicts(verdicts):
    comparisons = {cell.cell.label: verdicts.compare(cell.cell) for cell in verdicts.cells[1:]}
    assert {label: comparison.standing for label, comparison in comparisons.items()} == {
        "arm=single_run": "equal",
        "arm=avg_eg": "better",
        "arm=att_eg": "open",
        "arm=patt_eg": "better",
    }
    assert comparisons["arm=single_run"].verdict == "equal within 0.5 BLEU points"
    assert comparisons["arm=patt_eg"].verdict == "better, by less than the margin"
    assert comparisons["arm=att_eg"].verdict == "not known yet (its looks will hardly decide it)"
    assert "p of a difference of 0.5 BLEU points" in repr(comparisons["arm=single_run"])


def test_every_format_shows_them(verdicts):
    assert verdicts.headline() == (
        "On test/bleu: 2 cells better than the baseline (arm=avg_eg; arm=patt_eg), 1 cell equal to the "
        "baseline within the margin of 0.5 BLEU points (arm=single_run), 1 cell not known yet, "
        "neither different nor within 0.5 BLEU points of the baseline for certain (arm=att_eg). "
        "Claims: 1 equal, 1 same direction."
    )
    for kind in ("md", "html", "latex"):
        text = verdicts.render(kind)
        assert "equal within 0.5 BLEU points" in text
        assert "the study declares too small to matter" in text
    lines = verdicts.render("csv").splitlines()
    row = next(line for line in lines if line.startswith("arm=single_run") and METRIC in line)
    assert ",0.5," in row
    assert ",equal,True," in row
    document = json.loads(verdicts.render("json"))
    cell = document["cells"][1]["comparison"][METRIC]
    assert (cell["standing"], cell["margin"]) == ("equal", 0.5)
    assert cell["p_equal"] <= cell["p_equal_holm"] <= 0.05
    assert document["claims"][0]["verdict"] == "equal"
    assert document["claims"][0]["answer"] == "equal within 0.5 BLEU points, other data"
    header = ["verdict", "difference", "95 % interval", "p", "p (Holm)", "p (equal)"]
    assert list(verdicts.comparison().plain()[0][3:9]) == header


def test_the_forest_plot_has_a_band(verdicts, make_study, scored):
    assert "band: margin of 0.5" in figures.forest_plot(verdicts)[0].inline()
    plain = scored(make_study(seeds=SEEDS), rows(SCORES))
    assert "band" not in figures.forest_plot(plain)[0].inline()


def test_an_interval_over_segments_alone_is_dotted(make_small_study, run, store, verdicts):
    assert "dotted" not in figures.forest_plot(verdicts)[0].inline()
    single = run(make_small_study(seeds=[1]), store)
    assert "dotted: one seed, nothing is decided" in figures.forest_plot(single)[0].inline()


def test_without_a_margin_nothing_is_said_of_one(make_study, scored):
    plain = scored(make_study(seeds=SEEDS), rows(SCORES))
    assert plain.compare("arm=single_run").verdict.startswith("undecided (equal within 0.")
    assert "verdict" not in plain.comparison().plain()[0]


@pytest.mark.parametrize(
    ("margin", "message"),
    [
        ({"test/blue": 0.5}, "'test/blue'. Did you mean 'test/bleu'?"),
        ({METRIC: 0}, "analysis.margin"),
        ({METRIC: -1.0}, "analysis.margin"),
    ],
)
def test_a_wrong_margin_is_refused_when_the_study_is_read(make_study, margin, message):
    with pytest.raises(StudyError, match=r"analysis\.margin") as raised:
        make_study(analysis={"margin": margin})
    assert message in str(raised.value)


def test_one_seed_and_lost_seeds_leave_equality_open(make_study, scored):
    study = make_study(seeds=[1], analysis={"margin": {METRIC: 50.0}})
    single = scored(study, {label: {METRIC: values[:1]} for label, values in SCORES.items()})
    assert single.compare("arm=single_run").verdict == "not known yet (1 seed more)"
    study = make_study(seeds=SEEDS, analysis={"margin": {METRIC: 50.0}})
    values = {**SCORES, "arm=avg_eg": [23.0, 23.7, np.nan, 23.3, 23.4]}
    with_losses = scored(study, rows(values))
    assert with_losses.compare("arm=avg_eg").verdict == "not known yet (seeds lost)"


def test_a_margin_of_a_metric_that_decides_nothing_is_warned_of(make_study):
    claims = [{"better": "avg_eg", "worse": "random_init", "metric": "test/accuracy", "source": "us"}]
    study = make_study(analysis={"margin": {METRIC: 1, "test/accuracy": 1, "test/ter": 1}}, claims=claims)
    assert [text for text in warnings(study) if "margin" in text] == [
        "analysis.margin.test/ter: nothing is decided about test/ter, which is neither the objective nor the "
        "metric of a claim; declare a claim on it"
    ]


def test_effects_are_judged_over_the_ledger_too(make_study, run, store):
    factors = {
        "arm": {"target": "arm", "levels": ["random_init", "patt_eg"], "baseline": "random_init"},
        "lr": {"target": "lr", "levels": [0.001, 0.01], "baseline": 0.001},
    }
    changes = {"factors": factors, "claims": [], "design": {"kind": "full"}}
    run(make_study(**changes), store).headline()
    # The margin comes after results were seen.
    later = StudyResult.read(make_study(analysis={"margin": {METRIC: 500.0}}, **changes), store)
    for effect in later.effects():
        assert effect.comparison.standing in ("better", "worse", "open")
        assert effect.comparison.verdict.startswith(("better", "worse", "not known yet"))
        assert effect.comparison.p_equal < 0.001, "a margin of 500 BLEU is wide enough, but late"


def test_a_cell_that_is_equal_at_a_look_gets_no_more_seeds(make_small_study, scored):
    def stop(margin):
        study = make_small_study(
            seeds=SEEDS,
            sequential={"looks": [3, 5]},
            analysis={"margin": margin},
        )
        base = np.array([20.0, 20.6, 19.7, 20.2, 20.4])
        scores = {"baseline": base, "arm=patt_eg": base + np.array([0.01, -0.02, 0.02, 0.0, -0.01])}
        result = scored(study, {label: {METRIC: values} for label, values in scores.items()})
        return result.replay()["arm=patt_eg"]

    assert (stop({METRIC: 0.5}).num_seeds, stop({METRIC: 0.5}).stopped_because) == (3, "decided")
    assert stop({METRIC: 0.02}).stopped_because != "decided", "within so little it is not certain"
