"""The simulated design of a study: its comparisons, its variances, and the same decisions as the study's."""

import numpy as np
import pytest

from nlgraft.analysis.policy.departures import Design
from nlgraft.analysis.policy.validity import design_of, estimate_validity
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
    assert (design.looks, design.num_seeds, design.run_looks) == ((3, 5, 8), 8, [3, 5, 8])
    assert (design.is_corrected, design.is_assumed) == (True, True)
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


def test_power_is_simulated_around_the_detectable_difference_and_coverage_counts_segments():
    """Segments are nearly all the noise of two comparisons with one baseline."""
    design = Design(np.array([[-1.0, 1, 0], [-1, 0, 1]]), (3,), 3, 0.05, False, 1e-6, 1.0, False)
    validity = estimate_validity(design, 400)
    detectable = 2.326348 + 0.841621
    assert list(validity.power) == pytest.approx(
        [factor * detectable for factor in (0.5, 1, 1.5, 2)], rel=1e-3
    )
    assert list(validity.power.values()) == pytest.approx([0.229, 0.8, 0.992, 1.0], abs=0.06)
    assert validity.coverage == pytest.approx(0.95, abs=0.03)
    assert validity.single == pytest.approx(0.02, abs=0.02)


def test_a_design_without_a_comparison_is_refused(make_study, scored):
    study = make_study(factors={}, claims=[], published=[])
    with pytest.raises(ValueError, match="at least two cells"):
        estimate_validity(design_of(scored(study, {cell.label: {} for cell in cells(study)})), 100)
