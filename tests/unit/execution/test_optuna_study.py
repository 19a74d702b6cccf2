"""One Optuna study per cell: its seed, and a database that cannot be used."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from nlgraft.basics.errors import StoreError
from nlgraft.execution.optuna_study import OptunaStudy, check_optuna, database_url
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Objective, Search
from nlgraft.study.public import Study
from nlgraft.study.reading.place_rules import OPTUNA_FILE
from tests.small_studies import SHARE

MODELS = [{"name": name, "num_startup_trials": 2} for name in ("tpe", "gp")]


def open_study(url=None, check=lambda: None, start=(), **sampler):
    document = {"sampler": sampler, "space": {"gain": SHARE}, "trials": 4, "start": [*start]}
    search = Search.model_validate(document)
    return OptunaStudy("cell", search, Objective(metric="dev/score", direction="maximize"), url, check)


def finished(score):
    return TrialRecord(fingerprint="f", config={}, seed=1, state="finished", metrics={"dev/score": score})


@pytest.mark.parametrize("sampler", [{"name": "random"}, *MODELS])
def test_proposals_follow_the_seed_the_number_and_where_a_search_starts(sampler):
    def proposals(seed, start=()):
        study = open_study(start=start, seed=seed, **sampler)
        gains = []
        for number in range(4):
            gains.append(study.propose(number, {})["gain"])
            study.tell(number, finished(-((gains[-1] - 0.7) ** 2)))
        return gains

    assert proposals(seed=1) == proposals(seed=1)
    assert len({*proposals(seed=1), *proposals(seed=2)}) == 8
    first, *others = proposals(1, [{"gain": 0.9}])
    assert first == 0.9
    # A model knows it; what is drawn depends on number and seed alone.
    assert (others[1:] == proposals(seed=1)[2:]) is (sampler["name"] == "random")


def open_grid():
    space = {
        "gain": {"type": "categorical", "choices": [1, 2, [4]]},
        "share": {"type": "float", "low": 0.1, "high": 0.3, "step": 0.1},
    }
    search = Search.model_validate({"sampler": {"name": "grid"}, "space": space, "trials": 9})
    return OptunaStudy("cell", search, Objective(metric="dev/score", direction="maximize"), None)


def test_a_grid_is_told_to_its_last_point_in_an_order_that_outlasts_a_release():
    study = open_grid()
    proposed = [study.propose(number, {}) for number in range(9)]
    study.tell(8, replace(finished(1.0), state="failed", reason="no memory"))
    for number in range(8):
        study.tell(number, finished(1.0))
    points = {(str(point["gain"]), round(point["share"], 6)) for point in proposed}
    assert points == {(gain, share) for gain in ("1", "2", "[4]") for share in (0.1, 0.2, 0.3)}
    first = [(point["gain"], round(point["share"], 1)) for point in proposed[:4]]
    assert first == [([4], 0.2), (2, 0.3), (1, 0.2), (2, 0.1)]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 8 + ["FAIL"]


def test_a_grid_too_large_to_list_is_visited_without_repetition():
    space = {f"gain{place}": {"type": "int", "low": 1, "high": 10**9} for place in range(3)}
    space["share"] = {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5}
    search = Search.model_validate({"sampler": {"name": "grid"}, "space": space, "trials": 40})
    objective = Objective(metric="dev/score", direction="maximize")
    first, second = (OptunaStudy("cell", search, objective, None) for _ in range(2))
    points = [first.propose(number, {}) for number in range(40)]
    assert len({tuple(point.values()) for point in points}) == 40
    assert {point["share"] for point in points} == {0.0, 0.5, 1.0}
    assert second.propose(39, {}) == points[39]


def test_optuna_hears_how_each_proposal_ended():
    study = open_study()
    ends = {
        0: finished(3.0),
        1: finished(math.nan),
        2: replace(finished(1.0), state="stopped"),
        3: replace(finished(1.0), state="failed", reason="no memory"),
    }
    for number in range(4):
        study.propose(number, {})
        study.intermediate(number, float(number), 5)
    study.intermediate(0, math.inf, 6)
    for number, record in ends.items():
        study.tell(number, record)
        study.tell(number, finished(9.0))  # the second word changes nothing
    trials = study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "PRUNED", "FAIL"]
    assert [trial.intermediate_values for trial in trials] == [{5: 0.0}, {5: 1.0}, {5: 2.0}, {5: 3.0}]
    assert (trials[0].values, trials[2].values) == ([3.0], [2.0])
    assert trials[3].user_attrs["nlgraft.reason"] == "no memory"


def test_a_damaged_database_is_named_and_made_again_from_the_proposals(tmp_path):
    database = tmp_path / "optuna.db"
    url = f"sqlite:///{database}"
    database.write_bytes(b"this was a database" * 100)
    with pytest.raises(
        StoreError, match=r"optuna\.db in the store: file is not a database\. Delete the file"
    ):
        open_study(url)
    database.unlink()
    study = open_study(url)
    study.reconcile({0: {"gain": 0.25}, 1: {"gain": 0.5}}, {0: finished(3.0)})
    assert [(trial.state.name, trial.params, trial.values) for trial in study.trials] == [
        ("COMPLETE", {"gain": 0.25}, [3.0]),
        ("RUNNING", {"gain": 0.5}, None),
    ]


def test_a_database_that_another_process_keeps_locked_ends_no_search(tmp_path):
    """As one that is stopped in mid-transaction does; whatever it holds up is written later."""
    url = f"sqlite:///{tmp_path / 'optuna.db'}?timeout=0.1"
    running = open_study(url)
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for study in (running, open_study(url)):
            params = study.propose(0, {})
            study.tell(0, finished(1.0))
            study.flush()
            assert study.trials[0].values == [1.0]
    running.flush()
    assert database_trials(url) == [("COMPLETE", 0, params, {})]


def database_trials(url):
    [summary] = optuna.get_all_study_summaries(url)
    trials = optuna.load_study(study_name=summary.study_name, storage=url).trials
    return [
        (trial.state.name, trial.user_attrs["nlgraft.number"], trial.params, trial.intermediate_values)
        for trial in trials
    ]


def test_the_database_gets_every_trial_once_and_whole(tmp_path):
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    study = open_study(url)
    params = {number: study.propose(number, {}) for number in range(4)}
    study.intermediate(2, 0.5, 7)
    for number in (1, 0, 2):
        study.tell(number, replace(finished(1.0), state="stopped" if number == 2 else "finished"))
    assert database_trials(url) == [("COMPLETE", 1, params[1], {})], "the others wait for their batch"
    study.flush()
    study.flush()
    assert database_trials(url)[1:] == [("COMPLETE", 0, params[0], {}), ("PRUNED", 2, params[2], {7: 0.5})]
    resumed = open_study(url)
    resumed.reconcile(params, {number: finished(1.0) for number in range(3)})
    states = [(trial.state.name, trial.user_attrs["nlgraft.number"]) for trial in resumed.trials]
    assert states == [("COMPLETE", 0), ("COMPLETE", 1), ("PRUNED", 2), ("RUNNING", 3)]
    assert len(database_trials(url)) == 3


def test_a_driver_that_is_killed_before_it_writes_loses_no_trial(tmp_path):
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    killed = open_study(url, name="tpe", seed=1, num_startup_trials=2)
    params, records = {}, {}
    for number in range(6):
        params[number] = killed.propose(number, {})
        records[number] = finished(params[number]["gain"])
        killed.tell(number, records[number])
    assert len(database_trials(url)) < 6
    resumed = open_study(url, name="tpe", seed=1, num_startup_trials=2)
    resumed.reconcile(params, records)
    assert [number for _, number, *_ in database_trials(url)] == list(range(6))
    assert resumed.propose(6, {}) == killed.propose(6, {})


def test_a_driver_that_lost_its_study_writes_no_trial_and_a_trial_that_is_there_twice_counts_once(
    tmp_path,
):
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    is_ours = True

    def check():
        if not is_ours:
            raise StoreError("another driver has taken over")

    study = open_study(url, check, name="random", seed=1)
    for number in range(2):
        study.propose(number, {})
    study.tell(0, finished(1.0))
    is_ours = False
    study.tell(1, finished(2.0))  # waits for the next flush
    with pytest.raises(StoreError, match="taken over"):
        study.flush()
    stored = optuna.load_study(study_name="cell", storage=url)
    assert [trial.values for trial in stored.trials] == [[1.0]]
    stored.add_trial(stored.trials[0])
    assert len(open_study(url, name="random", seed=1).trials) == 1


def test_to_verify_a_search_that_never_ran_makes_no_store(toy_document):
    space = {"noise": SHARE}
    study = Study.from_dict(toy_document | {"search": {"space": space, "trials": 2}})
    store = ArtifactStore.open(study.storage.path)
    [finding] = check_optuna(study, store, cells(study), [])
    assert "optuna.db is missing" in finding.what
    assert not Path(study.storage.path).exists()


@pytest.mark.parametrize("name", ["a b", "50%20x", "what?", "a?mode=ro", "h#sh", "{x}"])
def test_a_database_lies_in_its_store_whatever_that_is_called(tmp_path, name):
    open_study(database_url(ArtifactStore.open(tmp_path / name)), name="random")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / OPTUNA_FILE).is_file()
