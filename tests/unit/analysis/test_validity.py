"""The simulated design of a study and its rates; benchmarks' simulated stores decide as real ones do."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulated_store import SimulatedStore
from benchmarks.validity import METRICS, WAYS
from nlgraft.analysis.policy.validity import Design, design_of, estimate_validity
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from tests.commands import json_of, nlgraft, write_study

ARMS = ["random_init", "avg_eg", "patt_eg"]
ARM_OF = {"base": ARMS[0], "arm": "avg_eg", "arm0": "avg_eg", "arm1": "att_eg", "arm2": "patt_eg"}
ARM_OF["arm3"] = "src_elmo"


@pytest.fixture
def study(make_arms):
    return make_arms(
        ARMS,
        seeds=list(range(8)),
        sequential={"looks": [3, 5, 8]},
        objective={"metric": "dev/loss", "direction": "minimize"},
    )


def design_before(study, scored):
    """The design of a study that has not run."""
    return design_of(scored(study, {cell.label: {} for cell in cells(study)}))


def test_before_a_study_ran_variances_are_assumed(study, scored):
    design = design_before(study, scored)
    assert design.weights.tolist() == [[-1, 1, 0], [-1, 0, 1]]
    assert (design.looks, design.num_seeds, design.run_looks) == ((3, 5, 8), 8, [3, 5, 8])
    assert design.is_assumed
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
    design = design_before(study, scored)
    # four arms against the baseline, and patt_eg against att_eg; the other claims repeat the former
    assert design.weights.shape == (5, 5)
    assert design.weights[-1].tolist() == [0, 0, 0, -1, 1]


def test_power_is_simulated_around_the_detectable_difference_and_coverage_counts_segments():
    """Segments are nearly all the noise of two comparisons with one baseline."""
    weights = np.array([[-1.0, 1, 0], [-1, 0, 1]])
    validity = estimate_validity(Design(weights, (3,), 3, 0.05, 1e-6, 1.0, False), 400)
    detectable = 2.326348 + 0.841621
    assert list(validity.power) == pytest.approx(
        [factor * detectable for factor in (0.5, 1, 1.5, 2)], rel=1e-3
    )
    assert list(validity.power.values()) == pytest.approx([0.229, 0.8, 0.992, 1.0], abs=0.06)
    assert validity.coverage == pytest.approx(0.95, abs=0.03)
    # Agresti and Coull: 20 of 400 and four pseudo-observations, two of them hits
    middle = (20 + 1.92) / 403.84
    assert validity.error_of(0.05) == pytest.approx(1.96 * np.sqrt(middle * (1 - middle) / 403.84), rel=1e-3)
    assert 0 < validity.error_of(0.0) < 0.01


def test_the_effect_is_that_of_one_cell_of_the_first_comparison():
    """A difference of two gains has four cells, one of them in both."""
    for row in ([1.0, -1, -1, 1], [-2.0, 1, 0, 1]):
        design = Design(np.array([row]), (8,), 8, 0.05, 1e-4, 0.0, False)
        scores = design.with_effect(design.scores(np.random.default_rng(1)), 1.0)
        assert abs((np.array(row) @ scores).mean()) == pytest.approx(1.0, abs=0.05)


def test_a_design_without_a_comparison_is_refused(make_study, scored):
    study = make_study(factors={}, claims=[])
    with pytest.raises(ValueError, match="at least two cells"):
        estimate_validity(design_before(study, scored), 100)


class RealStore:
    """Reports the simulated scores as results of real studies, with a real ledger."""

    def __init__(self, simulated, store, make_arms, scored, with_trials):
        self.simulated, self.store, self.make_arms = simulated, store, make_arms
        self.scored, self.with_trials = scored, with_trials
        self.verdicts = {"file": set(), "ledger": set()}

    def report(self, file, seeds, run=None):
        arms = [ARM_OF[cell.partition("@")[0]] for cell in file.cells]
        labels = dict(zip(file.cells, ["baseline", *(f"arm={arm}" for arm in arms[1:])], strict=True))
        number = int(file.baseline.partition("@")[2] or "0")
        study = self.make_arms(
            arms,
            base={"lr": 1e-3 * (1 + number)},
            seeds=list(seeds),
            objective={"metric": "dev/loss", "direction": "minimize"},
            **({"sequential": {"looks": list(file.looks)}} if file.looks else {}),
        )
        rows = {
            label: {"dev/loss": [self.simulated.score(cell, seed, METRICS[0]) for seed in seeds]}
            for cell, label in labels.items()
        }
        result = replace(self.scored(study, rows), store=self.store)
        is_run = {label for cell, label in labels.items() if run is None or cell in run}
        planned = {"state": "planned", "record": None}
        result = self.with_trials(result, lambda label, _: {} if label in is_run else planned)
        for cells_of_question in file.questions:
            label = labels[cells_of_question[0]]
            for judge, view in (("file", result.alone()), ("ledger", result)):
                if view.compare(label).standing != "open":
                    self.verdicts[judge].add(cells_of_question)


@pytest.mark.parametrize(
    "way",
    [
        "`--only`: one arm at a time of two",
        "arms swapped in the file, 4",
        "continued with --next-look: 3, 6, 12 seeds, 4 arms",
        "planned looks planned again",
        "3 variants",
    ],
)
def test_a_simulated_store_decides_as_a_real_one(way, make_arms, scored, with_trials, tmp_path):
    """Scores of the same trials through the platform's results and ledger give the same verdicts."""
    rng = np.random.default_rng(3)
    num_verdicts = 0
    for number in range(3):
        # some effects are large, some small, in both directions
        effects = {"arm": 3.0, "arm0": 3.0, "arm1": 1.0, "arm2": -1.5}
        simulated = SimulatedStore(rng, effects, metrics=METRICS, seed_variance=0.5)
        WAYS[way](simulated)
        real = RealStore(
            simulated, ArtifactStore.open(tmp_path / str(number)), make_arms, scored, with_trials
        )
        WAYS[way](real)
        assert real.verdicts == simulated.verdicts
        num_verdicts += len(real.verdicts["file"])
    assert num_verdicts, "nothing was decided, so nothing was compared"


def test_the_command_simulates_the_study_as_declared(make_small_study, tmp_path):
    study = make_small_study(storage={"path": str(tmp_path / "store")})
    path = write_study(tmp_path / "study.yaml", study.model_dump(mode="json", exclude_unset=True))
    arguments = ["validity", path, "--simulations", "100"]
    shown = " ".join(nlgraft(*arguments).output.split())
    assert "False verdict: no cell differs" in shown
    assert "Margins, effects of crossed factors and claims on further metrics are not simulated" in shown
    document = json_of(*arguments, "--json")
    assert all(0 <= document[name] <= 1 and error > 0 for name, error in document["errors"].items())
    assert [row["effect"] / document["detectable"] for row in document["power"]] == [0.5, 1.0, 1.5, 2.0]
