"""Loading systems and resolving configs."""

import sys
import types

import pytest

from nlgraft.basics.errors import ContractError, StudyError
from nlgraft.study.data.design import cells, find_cell
from nlgraft.study.public import Study
from nlgraft.study.reading.knobs import knobs
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system


def test_a_system_is_its_module():
    system = load_system("toy_system")
    assert (system.name, system.path, system.paper) == ("toy_system", "toy_system", "Nobody (2021)")
    assert system.metrics["dev/loss"].direction == "minimize"
    assert system.metrics["speed"].is_time
    assert "train.peak_lr" in [knob.path for knob in knobs(system.config_type)]


@pytest.mark.parametrize(
    "path, message",
    [
        ("toy_sistem", "there is no module 'toy_sistem'"),
        ("trainables.embeding_transfer", "Did you mean 'trainables.embedding_transfer'?"),
        ("toy system", "'toy system' is no import path"),
        ("toy_system:Config", "is no import path"),
        ("", "is no import path"),
    ],
)
def test_a_system_that_is_not_there(path, message):
    with pytest.raises(StudyError) as caught:
        load_system(path)
    assert message in str(caught.value)


def test_a_module_that_is_missing_inside_a_system_is_named(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StudyError, match="needs_more needs the module 'surely_not_installed'"):
        load_system("needs_more")


def test_a_module_that_is_no_system_says_all_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "no_system", types.SimpleNamespace(NO_MODEL=True))
    with pytest.raises(StudyError) as caught:
        load_system("no_system")
    for name in ("Config", "METRICS", "stage_graph", "DESCRIPTION", "PAPER", "NO_MODEL"):
        assert name in str(caught.value)


def test_what_is_no_stage_graph_is_refused(monkeypatch, study):
    system = load_system("toy_system")
    monkeypatch.setattr(sys.modules["toy_system"], "stage_graph", lambda config, *, seed, splits: [])
    load_system.cache_clear()
    config = resolve_config(study, cells(study)[0])
    assert system.stage_graph(config, seed=1, splits=("dev",)).find("scores")
    with pytest.raises(ContractError, match=r"toy_system\.stage_graph returned a list"):
        load_system("toy_system").stage_graph(config, seed=1, splits=("dev",))


def test_a_config_is_base_data_cell_and_params(study):
    config = resolve_config(
        study, find_cell(study, "att_eg"), {"train.peak_lr": 0.25, "generator.kd_weight": 2.0}
    )
    assert config.model_dump(mode="json") == {
        "data": {"corpus": "conlang", "train": 10},
        "model": {"num_layers": 2, "num_fine_layers": 1, "merge": "sum", "dropout": 0.1},
        "generator": {"kind": "att", "kd_weight": 2.0},
        "train": {
            "max_steps": 5,
            "peak_lr": 0.25,
            "is_gradual": True,
            "betas": [0.9, 0.98],
            "lr_multipliers": {},
        },
        "notes": [],
        "start": None,
    }


def test_resolving_changes_nothing(study):
    before = study.model_dump_json()
    resolve_config(study, find_cell(study, "depth=3"), {"train.peak_lr": 0.25})
    assert study.model_dump_json() == before


def test_params_that_the_system_refuses_are_placed_in_the_space(study):
    with pytest.raises(StudyError) as caught:
        resolve_config(study, find_cell(study, "depth=3"), {"train.peak_lr": -1.0})
    (problem,) = caught.value.problems
    assert problem.path == "search.space.train.peak_lr"
    assert problem.message == "expected float > 0, got -1.0 (in cell 'depth=3')"


def test_types_are_exact(good, problems):
    good["base"]["train"] = {"max_steps": True, "peak_lr": "0.1", "is_gradual": 1}
    messages = problems(good)
    assert messages["base.train.max_steps"] == "expected int >= 1, got true"
    assert messages["base.train.peak_lr"] == "expected float > 0, got the text '0.1'"
    assert messages["base.train.is_gradual"] == "expected true or false, got 1"
    good["base"]["train"] = {"max_steps": 5.0}
    assert problems(good)["base.train.max_steps"] == "expected int >= 1, got 5.0"
    good["base"]["train"] = {"peak_lr": 1}
    assert resolve_config(Study.from_dict(good), cells(Study.from_dict(good))[0])
