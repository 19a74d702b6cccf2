"""Studies that do not go as declared: simulated stores decide as real ones, and rates agree with theory."""

import inspect
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from nlgraft import api
from nlgraft.analysis.policy import departures
from nlgraft.analysis.policy.departures import Course, Departure, Design, Rate, outcomes, run_as_declared
from nlgraft.analysis.policy.simulated_store import SimulatedStore, Trouble
from nlgraft.commands.main import main
from nlgraft.pipeline.store import ArtifactStore

ARMS = ["random_init", "avg_eg", "att_eg", "patt_eg"]


def design(num_arms=1, looks=(3,), **changes):
    weights = np.hstack([-np.ones((num_arms, 1)), np.eye(num_arms)])
    return replace(Design(weights, looks, looks[-1], 0.05, True, 1.0, 0.0, is_assumed=True), **changes)


def simulated(built, num, effect=0.0, trouble=None):
    return run_as_declared(built, num, [effect], Course("", ""), trouble)


class RealStore:
    """Reports the simulated scores as results of real studies, with a real ledger."""

    def __init__(self, simulated, store, make_study, scored):
        self.simulated, self.store, self.make_study, self.scored = simulated, store, make_study, scored
        self.verdicts = {"file": set(), "ledger": set()}

    def report(self, file, seeds, run=None):
        number = file.baseline.partition("@")[2] or "0"
        arms = [ARMS[int(cell.partition("@")[0][4:])] for cell in file.cells]
        changes = {"sequential": {"looks": list(file.looks)}} if file.looks else {}
        study = self.make_study(
            factors={"arm": {"target": "arm", "levels": arms, "baseline": arms[0]}},
            base={"lr": 1e-3 * (1 + int(number))},
            seeds=list(seeds),
            objective={"metric": "dev/loss", "direction": "minimize"},
            claims=[],
            published=[],
            **changes,
        )
        labels = dict(zip(file.cells, ["baseline", *(f"arm={arm}" for arm in arms[1:])], strict=True))
        rows = {
            labels[cell]: {"dev/loss": [self.simulated.score(cell, seed, "score") for seed in seeds]}
            for cell in file.cells
        }
        result = replace(self.scored(study, rows), store=self.store)
        ran = {labels[cell] for cell in (file.cells if run is None else run)}
        result.cells = tuple(
            cell
            if cell.cell.label in ran
            else replace(cell, trials=tuple(replace(t, state="planned", record=None) for t in cell.trials))
            for cell in result.cells
        )
        for cells in file.questions:
            label = labels[cells[0]]
            for judge, seen in (("file", result.alone()), ("ledger", result)):
                if seen.standing(seen.compare(label)) != "open":
                    self.verdicts[judge].add(cells)


@pytest.mark.parametrize("plan", [{}, {"looks": (3, 5)}, {"looks": (5, 10), "num_seeds": 5}])
@pytest.mark.parametrize("name", ["only", "cells added", "more seeds", "variants", "next looks"])
def test_a_simulated_store_decides_as_a_real_one(name, plan, make_study, scored, tmp_path):
    """Scores of the same trials through the platform's results and ledger give the same verdicts."""
    built = design(3, **{"looks": (5,), **plan})
    file = departures.study_file(built)
    walks = [walk for course, walk in departures._ways(built, 3) if course.name == name]
    if not walks:
        assert name == "next looks", "there is no look left"
        return
    (walk,) = walks
    rng = np.random.default_rng(3)
    num_verdicts = 0
    for number in range(3):
        # each arm may have its effect: some large, some small, in both directions
        effects = {f"cell{arm}": size for arm, size in enumerate((3.0, 1.0, -1.5), 1)}
        simulated = SimulatedStore(rng, effects, seed_variance=0.5)
        walk(simulated, file, 5)
        real = RealStore(simulated, ArtifactStore.open(tmp_path / str(number)), make_study, scored)
        walk(real, file, 5)
        assert real.verdicts == {judge: simulated.verdicts[judge] for judge in real.verdicts}
        num_verdicts += len(real.verdicts["file"])
    assert num_verdicts, "nothing was decided, so nothing was compared"


@pytest.mark.parametrize(("num_seeds", "expected"), [(3, 0.164), (5, 0.321)])
def test_one_pretraining_errs_as_often_as_theory_says(num_seeds, expected):
    """A constant with a seed's variance stretches the mean by sqrt(1 + n), which t does not know of."""
    limit = stats.t.isf(0.025, num_seeds - 1) / np.sqrt(1 + num_seeds)
    assert 2 * stats.t.sf(limit, num_seeds - 1) == pytest.approx(expected, abs=0.001)
    limit = stats.t.isf(0.02, num_seeds - 1) / np.sqrt(1 + num_seeds)
    validity = simulated(design(looks=(num_seeds,)), 1000, trouble=Trouble(pretraining=0.5))
    assert validity.single == pytest.approx(2 * stats.t.sf(limit, num_seeds - 1), abs=0.04)
    assert validity.outcome.coverage.value == pytest.approx(1 - expected, abs=0.04)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_collapsed_seeds_hide_effects_as_t_tests_of_such_scores_do(share):
    num, size = 4000, 3.0
    rng = np.random.default_rng(4)
    scores = rng.standard_normal((2, num, 5)) / np.sqrt(2)
    scores[0] += size
    scores[rng.random(scores.shape) < share] = -20.0
    differences = scores[0] - scores[1]
    differences = differences[differences.std(axis=1) > 0]
    power = (stats.ttest_1samp(differences, 0.0, axis=1).pvalue <= 0.04).sum() / num
    validity = simulated(design(looks=(5,)), 1000, size, Trouble(collapse=share))
    assert validity.power[size] == pytest.approx(power, abs=0.05)
    assert validity.single <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_settings_take_effect():
    single_arm = {o.course.name: o for o in outcomes(design(), 200, 5.0, Departure(0.1, 1.0, 2))}
    other = {o.course.name: o for o in outcomes(design(), 200, 5.0, Departure(0.4, 9.0, 5))}
    assert other["collapse"].finds["file"].value < single_arm["collapse"].finds["file"].value - 0.2
    assert (
        other["one pretraining"].errs["file"].value > single_arm["one pretraining"].errs["file"].value + 0.15
    )
    assert other["variants"].errs["file"].value > single_arm["variants"].errs["file"].value + 0.04
    assert other["more seeds"].course.description.endswith("4, 5, 6, 7, 8")
    assert "only" not in single_arm, "a study of one arm has no parts"


def test_the_ledger_holds_the_level_where_files_do_not():
    by_course = {o.course.name: o for o in outcomes(design(2), 300, 5.0, Departure(tries=4))}
    for name in ("more seeds", "variants"):
        assert by_course[name].errs["file"].value > 0.065
    for outcome in by_course.values():
        if outcome.course.name != "one pretraining":
            assert outcome.errs["ledger"].value <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_a_claim_of_four_cells_is_asked_of_four_cells():
    weights = np.array([[-1.0, 1, 0, 0], [1, -1, -1, 1], [-2, 1, 0, 1]])
    file = departures.study_file(design(weights=weights))
    assert file.questions == (
        ("cell1", "cell0"),
        ("cell0", "cell1", "cell2", "cell3"),
        ("cell1", "cell0", "cell0", "cell3"),
    )
    store = SimulatedStore(np.random.default_rng(2), {"cell3": 50.0})
    store.report(file, range(4))
    assert store.verdicts["ledger"] == set(file.questions[1:])
    assert not store.has_erred("ledger")


def test_the_error_of_a_share():
    # Agresti and Coull: 100 of 2,000 and four pseudo-observations, two of them hits
    middle = (100 + 1.92) / 2003.84
    assert Rate(0.05, 2000).error == pytest.approx(1.96 * np.sqrt(middle * (1 - middle) / 2003.84), rel=1e-3)
    assert 0 < Rate(0.0, 1000).error < 0.004


@pytest.fixture
def study_file(make_small_study, tmp_path):
    document = make_small_study(claims=[], published=[], storage={"path": str(tmp_path / "store")})
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(document.model_dump(mode="json", exclude_unset=True)))
    return str(path)


def test_the_command_says_what_would_happen(study_file):
    arguments = ["validity", study_file, "--simulations", "100"]
    ran = CliRunner().invoke(main, [*arguments, "--collapse", "0.25", "--tries", "4"])
    assert ran.exit_code == 0, ran.output
    assert "25 % of the seeds collapse" in ran.output
    assert "seeds added after looking, beside the looks: 4, 5, 6, 7" in " ".join(ran.output.split())
    assert "4 variants" in ran.output
    assert "False verdict: no cell differs" in " ".join(ran.output.split())
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    names = [outcome["name"] for outcome in document["outcomes"]]
    assert names == ["as declared", "next looks", "more seeds", "variants", "collapse", "one pretraining"]
    for outcome in document["outcomes"]:
        for kind in ("false_verdicts", "effect_found"):
            assert set(outcome[kind]) == {"file", "ledger"}
            assert all(0 <= rate["rate"] <= 1 and rate["error"] > 0 for rate in outcome[kind].values())


def test_command_and_api_have_the_same_defaults():
    expected = asdict(Departure())
    options = {option.name: option.default for option in main.commands["validity"].params}
    parameters = {
        name: parameter.default for name, parameter in inspect.signature(api.validity).parameters.items()
    }
    assert {name: options[name] for name in expected} == expected
    assert {name: parameters[name] for name in expected} == expected


def test_a_margin_is_said_not_to_be_simulated(study_file):
    arguments = ["validity", study_file, "--simulations", "100", "--json"]
    document = json.loads(CliRunner().invoke(main, [*arguments, "analysis.margin={test/bleu: 0.5}"]).output)
    assert [note for note in document["notes"] if "the margin is not simulated" in note]
    assert json.loads(CliRunner().invoke(main, arguments).output)["notes"] == []


@pytest.mark.parametrize("option", [("--collapse", "1"), ("--pretraining", "-1"), ("--tries", "1")])
def test_the_command_refuses_what_cannot_be(study_file, option):
    assert CliRunner().invoke(main, ["validity", study_file, *option]).exit_code == 2
