"""Replays of a finished search: regret by hand, early stopping by hand, and the command."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

from nlgraft import api
from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.commands.main import main
from nlgraft.execution.replay import (
    Regret,
    Run,
    _distances,
    _place,
    _regret,
    _replay_once,
    pruner_for,
    read_tables,
)
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Objective, Search, TrialScheduler
from nlgraft.study.planning.selection import Proposal, save_proposal
from nlgraft.study.public import Study

GAINS = [0.1, 0.5, 0.9]
SPACE = {"gain": {"type": "float", "low": 0.0, "high": 1.0}}


def recorded(
    document: dict[str, Any],
    values: list[float | None],
    curves: list[list[float]],
    direction: Literal["maximize", "minimize"] = "maximize",
) -> Study:
    """Record a search of the baseline alone: values None failed, curves have a point every 10 steps."""
    objective = Objective(metric="dev/score", direction=direction)
    study = Study.from_dict(document).model_copy(update={"objective": objective})
    store = ArtifactStore.open(study.storage.path)
    cell = cells(study)[0]
    gains = np.linspace(0.1, 0.9, len(values)).tolist()
    for number, (gain, value, points) in enumerate(zip(gains, values, curves, strict=True)):
        record = TrialRecord(
            fingerprint=f"f{number}",
            config={},
            seed=0,
            state="failed" if value is None else "finished",
            metrics={} if value is None else {"dev/score": value},
            curves={"dev/score": [[10 * (i + 1), point, 0] for i, point in enumerate(points)]},
        )
        store.write_record("trials", record.fingerprint, record.to_json())
        save_proposal(study, cell, store, Proposal(number, {"gain": gain}, 0, record.fingerprint))
    return study


@pytest.fixture
def document(toy_document: dict[str, Any]) -> dict[str, Any]:
    toy_document["factors"] = {"upstream": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    return toy_document | {"search": {"sampler": {"name": "random"}, "space": SPACE, "trials": 3}}


def run_of(value: float, points: list[float], gain: float) -> Run:
    curve = [(10 * (index + 1), point) for index, point in enumerate(points)]
    return Run({"gain": gain}, value, curve, 1.0)


def search_of(sampler: str, seed: int = 0) -> Search:
    return Search.model_validate({"sampler": {"name": sampler, "seed": seed}, "space": SPACE, "trials": 3})


def regret(
    table: list[Run], num_simulations: int, sampler: str = "random", scheduler: str = "none"
) -> Regret:
    return _regret(table, search_of(sampler), {}, sampler, scheduler, num_simulations)


def test_regret_of_random_search_is_that_of_the_nearest_configurations() -> None:
    # losses 4, 1, 7 at 0.1, 0.5, 0.9: uniform proposals are nearest to them with .3, .4, .3
    table = [run_of(value, [], gain) for value, gain in zip((4.0, 1.0, 7.0), GAINS, strict=True)]
    found = regret(table, 150)
    assert found.mean[0] == pytest.approx(0.3 * 3 + 0.3 * 6, abs=3 * 2.5 / math.sqrt(150))
    # 0.1 first, then 0.9 from [.7, 1], or the other way round: .3 * .3 each, and 3 above the best
    assert found.mean[1] == pytest.approx(2 * 0.3 * 0.3 * 3, abs=3 * 1.2 / math.sqrt(150))
    assert found.mean[2] == 0.0
    assert (found.low[0], found.high[0]) == (0.0, 6.0)
    # a proposal is within d <= .1 of one of three configurations with probability 6 d
    assert found.distance[0] == pytest.approx(1 / 12, abs=0.02)
    assert found.distance[2] > 2 * found.distance[0]  # what is left lies where it will


@pytest.mark.parametrize(("direction", "best"), [("maximize", 9.0), ("minimize", 3.0)])
def test_the_best_follows_the_direction(document: dict[str, Any], direction: Any, best: float) -> None:
    study = recorded(document, [6.0, 9.0, 3.0], [[1.0, 2.0]] * 3, direction)
    table, _ = read_tables(study, ArtifactStore.open(study.storage.path))
    assert (table.best, min(run.value for run in table.runs)) == (best, -9.0 if best == 9.0 else 3.0)
    assert [run.curve for run in table.runs] == [[(10, -1.0), (20, -2.0)]] * 3  # a score, whatever is sought


def replayed(table: list[Run], pruner: Any, seed: int) -> tuple[list[float], list[float]]:
    spent, best, _ = _replay_once(table, search_of("random", seed), {}, pruner)
    return spent.tolist(), best.tolist()


def test_successive_halving_stops_what_is_worse_than_the_first_third() -> None:
    # rungs at 10 and 30 steps; of up to five trials at a rung only the best goes on
    table = [run_of(value, [value] * 4, gain) for value, gain in zip((1.0, 2.0, 3.0), GAINS, strict=True)]
    for seed in range(12):
        spent, best = replayed(table, SuccessiveHalvingPruner(10, 3), seed)
        costs = np.diff([0.0, *spent]).tolist()
        order, seen = [], math.inf
        for cost, value in zip(costs, best, strict=True):
            order.append(cost)
            assert (cost == 1.0) == (value < seen)  # whoever is the best so far completes, others stop at 10
            assert cost in (1.0, pytest.approx(0.25))
            seen = min(seen, value)
        assert best[-1] == 1.0
    assert replayed(table, NopPruner(), 0)[0] == [1.0, 2.0, 3.0]


def test_median_stopping_waits_for_three_trials_and_the_grace() -> None:
    spec = TrialScheduler(name="median", grace_steps=20)
    values = (1.0, 2.0, 3.0, 4.0)
    table = [
        run_of(value, [value] * 4, gain) for value, gain in zip(values, (0.1, 0.3, 0.6, 0.9), strict=True)
    ]
    pruner = pruner_for("median", spec, table)
    assert isinstance(pruner, MedianPruner)
    costs = {seed: np.diff([0.0, *replayed(table, pruner, seed)[0]]).round(6).tolist() for seed in range(12)}
    assert {tuple(one[:3]) for one in costs.values()} == {(1.0, 1.0, 1.0)}
    # the fourth is stopped at 20 of 40 steps where it is above the median of the others
    assert {one[3] for one in costs.values()} == {1.0, 0.5}


def test_without_a_scheduler_of_the_study_the_first_evaluation_is_the_first_rung() -> None:
    table = [run_of(1.0, [1.0] * 4, 0.1)]
    first = pruner_for("asha", None, table)
    same = SuccessiveHalvingPruner(10, 3)
    assert vars(first) == vars(same)


def test_tpe_finds_the_valley_of_a_large_table_sooner_than_random() -> None:
    table = [run_of(100 * (gain - 0.3) ** 2, [], gain) for gain in np.linspace(0.0, 1.0, 50)]
    regrets = {sampler: regret(table, 4, sampler).mean[12:20].mean() for sampler in ("random", "tpe")}
    assert regrets["tpe"] < 0.5 * regrets["random"]


def test_schedulers_spend_less_until_they_have_the_best() -> None:
    table = [run_of(value, [value + 2, value + 1, value], value / 10) for value in range(1, 10)]
    none, asha = (regret(table, 15, scheduler=scheduler) for scheduler in ("none", "asha"))
    assert asha.mean[4] < 0.8 * none.mean[4]
    assert none.mean[-1] == 0.0


def test_distances_treat_choices_and_absent_values_as_one_apart() -> None:
    space = Search.model_validate(
        {
            "space": {
                "kind": {"type": "categorical", "choices": ["a", [1, 2]]},
                "rate": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
                "layers": {"type": "int", "low": 1, "high": 5, "when": {"kind": "a"}},
            },
            "trials": 1,
        }
    ).space
    first = _place(space, {"kind": "a", "rate": 1e-3, "layers": 2})
    assert first == pytest.approx([0.0, 0.5, 0.25])
    others = [{"kind": "a", "rate": 1e-4, "layers": 5}, {"kind": [1, 2], "rate": 1e-3}]
    places = np.array([_place(space, other) for other in others])
    is_choice = np.array([True, False, False])
    assert _distances(first, places, is_choice) == pytest.approx([0.25 + 0.5625, 1 + 1])
    assert _distances(places[1], places, is_choice) == pytest.approx([1 + 0.25 + 1, 0.0])


def test_the_command_prints_regrets_and_what_is_missing(document: dict[str, Any], tmp_path: Any) -> None:
    document["search"]["trials"] = 4
    study = recorded(document, [6.0, 9.0, 3.0, None], [[1.0, 2.0]] * 3 + [[1.0]])
    file = tmp_path / "study.json"
    file.write_text(json.dumps(document))
    arguments = ["replay", str(file), "--simulations", "10"]
    done = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert (result["study"], result["objective"], result["simulations"]) == ("toy", "dev/score", 10)
    first, other = result["cells"]
    assert (first["trials"], first["finished"], first["best"]) == (4, 3, 9.0)
    assert (first["curve"], first["steps_per_trial"]) == ("dev/score", 20.0)
    assert len(first["replays"]) == 2 * 3
    assert first["random_distance"] == pytest.approx((0.8 / 3 + 0.8 / 3 + 1.6 / 3) / 3)
    assert first["notes"] == ["1 of 4 trials have no final value"]
    assert other["notes"] == ["a table needs 3 finished trials"]
    text = CliRunner().invoke(main, arguments, catch_exceptions=False).stdout
    assert "median" in text
    assert "the nearest recorded configuration is taken" in text
    assert "Two recorded configurations lie 0.36 apart" in " ".join(text.split())
    assert "mean of 10 replays" in text
    assert len(api.replay(study, 10)) == 2


def test_without_curves_in_common_no_scheduler_is_replayed(document: dict[str, Any]) -> None:
    study = recorded(document, [6.0, 9.0, 3.0], [[1.0, 2.0], [1.0, 2.0], []])
    first, _ = api.replay(study, 10)
    assert [one.scheduler for one in first.regrets] == ["none", "none"]
    assert first.table.notes == ("no scheduler: the trials have no learning curve in common",)


def test_a_study_without_a_finished_search_is_refused(document: dict[str, Any]) -> None:
    study = Study.from_dict(document)
    with pytest.raises(NlgraftError, match="needs 3 finished search trials in a cell; there are baseline 0"):
        api.replay(study, 10)
    del document["search"]
    with pytest.raises(DataError, match="has no search"):
        api.replay(Study.from_dict(document), 10)
