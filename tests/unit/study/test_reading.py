"""All problems of a study at once, each with its path, what is allowed and the nearest name.

The ids B01 to B30 are those of the platform specification, section 4.2.
"""

import contextlib
import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlgraft.errors import StudyError
from nlgraft.study.paths import put
from nlgraft.study.spec import Study

TEN_MISTAKES = """\
name: ten
system: toy_system
lamda: 3
data: {corpus: conlang}
factors:
  depth: {target: model.num_layrs, levels: [1, 2], baseline: 2}
  merge: {target: model.merge, levels: [sum, gate], baseline: average}
  lr: {target: train.peak_lr, levels: [0.1, 0.2], baseline: 0.1}
seeds: [1, 2, 1]
seeds: [3]
objective: {metric: dev/blue, direction: maximize}
budget: {wall_clock: -2h}
search:
  trials: 3
  space:
    train.peak_lr: {type: float, low: 1e-2, high: 1e-3}
    model.dropout: {type: float, low: 0, high: 0.5, log: true}
"""


def change(document, path, value):
    if value is ...:
        node = document
        *parents, last = path.split(".")
        for part in parents:
            node = node[part]
        del node[last]
    else:
        put(document, path, value)
    return document


def test_ten_mistakes_in_one_file_are_all_reported_in_file_order(tmp_path):
    path = tmp_path / "ten.yaml"
    path.write_text(TEN_MISTAKES)
    with pytest.raises(StudyError) as caught:
        Study.from_yaml(path)
    found = [(problem.path, problem.message) for problem in caught.value.problems]
    names = "model.num_layers, model.num_fine_layers, model.merge, model.dropout"
    assert [where for where, _ in found] == [
        "lamda",
        "factors.depth.target",
        "factors.merge.baseline",
        "seeds",
        "seeds[2]",
        "objective.metric",
        "budget.wall_clock",
        "search.space.train.peak_lr",
        "search.space.train.peak_lr.low",
        "search.space.model.dropout.log",
    ]
    by_path = dict(reversed(found))
    assert by_path["lamda"].startswith("unknown key 'lamda'. Allowed: schema_version, name,")
    assert by_path["factors.depth.target"] == (
        "the system's config has no 'model.num_layrs'. Did you mean 'model.num_layers'? "
        f"Allowed: {names} (line 6)"
    )
    assert by_path["factors.merge.baseline"] == (
        "'average' is not among the levels. Allowed: sum, gate (line 7)"
    )
    assert by_path["seeds[2]"] == "1 is the same as seeds[0]; write each seed once (line 9)"
    assert by_path["seeds"] == "line 10: key 'seeds' is written twice, first on line 9; keep one"
    assert by_path["objective.metric"] == (
        "toy_system reports no metric 'dev/blue'. Did you mean 'dev/bleu'? "
        "Allowed: dev/bleu, dev/loss, test/bleu, speed (line 11)"
    )
    assert by_path["budget.wall_clock"].startswith("'-2h' is not a duration; allowed: seconds above 0")
    assert by_path["search.space.train.peak_lr"].startswith(
        "searches train.peak_lr, which factors.lr sets too"
    )
    assert by_path["search.space.train.peak_lr.low"].startswith("0.01 is above high, which is 0.001")
    assert by_path["search.space.model.dropout.log"] == (
        "a logarithmic range needs low above 0, got 0.0 (line 17)"
    )


@pytest.mark.parametrize(
    "path, value, where, message",
    [
        # B01 unknown keys, at every depth
        ("objectiv", 1, "objectiv", "unknown key 'objectiv'. Did you mean 'objective'?"),
        ("resources.worker", 2, "resources.worker", "Did you mean 'workers'?"),
        ("base.train.max_stepz", 2, "base.train.max_stepz", "Did you mean 'max_steps'?"),
        ("base.trian", {}, "base.trian", "Did you mean 'train'?"),
        ("data.tran", 2, "data.tran", "unknown key 'tran'. Did you mean 'train'? Allowed: corpus, train"),
        # B02 wrong types
        ("seeds", [True], "seeds[0]", "must be a whole number, got true"),
        ("seeds", [1.0], "seeds[0]", "must be a whole number, got 1.0"),
        ("seeds", ["1"], "seeds[0]", "must be a whole number, got the text '1'"),
        ("seeds", 3, "seeds", "must be a list, got 3"),
        ("name", 3, "name", "must be text, got 3; quote it"),
        ("factors", [1], "factors", "must be a mapping, got a list of 1"),
        ("factors.depth", 3, "factors.depth", "must be a mapping, got 3"),
        ("claims", {}, "claims", "must be a list, got a mapping with no keys"),
        ("search", 3, "search", "must be a mapping, got 3"),
        ("resources.workers", True, "resources.workers", "must be a whole number, got true"),
        ("description", None, "description", "must be text, got nothing (null)"),
        # B04 levels
        ("factors.depth.levels", [], "factors.depth.levels", "is empty"),
        (
            "factors.depth.levels",
            [1, 2, 1.0],
            "factors.depth.levels[2]",
            "is the same as levels[0]: 1 and 1.0",
        ),
        (
            "factors.depth.levels",
            [1, 2, "1"],
            "factors.depth.levels[2]",
            "is the same as levels[0]: 1 and '1'",
        ),
        ("factors.depth.levels", [2, 2], "factors.depth.levels[1]", "is the same as levels[0]; write each"),
        ("factors.depth.levels", 3, "factors.depth.levels", "must be a list, got 3"),
        # B05 baselines
        (
            "factors.depth.baseline",
            4,
            "factors.depth.baseline",
            "4 is not among the levels. Allowed: 1, 2, 3",
        ),
        (
            "factors.depth.baseline",
            "2",
            "factors.depth.baseline",
            "'2' is not among the levels. Did you mean 2?",
        ),
        ("factors.depth.baseline", ..., "factors.depth.baseline", "is missing"),
        ("factors.arm.baseline", "avgeg", "factors.arm.baseline", "Did you mean 'avg_eg'?"),
        # B06 one path, two owners
        (
            "factors.d2",
            {"target": "model.num_layers", "levels": [1], "baseline": 1},
            "factors.d2",
            "factors.depth",
        ),
        (
            "factors.d2",
            {"target": "model", "levels": [{}], "baseline": {}},
            "factors.d2",
            "one path has one owner",
        ),
        # B07 paths
        ("factors.depth.target", "num_layers", "factors.depth.target", "Did you mean 'model.num_layers'?"),
        ("factors.depth.target", ..., "factors.depth.target", "is missing: which path"),
        (
            "factors.arm.target",
            "generator",
            "factors.arm.target",
            "named levels say themselves what they set",
        ),
        (
            "factors.arm.levels.avg_eg",
            {"generator.kin": 1},
            "factors.arm.levels.avg_eg.generator.kin",
            "kind",
        ),
        (
            "components.gradual.without",
            {"train.gradual": 1},
            "components.gradual.without.train.gradual",
            "is_gradual",
        ),
        ("components.gradual.without", {}, "components.gradual.without", "must have at least 1"),
        # B09 levels that the system refuses
        ("factors.depth.levels", [2, 9], "factors.depth.levels[1]", "must be at most 6, got 9"),
        (
            "factors.depth.levels",
            [2, "3"],
            "factors.depth.levels[1]",
            "must be a whole number, got the text '3'",
        ),
        (
            "factors.arm.levels.b",
            {"generator.kind": "pat"},
            "factors.arm.levels.b.generator.kind",
            "Allowed: avg, att",
        ),
        (
            "components.gradual.without",
            {"train.is_gradual": 0},
            "components.gradual.without.train.is_gradual",
            "got 0",
        ),
        (
            "base.model",
            {"num_fine_layers": 2},
            "factors.depth.levels[0]",
            "num_fine_layers 2 exceeds num_layers 1 (in cell 'depth=1')",
        ),
        ("base.model", {"num_fine_layers": 3}, "base.model", "num_fine_layers 3 exceeds num_layers 2"),
        # B10 seeds
        ("seeds", [1, 2, 1], "seeds[2]", "1 is the same as seeds[0]"),
        ("seeds", [-1], "seeds[0]", "must be at least 0, got -1"),
        ("seeds", [2**32], "seeds[0]", "must be at most 4.29497e+09"),
        ("seeds", [], "seeds", "must have at least 1"),
        # B11, B12 metrics
        ("objective.metric", "bleu", "objective.metric", "toy_system reports no metric 'bleu'"),
        ("objective.direction", "minimize", "objective.direction", "dev/bleu is a metric to maximize"),
        ("objective.direction", ..., "objective.direction", "is missing"),
        ("objective.direction", "maximise", "objective.direction", "Did you mean 'maximize'?"),
        (
            "objective.metric",
            "test/bleu",
            "objective.metric",
            "computed on the test set, which nothing may be",
        ),
        ("objective", [], "objective", "must have at least 1"),
        ("objective", ..., "objective", "is missing"),
        # B13 budgets
        ("budget.wall_clock", -5, "budget.wall_clock", "-5 is not a positive duration"),
        ("budget.wall_clock", "2:30", "budget.wall_clock", "'2:30' is not a duration"),
        ("budget.trials", 0, "budget.trials", "must be at least 1, got 0"),
        ("budget.max_failed_fraction", 1.5, "budget.max_failed_fraction", "must be at most 1, got 1.5"),
        # B15 designs that are not offered
        ("design.kind", "fractional", "design.kind", "Allowed: one_factor, leave_one_out, full, cells"),
        ("design.cells", [{"depth": 1}], "design.cells", "is used by kind cells only"),
        ("design.kind", "cells", "design.cells", "is empty"),
        (
            "design",
            {"kind": "cells", "cells": [{"dept": 1}]},
            "design.cells[0].dept",
            "Did you mean 'depth'?",
        ),
        (
            "design",
            {"kind": "cells", "cells": [{"depth": 5}]},
            "design.cells[0].depth",
            "5 is not a level of depth",
        ),
        ("design", {"kind": "cells", "cells": [{}]}, "design.cells[0]", "is empty"),
        ("components.gradual", ..., None, None),
        # excludes
        ("exclude", [{"depth": 1, "arm": "att_eg"}], "exclude[0]", "matches no cell of the design"),
        ("exclude", [{"depth": 2}], "exclude", "drops the baseline"),
        ("exclude", [{"deep": 2}], "exclude[0].deep", "Did you mean 'depth'?"),
        # B16 resources
        (
            "resources",
            {"gpus_per_worker": 0.3, "workers": 2},
            "resources.gpus_per_worker",
            "cannot share a GPU",
        ),
        ("resources.gpus_per_worker", 1.5, "resources.gpus_per_worker", "above 1, give a whole number"),
        ("resources.workers", 0, "resources.workers", "must be at least 1, got 0"),
        # B17 names
        ("name", "a/b", "name", "'a/b' is no usable name"),
        ("factors.a b", {"target": "x", "levels": [1], "baseline": 1}, "factors.a b", "is no usable name"),
        (
            "components.depth",
            {"without": {"train.is_gradual": False}},
            "components.depth",
            "a factor is called 'depth'",
        ),
        ("factors.depth.levels", [2, "a\nb"], "factors.depth.levels[1]", "printable characters"),
        # B21 tracking
        ("tracking.uri", "sqlite:///nlgraft_store/optuna.db", "tracking.uri", "is the database of Optuna"),
        ("tracking.uri", "file:///mlruns", "tracking.uri", "MLflow no longer writes file stores"),
        ("tracking.uri", "./mlruns", "tracking.uri", "MLflow no longer writes file stores"),
        # B26 versions
        ("schema_version", 2, "schema_version", "2 is newer than this nlgraft, which reads up to 1; upgrade"),
        ("schema_version", 0, "schema_version", "must be at least 1"),
        # systems
        ("system", "toy_sistem", "system", "there is no module 'toy_sistem'"),
        ("system", ..., "system", "is missing"),
        # the config
        ("base.data", {"corpus": "conlang"}, "base.data", "belongs in the study's own field data"),
        ("data", {}, "data.corpus", "is missing; it says which kind this is"),
        ("data.corpus", "conlag", "data.corpus", "'conlag' is not allowed. Did you mean 'conlang'?"),
        ("data", ..., "data.corpus", "is missing"),
        ("base.train.peak_lr", math.nan, "base.train.peak_lr", "nan is not a finite number"),
        ("base.train", 3, "components.gradual.without.train.is_gradual", "cannot be set inside 3"),
        # cells that are the same
        ("factors.arm.levels.other", {"generator.kind": "avg"}, "factors.arm.levels", "set the same values"),
        # analysis
        ("analysis.family", "claims", "analysis.family", "is 'claims', but there are none"),
        ("analysis.alpha", 1.0, "analysis.alpha", "must be below 1, got 1.0"),
        ("analysis.test", "t_test", "analysis.test", "Allowed: paired_bootstrap, approximate_randomisation"),
    ],
)
def test_bad_studies_are_refused_with_path_and_remedy(good, problems, path, value, where, message):
    document = change(good, path, value)
    if where is None:
        Study.from_dict(document)
        return
    found = problems(document)
    assert where in found, found
    assert message in found[where]
    assert len(found) <= 2, "one mistake must not drag others along"


SEARCH = {"trials": 2, "space": {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}}


@pytest.mark.parametrize(
    "path, value, where, message",
    [
        # B03 ranges
        ("space.train_lr", {"type": "float", "low": 1, "high": 0}, "space.train_lr", "no 'train_lr'"),
        (
            "space.x",
            {"type": "flot", "low": 1},
            "space.x.type",
            "'flot' is not allowed. Did you mean 'float'?",
        ),
        ("space.x", {"low": 1, "high": 2}, "space.x.type", "is missing; it says which kind this is"),
        ("space.x", {"type": "int", "low": 1.5, "high": 2}, "space.x.low", "must be a whole number, got 1.5"),
        ("space.x", {"type": "int", "low": 1, "hihg": 2}, "space.x.hihg", "Did you mean 'high'?"),
        # what the system makes of the ends
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 1}},
            "space.model.dropout.high",
            "below 1",
        ),
        (
            "space",
            {"train.max_steps": {"type": "float", "low": 1, "high": 9}},
            "space.train.max_steps.low",
            "whole",
        ),
        (
            "space",
            {"model.merge": {"type": "categorical", "choices": ["sum", "sun"]}},
            "space.model.merge.choices[1]",
            "Did you mean 'sum'?",
        ),
        (
            "space",
            {"model.num_fine_layers": {"type": "int", "low": 0, "high": 2}},
            "space.model.num_fine_layers",
            "num_fine_layers 2 exceeds num_layers 1 (in cell 'depth=1')",
        ),
        # B06
        (
            "space",
            {"model.num_layers": {"type": "int", "low": 1, "high": 2}},
            "space.model.num_layers",
            "factors.depth",
        ),
        (
            "space",
            {"train.is_gradual": {"type": "categorical", "choices": [True]}},
            "space.train.is_gradual",
            "gradual",
        ),
        # B08 conditions
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"generator.kind": "patt"}}},
            "space.model.dropout.when",
            "can never hold: no cell has generator.kind = 'patt'",
        ),
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"generator.kin": "att"}}},
            "space.model.dropout.when.generator.kin",
            "Did you mean 'generator.kind'?",
        ),
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"model.dropout": 0.1}}},
            "space.model.dropout.when",
            "conditions form a cycle: model.dropout needs model.dropout",
        ),
        # samplers and schedulers
        ("sampler", {"name": "tpa"}, "sampler.name", "Did you mean 'tpe'?"),
        ("sampler", {"name": "cmaes"}, "sampler.name", "cmaes needs at least two dimensions"),
        ("sampler", {"name": "grid"}, "space.train.peak_lr", "a grid needs a step here"),
        ("trials", 0, "trials", "must be at least 1, got 0"),
        ("trials", ..., "trials", "is missing"),
        ("space", {}, "space", "must have at least 1"),
        ("space", ..., "space", "is missing"),
        (
            "trial_scheduler",
            {"name": "asha", "metric": "train/los"},
            "trial_scheduler.metric",
            "reports no metric",
        ),
        ("trial_scheduler", {"name": "asha", "metric": "test/bleu"}, "trial_scheduler.metric", "test set"),
        (
            "trial_scheduler",
            {"grace_steps": 5, "max_steps": 5},
            "trial_scheduler.max_steps",
            "nothing would stop",
        ),
        (
            "trial_scheduler",
            {"reduction_factor": 1},
            "trial_scheduler.reduction_factor",
            "must be at least 2",
        ),
    ],
)
def test_bad_searches_are_refused_with_path_and_remedy(good, problems, path, value, where, message):
    good["search"] = change(copy.deepcopy(SEARCH), path, value)
    found = problems(good)
    assert f"search.{where}" in found, found
    assert message in found[f"search.{where}"]
    assert len(found) <= 2, "one mistake must not drag others along"


@pytest.mark.parametrize(
    "claim, where, message",
    [
        ({"better": "att_eg", "worse": "avg_eg", "metric": "test/bleu"}, "source", "is missing"),
        ({"better": "att", "worse": "avg_eg"}, "better", "there is no cell 'att'"),
        ({"better": "without gradul", "worse": "full"}, "better", "Did you mean 'gradual'?"),
        ({"better": "att_eg"}, "worse", "is missing; an ordering names two cells"),
        ({"better": "att_eg", "worse": "arm=att_eg"}, "", "better and worse are the same cell, 'arm=att_eg'"),
        ({"cell": "att_eg"}, "value", "is missing; a figure has a cell and a value"),
        (
            {"cell": "att_eg", "value": 3, "worse": "full"},
            "",
            "give either better and worse, or cell and value",
        ),
        ({}, "", "give either better and worse, or cell and value"),
        ({"better": "att_eg", "worse": "full", "figures": [1]}, "figures", "gives the two figures"),
        ({"better": "att_eg", "worse": "full", "figures": [1, 2]}, "figures", "1 is no better than 2"),
        ({"better": "att_eg", "worse": "full", "metric": "dev/bleus"}, "metric", "Did you mean 'dev/bleu'?"),
        ({"better": "att_eg", "worse": "full", "sorce": "x"}, "sorce", "Did you mean 'source'?"),
    ],
)
def test_bad_claims_are_refused_with_path_and_remedy(good, problems, claim, where, message):
    first = {"better": "att_eg", "worse": "avg_eg", "metric": "dev/loss", "source": "T1", "figures": [1, 2]}
    defaults = {} if where == "source" else {"source": "T2", "metric": "test/bleu"}
    good["claims"] = [first, defaults | claim]
    found = problems(good)
    path = f"claims[1].{where}" if where else "claims[1]"
    assert list(found) == [path], found
    assert message in found[path]


def test_a_misspelt_key_stands_for_the_one_meant(good, problems):
    good["factors"]["depth"]["baselin"] = good["factors"]["depth"].pop("baseline")
    good["claims"] = [{"better": "depth=1", "worse": "baseline", "metric": "dev/bleu", "source": "T1"}]
    found = problems(good)
    assert list(found) == ["factors.depth.baselin"]


def test_a_part_that_cannot_be_read_hides_no_mistake_elsewhere(good, problems):
    good["factors"]["depth"] = {"levels": "1, 2"}
    good["factors"]["arm"]["baseline"] = "aug_eg"
    good["seeds"] = [1, "x", 1]
    good["search"] = {"space": {"train.peak_lr": {"type": "float", "low": 2, "high": 1}, "x": 3}}
    good["objective"] = [{"metric": "dev/bleu"}, {"metric": "dev/los", "direction": "minimize"}]
    good["claims"] = [3, {"better": "nobody", "worse": "baseline", "metric": "bleu", "source": "T1"}]
    assert set(problems(good)) == {
        "factors.depth.levels",
        "factors.depth.baseline",
        "factors.arm.baseline",
        "seeds[1]",
        "seeds[2]",
        "search.space.train.peak_lr.low",
        "search.space.x",
        "search.trials",
        "objective[0].direction",
        "objective[1].metric",
        "claims[0]",
        "claims[1].metric",
    }


def test_rules_over_several_values_are_seen_through_unknown_keys(good, problems):
    good["base"]["model"] = {"num_fine_layers": 6, "typo": 1}
    found = problems(good)
    assert "unknown key 'typo'" in found["base.model.typo"]
    assert found["base.model"] == "num_fine_layers 6 exceeds num_layers 2"


def test_a_problem_of_every_cell_is_reported_once(good):
    good["base"]["train"]["max_steps"] = 0
    with pytest.raises(StudyError) as caught:
        Study.from_dict(good)
    assert [str(problem) for problem in caught.value.problems] == [
        "base.train.max_steps: must be at least 1, got 0"
    ]


def test_levels_that_no_cell_uses_are_checked_too(good, problems):
    good["design"] = {"kind": "cells", "cells": [{"depth": 3}]}
    good["factors"]["depth"]["levels"].append(7)
    assert "at most 6, got 7" in problems(good)["factors.depth.levels[3]"]


def test_excluded_combinations_need_not_be_valid(good):
    good["base"]["model"] = {"num_fine_layers": 2}
    good["exclude"] = [{"depth": 1}]
    assert len(Study.from_dict(good).plan().cells) == 4


def test_seed_zero_is_a_seed(good):
    good["seeds"] = [0, 2**32 - 1]
    assert Study.from_dict(good).seeds == [0, 4294967295]


def test_components_may_share_a_path_where_one_is_left_out_at_a_time(good, problems):
    good["components"]["schedule"] = {"without": {"train.is_gradual": False, "train.max_steps": 1}}
    good["components"]["fine"] = {"without": {"model.num_layers": 1, "model.num_fine_layers": 0}}
    Study.from_dict(good)
    good["design"] = {"kind": "full"}
    assert "sets train.is_gradual, which components.gradual sets too" in problems(good)["components.schedule"]


def test_leave_one_out_needs_components(good, problems):
    good["design"] = {"kind": "leave_one_out"}
    good["components"] = {}
    assert "leave_one_out needs components" in problems(good)["components"]


def test_a_grid_has_no_more_trials_than_points(good, problems):
    space = {
        "model.merge": {"type": "categorical", "choices": ["sum", "gate"]},
        "model.dropout": {"type": "float", "low": 0.0, "high": 0.3, "step": 0.1},
    }
    good["search"] = {"trials": 9, "sampler": {"name": "grid"}, "space": space}
    assert problems(good)["search.trials"] == "the grid has 8 points; at most 8 trials differ"
    good["search"]["trials"] = 6
    assert "search.trials: 6 trials visit a part of the grid's 8 points" in Study.from_dict(good).warnings


def test_several_objectives_need_to_say_which_stops_trials(good, problems):
    good["objective"] = [good["objective"], {"metric": "speed", "direction": "maximize"}]
    good["search"] = SEARCH | {"trial_scheduler": {"name": "median"}}
    assert "which of the objectives" in problems(good)["search.trial_scheduler.metric"]
    good["search"]["trial_scheduler"]["metric"] = "dev/loss"
    Study.from_dict(good)
    good["objective"].append(good["objective"][0])
    assert "is the metric of objective[0] too" in problems(good)["objective[2].metric"]


def test_warnings_name_what_is_allowed_yet_disappoints(good):
    good["factors"]["arm"]["levels"]["att_eg_with_kd"] = {"generator.kind": "att"}
    good["factors"]["arm"]["levels"]["att_eg_with_x"] = {"generator.kind": "patt"}
    good["seeds"] = [1]
    good["claims"] = [{"cell": "baseline", "value": 3.0, "metric": "test/bleu", "source": "T1"}]
    warnings = Study.from_dict(good).warnings
    assert [warning.partition(":")[0] for warning in warnings] == ["factors.arm.levels", "seeds", "claims[0]"]
    assert "'att_eg_with_kd' and 'att_eg_with_x' begin with the same 10 characters" in warnings[0]


def test_a_study_is_a_mapping(tmp_path):
    path = tmp_path / "study.yaml"
    for text, message in (
        ("- a\n", "a study is a mapping that begins with its name, got a list of 1"),
        ("", "a study is a mapping that begins with its name, got nothing (null)"),
    ):
        path.write_text(text)
        with pytest.raises(StudyError) as caught:
            Study.from_yaml(path)
        assert caught.value.problems[0].message == message
        assert str(path) in str(caught.value)


def test_duplicate_keys_alone_refuse_a_study(tmp_path, study):
    path = tmp_path / "study.yaml"
    path.write_text(study.to_yaml() + "name: other\n")
    with pytest.raises(StudyError, match="key 'name' is written twice"):
        Study.from_yaml(path)


VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        "x",
        "model",
        "depth=1",
        [],
        [1, 1],
        {},
        {"a": 1},
        [{}],
        {"kind": "full"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_study_is_a_study_or_a_list_of_problems(data):
    from toy_study import GOOD

    document = copy.deepcopy(
        GOOD | {"search": SEARCH, "exclude": [], "claims": [], "budget": {}, "tracking": {}}
    )
    for _ in range(data.draw(st.integers(1, 3))):
        node = document
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from([*keys, "new"] if isinstance(node, dict) else keys or [None]))
            if key is None:
                break
            inner = node.get(key) if isinstance(node, dict) else node[key]
            if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
                node[key] = copy.deepcopy(data.draw(VALUES))
                break
            node = inner
    with contextlib.suppress(StudyError):
        Study.from_dict(document)
