"""Stages and graphs."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph


def stage(name="training", **changes):
    return Stage(**{"name": name, "run": "somewhere:run", **changes})


def test_fingerprint_by_hand():
    upstream = stage("corpus", config={"a": 1})
    assert stage(version=2, config={"b": (1,)}, inputs={"text": upstream}, seed=3).fingerprint == fingerprint(
        {
            "name": "training",
            "version": 2,
            "config": {"b": [1]},
            "inputs": {"text": upstream.fingerprint},
            "seed": 3,
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"version": 2},
        {"config": {"x": 1.0}},
        {"config": {"x": True}},
        {"config": {}},
        {"inputs": {}},
        {"inputs": {"b": stage("corpus")}},
        {"inputs": {"a": stage("corpus", version=2)}},
        {"seed": 1},
        {"seed": None},
    ],
    ids=str,
)
def test_every_part_counts(changes):
    base = {"name": "training", "config": {"x": 1}, "inputs": {"a": stage("corpus")}, "seed": 0}
    assert stage(**base) != stage(**{**base, **changes})


def test_how_it_runs_does_not_count():
    assert stage() == stage(run="elsewhere:run", workers="train")
    assert len({stage(), stage(run="elsewhere:run")}) == 1


def test_where_its_data_lie_does_not_count(tmp_path):
    here, there = stage(locations={"train": "/here"}), stage(locations={"train": "/there"})
    assert here.fingerprint == there.fingerprint == stage().fingerprint
    context = StageContext(
        stage=there, directory=tmp_path, checkpoints=Checkpoints(LocalFiles(tmp_path), "checkpoints")
    )
    assert context.locations == {"train": "/there"}
    with pytest.raises(ContractError, match="stage training: locations"):
        stage(locations={"train": object()})


def test_config_is_a_copy():
    config = {"layers": [1]}
    built = stage(config=config)
    before = built.fingerprint
    config["layers"].append(2)
    assert built.config == {"layers": [1]}
    assert stage(config={"layers": [1]}).fingerprint == before


def test_survives_pickling():
    original = stage(inputs={"a": stage("corpus")}, seed=1)
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    assert copy.inputs["a"].run == "somewhere:run"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "letters, digits"),
        ({"name": ".hidden"}, "letters, digits"),
        ({"run": "somewhere.run"}, "package.module:function"),
        ({"version": 0}, "whole numbers from 1"),
        ({"version": True}, "whole numbers from 1"),
        ({"seed": 1.0}, "a whole number or None"),
        ({"inputs": {"a": "corpus"}}, "is a str, not a Stage"),
        ({"config": {"x": {1}}}, r"stage training: config: value\.x"),
        ({"config": {"x": float("nan")}}, "not a finite number"),
    ],
    ids=str,
)
def test_refuses_bad_stages(changes, message):
    with pytest.raises(ContractError, match=message):
        stage(**changes)


def test_graph_order_and_sharing():
    """A diamond: its top is there once, inputs come first, the result last."""
    top = stage("top")
    left_stage, right_stage = stage("left", inputs={"x": top}), stage("right", inputs={"x": stage("top")})
    graph = StageGraph(stage("bottom", inputs={"r": right_stage, "l": left_stage}))
    assert [entry.name for entry in graph.stages] == ["top", "left", "right", "bottom"]
    assert graph.fingerprint == graph.result.fingerprint
    assert [graph.depth(entry) for entry in graph.stages] == [1, 2, 2, 3]
    assert graph.find("left") is left_stage


def test_long_chain():
    """Longer than Python's stack of calls."""
    last = stage("link", seed=0)
    for seed in range(1, 3000):
        last = stage("link", inputs={"previous": last}, seed=seed)
    graph = StageGraph(last)
    assert [entry.seed for entry in graph.stages] == list(range(3000))


def test_find_names_the_nearest():
    graph = StageGraph(stage("bottom", inputs={"a": stage("top"), "b": stage("top", seed=1)}))
    with pytest.raises(ContractError, match="Did you mean 'bottom'"):
        graph.find("botom")
    with pytest.raises(ContractError, match="2 stages are named 'top'"):
        graph.find("top")


def test_one_fingerprint_two_functions():
    inputs = {"a": stage("top"), "b": stage("top", run="elsewhere:run")}
    with pytest.raises(ContractError, match="somewhere:run and elsewhere:run"):
        StageGraph(stage("bottom", inputs=inputs))


@given(st.permutations(["a", "b", "c", "d"]))
def test_order_of_inputs_does_not_matter(order):
    graphs = [
        StageGraph(stage("bottom", inputs={key: stage(key) for key in keys})) for keys in ("abcd", order)
    ]
    assert graphs[0].stages == graphs[1].stages
