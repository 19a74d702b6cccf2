"""Main effects and interactions of crossed factors, by hand."""

import json

import numpy as np
import pytest

from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.effects import contrasts
from nlgraft.analysis.estimates.resampling import holm_either
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.study.data.design import axes_of

ARM = {"target": "arm", "levels": ["random_init", "avg_eg", "patt_eg"], "baseline": "random_init"}
LR = {"target": "lr", "levels": [1e-3, 1e-2], "baseline": 1e-3}
CROSSED = {"factors": {"arm": ARM, "lr": LR}, "design": {"kind": "full"}, "claims": []}


def weights_of(study):
    axes = axes_of(study)
    effects = contrasts(axes, axes.cells())
    return {effect.label: {cell.label: weight for weight, cell in effect.terms} for effect in effects}


def test_two_by_three_by_hand(make_study):
    weights = weights_of(make_study(**CROSSED))
    assert list(weights) == [
        "arm=avg_eg", "arm=patt_eg", "lr=0.01", "arm=avg_eg × lr=0.01", "arm=patt_eg × lr=0.01",
    ]  # fmt: skip
    assert weights["arm=avg_eg"] == {
        "arm=avg_eg": 0.5, "baseline": -0.5, "arm=avg_eg, lr=0.01": 0.5, "lr=0.01": -0.5,
    }  # fmt: skip
    third = pytest.approx(1 / 3)
    assert weights["lr=0.01"] == {
        "lr=0.01": third, "baseline": -third.expected, "arm=avg_eg, lr=0.01": third,
        "arm=avg_eg": -third.expected, "arm=patt_eg, lr=0.01": third, "arm=patt_eg": -third.expected,
    }  # fmt: skip
    assert weights["arm=patt_eg × lr=0.01"] == {
        "arm=patt_eg, lr=0.01": 1, "arm=patt_eg": -1, "lr=0.01": -1, "baseline": 1,
    }  # fmt: skip


def test_interactions_of_three_factors_are_averaged_over_the_third(make_study):
    segments = {"target": "segments", "levels": [40, 50], "baseline": 40}
    arms = ARM | {"levels": ["random_init", "avg_eg"]}
    weights = weights_of(make_study(**CROSSED | {"factors": {"arm": arms, "lr": LR, "segments": segments}}))
    assert weights["arm=avg_eg × lr=0.01"] == {
        "arm=avg_eg, lr=0.01": 0.5, "arm=avg_eg": -0.5, "lr=0.01": -0.5, "baseline": 0.5,
        "arm=avg_eg, lr=0.01, segments=50": 0.5, "arm=avg_eg, segments=50": -0.5,
        "lr=0.01, segments=50": -0.5, "segments=50": 0.5,
    }  # fmt: skip
    assert len(weights) == 6


def test_excluded_combinations_leave_effects_balanced(make_study):
    weights = weights_of(make_study(**CROSSED, exclude=[{"arm": "avg_eg", "lr": 1e-2}]))
    assert weights["arm=avg_eg"] == {"arm=avg_eg": 1, "baseline": -1}
    assert weights["lr=0.01"] == {
        "lr=0.01": 0.5, "baseline": -0.5, "arm=patt_eg, lr=0.01": 0.5, "arm=patt_eg": -0.5,
    }  # fmt: skip
    assert "arm=avg_eg × lr=0.01" not in weights


def test_components_cross_like_factors(make_study):
    weights = weights_of(
        make_study(
            **CROSSED | {"factors": {"lr": LR}}, components={"generator": {"without": {"arm": "single_run"}}}
        )
    )
    assert list(weights) == ["lr=0.01", "without generator", "lr=0.01 × without generator"]


def test_nothing_is_crossed_by_one_factor_at_a_time(make_study, result):
    assert weights_of(make_study(**CROSSED | {"design": {"kind": "one_factor"}})) == {}
    assert result.effects() == []
    assert result.effects_on_main_metric() is None
    assert "Effects" not in result.render("md")


def measured(*values):
    return {seed: Measured(float(value)) for seed, value in enumerate(values)}


def test_an_interaction_is_the_difference_of_differences():
    y00, y10, y01, y11 = measured(10, 12), measured(14, 15), measured(11, 13), measured(20, 22)
    terms = [(1.0, y11), (-1.0, y10), (-1.0, y01), (1.0, y00)]
    effect = Comparer().contrast("test/bleu", "a × b", "both", terms)
    # seed 0: (20 - 11) - (14 - 10) = 5; seed 1: (22 - 13) - (15 - 12) = 6
    assert effect.difference == 5.5
    assert effect.num_seeds == 2
    assert effect.scope == "seeds"
    half_width = 12.706 * np.sqrt(0.5 / 2)  # t with one degree of freedom, variance of 5 and 6 is 0.5
    assert (effect.ci[1] - effect.ci[0]) / 2 == pytest.approx(half_width, rel=0.03)


def test_constants_have_exact_effects_and_exact_ties():
    thirds = [(weight, measured(value, value)) for weight in (1 / 3, -1 / 3) for value in (0.1, 0.7, 0.3)]
    tie = Comparer().contrast("parameters/total", "a", "b", thirds)
    assert (tie.difference, tie.p, tie.is_exact) == (0.0, 1.0, False)
    terms = [(1.0, measured(9, 9)), (-1.0, measured(7, 7)), (-1.0, measured(6, 6)), (1.0, measured(5, 5))]
    effect = Comparer().contrast("parameters/total", "a", "b", terms)
    assert (effect.difference, effect.ci, effect.is_exact) == (1.0, (1.0, 1.0), True)


def test_two_cells_are_the_plain_comparison():
    rng = np.random.default_rng(5)
    cells = []
    for shift in (0.4, 0.0):
        rows = {seed: rng.standard_normal((30, 1)) + shift for seed in (1, 2, 3)}
        segments = {seed: np.hstack([row, np.ones_like(row)]) for seed, row in rows.items()}
        cells.append({seed: Measured(float(row[:, 0].mean()), row) for seed, row in segments.items()})
    plain = Comparer().contrast("test/loss", "a", "b", [(1.0, cells[0]), (-1.0, cells[1])])
    # a cell against itself within a longer contrast takes nothing away and adds nothing
    longer = Comparer().contrast(
        "test/loss", "a", "b", [(1.0, cells[0]), (-1.0, cells[1]), (1.0, cells[1]), (-1.0, cells[1])]
    )
    assert longer.difference == pytest.approx(plain.difference)
    assert longer.ci == pytest.approx(plain.ci)
    assert longer.p == plain.p


def test_seeds_that_some_cell_lacks_are_left_out_and_told():
    terms = [(1.0, measured(1, 2, 3)), (-0.5, measured(1, 1, 1)), (-0.5, measured(0, 0))]
    effect = Comparer().contrast("test/bleu", "a", "b", terms)
    assert effect.seeds == (0, 1)
    assert effect.difference == pytest.approx((0.5 + 1.5) / 2)
    assert (
        effect.notes[0]
        == "difference over seeds 0, 1 alone, which all cells finished; means are over all seeds"
    )


def test_a_crossed_study_reports_its_effects(make_study, run, store):
    crossed = run(make_study(**CROSSED), store)
    effects = crossed.effects()
    assert [effect.is_interaction for effect in effects] == [False, False, False, True, True]
    means = {cell.cell.label: cell.mean("test/bleu") for cell in crossed.cells}
    average = (means["arm=avg_eg"] - means["baseline"] + means["arm=avg_eg, lr=0.01"] - means["lr=0.01"]) / 2
    assert effects[0].comparison.difference == pytest.approx(average)
    assert effects[0].comparison.num_segments == 40
    adjusted = holm_either([(min(1.0, effect.comparison.p / FIRST), None) for effect in effects])
    shown = [effect.comparison.p_holm for effect in effects]
    assert shown == pytest.approx([min(1.0, p / FIRST) for p, _ in adjusted])
    document = json.loads(crossed.render("json"))
    assert [entry["effect"] for entry in document["effects"]] == [effect.contrast.label for effect in effects]
    assert document["effects"][3]["levels"] == {"arm": "avg_eg", "lr": 0.01}
    assert crossed.effects_on_main_metric().plain()[4][:3] == ["arm=avg_eg × lr=0.01", "interaction", "3"]
    assert "Significant main effects: " in crossed.render("md")
    for text in (crossed.render("md"), crossed.render("html"), crossed.note()):
        assert "arm=avg_eg × lr=0.01" in text
    assert "Effects on test/bleu" in crossed.render("latex")
    assert crossed.render("latex").isascii()
    assert crossed.gains() == []
    assert "Gains over" not in crossed.render("html")


def test_gains_over_a_factor_by_hand(make_study, run, store):
    """Each arm against the arms' baseline at the same rate; the curve lacks what the design leaves out."""
    left_out = {"exclude": [{"arm": "avg_eg", "lr": 1e-2}]}
    study = make_study(**CROSSED | {"analysis": {"gains_over": "lr"}} | left_out)
    crossed = run(study, store)
    (curve,) = crossed.gains()
    means = {cell.cell.label: cell.mean("test/bleu") for cell in crossed.cells}
    assert curve.label == "arm=patt_eg"
    assert [level for level, _ in curve.gains] == ["0.001", "0.01"]
    assert [gain.difference for _, gain in curve.gains] == [
        pytest.approx(means["arm=patt_eg"] - means["baseline"]),
        pytest.approx(means["arm=patt_eg, lr=0.01"] - means["lr=0.01"]),
    ]
    (first, second) = crossed.to_json()["gains"]
    assert (first["gain"], first["at"], second["at"]) == ("arm=patt_eg", "0.001", "0.01")
    assert second["difference"] == pytest.approx(curve.gains[1][1].difference)
    assert "## Gains over lr" in crossed.render("md")
    assert "Gains over lr in test/bleu" in crossed.render("html")
    assert "Gains over lr" in crossed.render("latex")
