"""Which searched setting mattered: importances beside chance, and what a reader is shown."""

import json
from dataclasses import replace

import numpy as np
import optuna
import pytest

from nlgraft.analysis.rendering import search_tables
from nlgraft.execution.optuna_study import importances
from nlgraft.study.data.system import System

SPACE = {
    "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
    "upstream": {"type": "categorical", "choices": ["a", "b"]},
    "segments": {"type": "int", "low": 10, "high": 40, "when": {"upstream": "b"}},
}
SCORES = {key: [1.0, 2.0, 3.0] for key in ("dev/bleu", "test/bleu", "dev/loss")}


@pytest.fixture(scope="module")
def searched(make_small_study, scored, with_search):
    """Build a result whose first cell has these search trials: params, and objective or state."""

    def build(tried, sampler="random", **changes):
        study = make_small_study(
            search={"space": SPACE, "trials": max(2, len(tried)), "sampler": {"name": sampler}},
            **changes,
        )
        result = scored(study, dict.fromkeys(("baseline", "arm=patt_eg"), SCORES))
        return replace(with_search(result, tried), importance=importances)

    return build


FEW = [
    ({"lr": 1e-3, "upstream": "a"}, 10.0),
    ({"lr": 1e-2, "upstream": "a"}, 14.0),
    ({"lr": 1e-2, "upstream": "b", "segments": 20}, 16.0),
    ({"lr": 1e-1, "upstream": "b", "segments": 30}, "stopped"),
    ({"lr": 1e-1, "upstream": "b", "segments": 30}, "failed"),
    ({"lr": 1e-1, "upstream": "b", "segments": 30}, float("nan")),
]


def test_trials_that_finished_count(searched):
    result = searched(FEW)
    (cell,) = result.searched_settings
    text = search_tables.which_setting(result)
    assert text.endswith("baseline: nothing to be said from 3 finished trials.")
    assert (cell.num_trials, cell.num_left_out) == (3, 3)
    assert {setting.path: setting.num_without for setting in cell.settings}["segments"] == 2
    assert [setting.share for setting in cell.settings] == [None] * 3
    assert cell.caveats[0] == "3 finished trials are too few for importances"
    assert "left out" in cell.caveats[1]


def test_a_value_that_nothing_reads_tells_nothing(monkeypatch, searched):
    monkeypatch.setattr(System, "is_read", lambda self, path, config: path != "segments")
    (cell,) = searched(FEW).searched_settings
    assert {setting.path for setting in cell.settings} == {"lr", "upstream"}


def test_a_configuration_that_was_proposed_again_counts_once(searched):
    (cell,) = searched([*FEW, *FEW[:2]]).searched_settings
    assert cell.num_trials == 3
    assert "2 trials repeat the values of another one and are not counted" in cell.caveats


def drawn(objective, num=40, seed=2):
    rng = np.random.default_rng(seed)
    trials = []
    for _ in range(num):
        params = {"lr": float(10 ** rng.uniform(-4, -1)), "upstream": ["a", "b"][rng.integers(2)]}
        if params["upstream"] == "b":
            params["segments"] = int(rng.integers(10, 41))
        trials.append((params, float(objective(params, rng))))
    return trials


def test_what_decides_stands_out_beyond_chance(searched):
    result = searched(drawn(lambda params, rng: 40 - 5 * abs(np.log10(params["lr"]) + 2) + rng.normal()))
    (cell,) = result.searched_settings
    assert cell.settings[0].path == "lr"
    assert [setting.path for setting in cell.settings if setting.stands_out] == ["lr"]
    assert sum(setting.share for setting in cell.settings) == pytest.approx(1.0)
    text = search_tables.which_setting(result)
    assert text.startswith("Which setting mattered for dev/bleu ")
    assert "baseline: lr (0." in text


def test_noise_seldom_stands_out(searched):
    """Of twenty searches one has a marked setting; of forty more than six in one of 300 sets of them."""
    cells = [
        searched(drawn(lambda _, rng: rng.normal(), num=24, seed=seed)).searched_settings[0]
        for seed in range(40)
    ]
    assert sum(any(setting.stands_out for setting in cell.settings) for cell in cells) <= 6


@pytest.mark.slow
def test_a_search_that_looks_where_it_was_lucky_marks_no_more(searched):
    """The hole that was: of TPE's searches with idle settings .27 named one."""
    num_marked = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        for _ in range(24):
            trial = study.ask()
            trial.suggest_float("lr", 1e-4, 1e-1, log=True)
            if trial.suggest_categorical("upstream", ["a", "b"]) == "b":
                trial.suggest_int("segments", 10, 40)
            study.tell(trial, rng.normal())
        (cell,) = searched([(trial.params, trial.value) for trial in study.trials]).searched_settings
        num_marked += any(setting.stands_out for setting in cell.settings)
    assert num_marked / 150 < 0.055 + 2 * (0.05 * 0.95 / 150) ** 0.5


def test_p_is_that_of_an_exact_count(searched):
    """Of 792 ways to choose 5 of 12 objectives two are as far from the rest; the rate doubles that."""
    rates = [3, 9, 6, 12, 1, 8, 4, 11, 2, 7, 10, 5]
    trials = [({"lr": rates[n] * 1e-3, "upstream": "a" if n < 5 else "b"}, float(n)) for n in range(12)]
    (cell,) = searched(trials).searched_settings
    settings = {setting.path: setting for setting in cell.settings}
    assert settings["upstream"].p == pytest.approx(2 / 792, abs=0.006)
    assert settings["lr"].p > 0.2
    assert "segments" not in settings
    assert "none more than by chance" in search_tables.which_setting(
        searched(drawn(lambda _, rng: rng.normal(), seed=3))
    )


def test_every_format_shows_it(searched):
    result = searched(drawn(lambda params, rng: 5 * np.log10(params["lr"]) + rng.normal()), "tpe")
    for kind in ("md", "html", "latex"):
        assert "shuffles of the same trials" in result.render(kind)
    text = result.render("md")
    assert "## Which setting mattered" in text
    assert "tpe tried the values that looked good more often" in text
    assert "was searched in" in text
    document = json.loads(result.render("json"))
    settings = document["cells"][0]["search"]["settings"]
    assert settings["settings"][0]["setting"] == "lr"
    assert settings["settings"][0]["stands_out"]
    assert document["which_setting"].count("lr (") == 1


def test_a_study_without_a_search_says_nothing(make_small_study, scored):
    result = scored(make_small_study(), dict.fromkeys(("baseline", "arm=patt_eg"), SCORES))
    assert result.searched_settings == []
    assert search_tables.which_setting(result) == ""
    assert search_tables.importance_table(result) is None
    assert search_tables.expected_best_table(result) is None
    assert "search" not in result.to_json()["cells"][0]
    assert "Which setting mattered" not in result.render("md")
