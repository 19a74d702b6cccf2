"""Metrics of early learning by hand: areas under curves, steps to the baseline's best."""

import numpy as np
import pytest

from nlgraft.analysis.data.loading import mean_height, steps_to
from nlgraft.basics.errors import StudyError

CURVE = np.array([[0.0, 8.0], [10.0, 4.0], [30.0, 2.0], [40.0, 3.0]])


def test_the_area_is_that_of_trapezia_between_any_two_steps():
    assert mean_height(CURVE, 0, 10) == 6.0
    assert mean_height(CURVE, 0, 30) == pytest.approx((10 * 6 + 20 * 3) / 30)
    assert mean_height(CURVE, 5, 20) == pytest.approx((5 * 5 + 10 * 3.5) / 15)


def test_steps_to_a_loss_lie_between_two_evaluations():
    assert steps_to(CURVE, 4.0) == 10.0
    assert steps_to(CURVE, 3.0) == 20.0
    assert steps_to(CURVE, 9.0) == 0.0
    assert steps_to(CURVE, 1.0) == 40.0, "never: all steps"


def test_a_cell_that_learns_sooner_has_fewer_steps_to_the_baselines_best(make_small_study, run, store):
    analysis = run(make_small_study(), store)
    base, arm = analysis.baseline, analysis.cell("patt_eg")
    for trial, other in zip(base.trials, arm.trials, strict=True):
        points = np.array(trial.record.curves["dev/loss"])[:, :2]
        goal, step = points[:, 1].min(), points[points[:, 1].argmin(), 0]
        assert trial.metrics["dev/loss.steps_to_baseline"] == step
        assert other.metrics["dev/loss.steps_to_baseline"] < step
        assert trial.metrics["dev/loss.auc"] == pytest.approx(mean_height(points, 0, 500))
        assert goal < trial.metrics["dev/loss.auc"]
    compared = analysis.compare("patt_eg", metric="dev/loss.steps_to_baseline")
    assert compared.difference < 0
    assert compared.ci is not None
    assert compared.standing == "open", "not declared: a description"
    assert compared.p < 0.05
    assert "dev/loss.auc against the baseline" in analysis.render("md")
    assert set(analysis.to_json()["cells"][1]["comparison"]) >= {"dev/loss.auc", "dev/loss.steps_to_baseline"}


def test_claims_can_name_them_and_searches_cannot(make_small_study, run, store):
    claim = {
        "better": "patt_eg", "worse": "random_init", "metric": "dev/loss.steps_to_baseline",
        "source": "Fig. 2", "data": {"upstream.domain": "a"},
    }  # fmt: skip
    study = make_small_study(claims=[claim])
    assert run(study, store).claims[0].verdict == "supported"
    with pytest.raises(StudyError, match="known only when all trials have ended"):
        make_small_study(objective={"metric": "dev/loss.auc", "direction": "minimize"})
