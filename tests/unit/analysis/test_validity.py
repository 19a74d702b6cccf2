"""The simulated design of a study: its comparisons, its variances, and the same decisions as the study's."""

import numpy as np
import pytest

from nlgraft.analysis.statistics.simulated_studies import Design, SimulatedStudies
from nlgraft.analysis.statistics.validity import design_of, estimate_validity
from nlgraft.study.data.design import cells

ARMS = ["random_init", "avg_eg", "patt_eg"]


@pytest.fixture
def study(make_study):
    return make_study(
        factors={"arm": {"target": "arm", "levels": ARMS, "baseline": "random_init"}},
        seeds=list(range(8)),
        sequential={"looks": [3, 5, 8]},
        objective={"metric": "dev/loss", "direction": "minimize"},
        claims=[],
        published=[],
    )


def test_before_a_study_ran_variances_are_assumed(study, scored):
    design = design_of(scored(study, {cell.label: {} for cell in cells(study)}))
    assert design.weights.tolist() == [[-1, 1, 0], [-1, 0, 1]]
    assert (design.looks, design.is_corrected, design.is_assumed) == ((3, 5, 8), True, True)
    assert (design.seed_variance, design.segment_variance) == (1.0, 0.0)


def test_afterwards_they_are_the_studys_own(study, scored):
    rows = np.random.default_rng(0).standard_normal((3, 8))
    names = [cell.label for cell in cells(study)]
    design = design_of(scored(study, {n: {"dev/loss": row} for n, row in zip(names, rows, strict=True)}))
    variances = [np.var(row - rows[0], ddof=1) for row in rows[1:]]
    assert design.seed_variance == pytest.approx(np.mean(variances))
    assert not design.is_assumed


def test_claims_are_comparisons_too(make_study, scored):
    study = make_study()
    design = design_of(scored(study, {cell.label: {} for cell in cells(study)}))
    # four arms against the baseline, and patt_eg against att_eg; the other claims repeat the former
    assert design.weights.shape == (5, 5)
    assert design.weights[-1].tolist() == [0, 0, 0, -1, 1]


@pytest.mark.parametrize("effect", [0.0, 3.0])
def test_a_simulated_study_decides_as_a_real_one(study, scored, effect):
    design = design_of(scored(study, {cell.label: {} for cell in cells(study)}))
    simulated = SimulatedStudies(design, 10, effect)
    # values of the cells up to a constant per seed, which pairing removes
    for index, differences in enumerate(simulated._differences):
        rows = dict(zip((cell.label for cell in cells(study)), (np.zeros(8), *differences), strict=True))
        found = scored(study, {label: {"dev/loss": row} for label, row in rows.items()})
        stops = found.replay()
        assert [stops[f"arm={arm}"].num_seeds for arm in ARMS[1:]] == simulated.num_seeds[index].tolist()


def test_power_is_simulated_around_the_detectable_difference_and_coverage_counts_segments():
    """Segments are nearly all the noise of two comparisons with one baseline."""
    design = Design(np.array([[-1.0, 1, 0], [-1, 0, 1]]), (3,), 0.05, False, 1e-6, 1.0, False)
    found = estimate_validity(design, 400)
    detectable = 1.959964 + 0.841621
    assert list(found.power) == pytest.approx([factor * detectable for factor in (0.5, 1, 1.5, 2)], rel=1e-3)
    assert list(found.power.values()) == pytest.approx([0.288, 0.8, 0.988, 1.0], abs=0.06)
    assert found.coverage == pytest.approx(0.95, abs=0.03)
    assert found.single == pytest.approx(0.05, abs=0.03)


def test_a_design_without_a_comparison_is_refused(make_study, scored):
    study = make_study(factors={}, claims=[], published=[])
    with pytest.raises(ValueError, match="at least two cells"):
        estimate_validity(design_of(scored(study, {cell.label: {} for cell in cells(study)})), 100)
