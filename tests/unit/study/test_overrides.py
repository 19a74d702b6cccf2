"""Scales, key=value and environment variables."""

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study


def test_a_key_inside_the_config_needs_no_base(good):
    study = Study.from_dict(good, ["train.peak_lr=1e-2", "base.train.max_steps=7", "train.betas=[0.5, 0.6]"])
    assert study.base == {"train": {"max_steps": 7, "peak_lr": 0.01, "betas": [0.5, 0.6]}}


def test_a_key_that_is_a_field_of_the_study_is_that_field(good):
    overrides = [
        "name=other",
        "seeds=[7]",
        "factors.depth.levels=[2, 3]",
        "data.train=3",
        "resources.max_concurrent=2",
        "budget.wall_clock=2h30m",
        "storage.path=s3://bucket/prefix?endpoint_override=localhost:1",
    ]
    study = Study.from_dict(good, overrides)
    assert (study.name, study.seeds, study.data["train"]) == ("other", [7], 3)
    assert study.factors["depth"].levels == [2, 3]
    assert (study.resources.max_concurrent, study.budget.wall_clock) == (2, 9000)
    assert study.storage.path == "s3://bucket/prefix?endpoint_override=localhost:1"


def test_list_items_are_set_by_index(good):
    study = Study.from_dict(good, ["seeds[1]=5", "factors.depth.levels.0=4"])
    assert study.seeds == [0, 5]
    assert study.factors["depth"].levels == [4, 2, 3]


def test_later_pairs_win_over_earlier_ones(good):
    assert Study.from_dict(good, ["train.max_steps=7", "train.max_steps=8"]).base["train"] == {"max_steps": 8}


def test_a_searched_path_is_one_key(good):
    good["search"] = {"trials": 2, "space": {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2}}}
    study = Study.from_dict(
        good,
        [
            "search.space.train.peak_lr.low=1e-3",
            "search.space.model.dropout={type: float, low: 0.0, high: 0.5}",
        ],
    )
    assert list(study.search.space) == ["train.peak_lr", "model.dropout"]
    assert study.search.space["train.peak_lr"].low == 1e-3


def test_values_with_commas_are_levels_of_a_factor(good):
    study = Study.from_dict(
        good, ["train.peak_lr=5e-3", "train.peak_lr=1e-3,2e-3", 'description="a, b"', "name=a"]
    )
    assert study.factors["peak_lr"].target == "train.peak_lr"
    assert study.factors["peak_lr"].levels == [0.001, 0.002]
    assert study.factors["peak_lr"].baseline == 0.001
    assert "peak_lr" not in study.base["train"]
    again = Study.from_dict(good, [*study.overrides, "name=a"])
    assert (again.variant, again.factors) == (study.variant, study.factors)
    text = Study.from_dict(good, ["description=this, that"])
    assert text.description == "this, that"


@pytest.mark.parametrize(
    "override, path, message",
    [
        ("foo", "", "override 'foo' is neither key=value nor @scale"),
        ("=3", "", "override '=3' is neither key=value nor @scale"),
        ("seeds[5]=3", "seeds[5]", "there is no item 5 in a list of 2; allowed: 0 to 1"),
        ("name.x=3", "name.x", "'x' cannot be set inside 'toy', which has no parts"),
        ("train.max_steps=[1", "train.max_steps", "line 1: while parsing a flow sequence"),
        ("train.max_steps=&a 1", "train.max_steps", "anchor &a is not allowed"),
        ("a..b=1", "a..b", "a part of it is empty"),
        ("train.max_stepz=1", "base.train.max_stepz", "Did you mean 'max_steps'?"),
        ("train.max_steps=two", "base.train.max_steps", "expected int >= 1, got the text 'two'"),
        ("train.max_steps=true", "base.train.max_steps", "expected int >= 1, got true"),
        ("train.peak_lr=1e-3, 2e-3", "train.peak_lr", "without spaces, e.g. train.peak_lr=1,2; other levels"),
        ("train.peak_lr=1e-3,", "train.peak_lr", "train.peak_lr='\"1e-3,\"'"),
        ("seeds=1,2,3", "seeds", "write seeds=[1,2,3]"),
        ("factors.depht.levels=[1]", "factors.depht.baseline", "is missing"),
        ("@tinny", "scales", "there is no scale '@tinny'. Did you mean '@tiny'? Allowed: @tiny, @small"),
    ],
)
def test_bad_overrides_are_problems(good, problems, override, path, message):
    good["scales"] = {"tiny": {"seeds": [1]}, "small": {}}
    messages = problems(good, [override])
    assert message in messages[path]


def test_scales_are_merged_in_order_and_pairs_win(good):
    good["scales"] = {
        "tiny": {"base": {"train.max_steps": 1, "model": {"dropout": 0.2}}, "seeds": [1]},
        "slow": {"base": {"train": {"max_steps": 9, "peak_lr": 0.5}}},
    }
    plain = Study.from_dict(good)
    assert plain.base == {"train": {"max_steps": 5}}
    tiny = Study.from_dict(good, ["@tiny"])
    assert tiny.base == {"train": {"max_steps": 1}, "model": {"dropout": 0.2}}
    assert tiny.seeds == [1]
    both = Study.from_dict(good, ["train.peak_lr=0.25", "@tiny", "@slow"])
    assert both.base == {"train": {"max_steps": 9, "peak_lr": 0.25}, "model": {"dropout": 0.2}}
    assert plain.fingerprint != tiny.fingerprint != both.fingerprint


def test_a_scale_may_bring_other_data(good):
    good["scales"] = {"small": {"data": {"corpus": "files", "path": "/corpus"}, "search": None}}
    assert Study.from_dict(good, ["@small"]).data == {"corpus": "files", "path": "/corpus"}


def test_a_scale_sets_only_fields_of_a_study(good, problems):
    good["scales"] = {"tiny": {"bas": {}, "name": "x"}}
    messages = problems(good)
    assert "a scale cannot set 'bas'. Did you mean 'base'?" in messages["scales.tiny.bas"]
    assert "a scale cannot set 'name'" in messages["scales.tiny.name"]


def test_environment_variables_are_put_in_anywhere(good):
    good["data"] = {"corpus": "files", "path": "${env:ROOT}/${env:NAME}.en"}
    good["tracking"] = {"uri": "sqlite:///${env:ROOT}/x.db"}
    study = Study.from_dict(good, environ={"ROOT": "/data", "NAME": "train"})
    assert study.data["path"] == "/data/train.en"
    assert study.tracking.uri == "sqlite:////data/x.db"


def test_a_variable_that_is_not_set_is_a_problem_of_its_path(good, problems):
    good["data"] = {"corpus": "files", "path": "${env:A}/${env:B}"}
    good["description"] = "${NAME} and ${oc.env:X}"
    good["tracking"] = {"uri": "${env:URI}", "experiment": "${env:B}"}
    messages = problems(good, environ={"A": "a"})
    assert "tracking.experiment" not in messages  # the first place stands for all of one variable
    assert messages["data.path"] == "the environment variable B is not set; export B=..."
    assert "${oc.env:X}' is not understood; write ${env:NAME}" in messages["description"]


def test_variables_of_scales_that_are_not_used_may_be_unset(good):
    good["scales"] = {"paper": {"data": {"corpus": "files", "path": "${env:WMT}"}}}
    study = Study.from_dict(good, environ={})
    assert study.scales["paper"]["data"] == {"corpus": "files", "path": "${env:WMT}"}
    assert Study.from_dict(good, ["@paper"], {"WMT": "/wmt"}).data["path"] == "/wmt"


def test_problems_of_overridden_values_name_no_line(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: toy\nsystem: toy_system\ndata: {corpus: conlang}\nbase: {train: {max_steps: 5}}\n"
        "seeds: [1]\nobjective: {metric: dev/bleu, direction: maximize}\nbudget: {trials: 0}\n"
    )
    with pytest.raises(StudyError) as caught:
        Study.from_yaml(path, ["train.max_steps=0"])
    messages = {problem.path: problem.message for problem in caught.value.problems}
    assert messages["base.train.max_steps"] == "expected int >= 1, got 0"
    assert messages["budget.trials"] == "expected int >= 1 or null, got 0 (line 7)"
