"""Expected validation performance by hand, and where a report shows it."""

from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from nlgraft.analysis.estimates.expected_best import expected_best, expected_maximum, on_new_seeds


def test_it_equals_the_mean_over_all_draws():
    values = [3.0, -1.0, 3.0, 0.5]
    for number, expectation in enumerate(expected_maximum(np.array(values)), 1):
        draws = [max(drawn) for drawn in product(values, repeat=number)]
        assert expectation == pytest.approx(float(sum(map(Fraction, draws)) / len(draws)))


@pytest.fixture
def searched(make_small_study, scored, with_search):
    """Build a result whose first cell has search trials of these values; None is a trial that failed."""

    def build(values, direction="maximize"):
        metric = {"maximize": "dev/bleu", "minimize": "dev/loss"}[direction]
        study = make_small_study(
            search={"space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}}, "trials": len(values)},
            objective={"metric": metric, "direction": direction},
            resources={"workers": 2},
        )
        scores = {"dev/bleu": [20.0, 21.0, 22.0], "dev/loss": [3.0, 2.9, 2.8]}
        result = scored(study, {"baseline": scores, "arm=patt_eg": scores})
        points = [[step, 3.0, 0] for step in (0, 50, 100)]
        others = {name: [[9000, 3.0, 0]] for name in ("upstream/dev/loss", "source_lm/dev_loss")}
        tried = [({}, "failed" if value is None else value) for value in values]
        return with_search(
            result, tried, curves={"dev/loss": points, **others}, started_at=100.0, ended_at=110.0
        )

    return build


def test_a_cell_has_its_curve_with_a_band_and_the_cost_of_a_trial(searched):
    result = searched([1.0, 2.0, 4.0])
    curve = expected_best(result, result.cells[0])
    assert curve.mean == pytest.approx([7 / 3, 3, 91 / 27])
    assert (curve.low < curve.mean).all()
    assert (curve.mean < curve.high).all()
    assert curve.high.max() <= 4.0
    assert curve.steps_per_trial == 100.0  # of the trial's own training
    assert curve.worker_s_per_trial == 20.0  # two workers
    assert curve.on_new_seeds == pytest.approx(expected_maximum(on_new_seeds(np.array([1.0, 2.0, 4.0]), 1.0)))
    assert expected_best(result, result.cells[1]) is None


@pytest.mark.parametrize(
    ("values", "direction", "means"),
    [
        ([1.0, 2.0, 4.0], "minimize", [7 / 3, 15 / 9, 37 / 27]),
        ([2.0, None, 4.0], "maximize", [8 / 3, (2 * 4 + 4 * 5) / 9, (2 * 8 + 4 * 19) / 27]),
    ],
)
def test_the_best_loss_is_the_lowest_and_a_failed_trial_draws_the_worst(searched, values, direction, means):
    result = searched(values, direction)
    curve = expected_best(result, result.cells[0])
    assert curve.mean == pytest.approx(means)
    assert (curve.low <= curve.high).all()
    assert curve.num_without_value == values.count(None)
    assert expected_best(result, searched([2.0, None]).cells[0]) is None


@pytest.mark.parametrize("noise", [0.25, 0.5])
def test_the_best_on_new_seeds_is_foretold_without_the_luck_of_the_first(noise):
    """Trials are drawn as random search does, near an optimum that nothing exceeds."""
    rng = np.random.default_rng(8)
    seen, foretold, reached = [], [], []
    for _ in range(150):
        true = -np.square((rng.random((24, 3)) - [0.6, 0.3, 0.5]) * [2.0, 1.0, 0.5]).sum(axis=1) / 0.54
        values = true + noise * rng.standard_normal(24)
        best = values.argmax()
        seen.append(values[best])
        foretold.append(on_new_seeds(values, noise**2)[best])
        reached.append(true[best])
    luck = np.mean(seen) - np.mean(reached)
    assert abs(np.mean(foretold) - np.mean(reached)) < 0.2 * luck


def test_without_noise_nothing_is_taken_off_and_of_pure_noise_all():
    values = np.random.default_rng(3).standard_normal(200)
    assert on_new_seeds(values, 0.0) == pytest.approx(values)
    assert np.ptp(on_new_seeds(values, 1.0)) < 0.25 * np.ptp(values)
    assert (np.diff(on_new_seeds(np.sort(values), 0.3)) >= -1e-12).all()


def test_every_format_shows_it(searched):
    result = searched([1.0, 2.0, None])
    document = result.to_json()["cells"]
    assert document[0]["search"]["expected_best"]["mean"] == pytest.approx([4 / 3, 14 / 9, 46 / 27])
    assert document[0]["search"]["expected_best"]["without_value"] == 1
    assert document[1]["search"]["expected_best"] is None
    text = result.render("md")
    assert "### Expected best by budget" in text
    assert (
        "| cell | steps of a trial | worker seconds of a trial | best of 1 | best of 2 | best of 3 |" in text
    )
    assert "| baseline | 100 | 20.0 | 1.333\u00a0[1.000,\u00a02.000] | 1.556" in text
    assert "baseline, on new seeds" in text
    assert "Trials without a value count as the worst finished one: baseline 1." in text
    assert "Dodge et al. 2019" in text
    assert "dev/bleu by search trials" in result.render("html")


def test_the_band_is_called_what_it_is(searched):
    """Bootstrap bands cover the truth ever less towards the full budget: nothing may be read off them."""
    rng = np.random.default_rng(1)
    # expected best of n draws from a standard normal, by simulation
    truth = np.maximum.accumulate(rng.standard_normal((40_000, 12)), axis=1).mean(axis=0)
    covered = np.zeros(12)
    for _ in range(300):
        draws = rng.choice(rng.standard_normal(12), (400, 12))
        low, high = np.quantile(expected_maximum(draws), [0.025, 0.975], axis=0)
        covered += (low <= truth) & (truth <= high)
    assert covered[-1] / 300 < 0.6
    text = searched([1.0, 2.0, 4.0]).render("md")
    assert "it is no confidence interval" in text
    assert "95 % bootstrap" not in text
    assert "band is the range of 95 % of resamples of these trials: it is descriptive" in text
    page = (Path(__file__).parents[3] / "docs" / "reading_a_report.md").read_text()
    assert "overlap" not in page
