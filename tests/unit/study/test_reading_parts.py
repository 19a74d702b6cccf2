"""Mistakes in the parts of a study: factors, cells, seeds, metrics, resources, claims."""

import math

import pytest

from nlgraft.study.public import Study
from tests.unit.study.mistakes import change


@pytest.mark.parametrize(
    "case",
    [
        # unknown keys, at every depth
        ("objectiv", 1, "unknown key 'objectiv'. Did you mean 'objective'?"),
        ("resources.worker", 2, "Did you mean 'workers'?"),
        ("base.train.max_stepz", 2, "Did you mean 'max_steps'?"),
        ("data.tran", 2, "unknown key 'tran'. Did you mean 'train'? Allowed: corpus, train"),
        # wrong types
        ("seeds", [True], "expected int >= 0, <= 4294967295, got true", "seeds[0]"),
        ("seeds", 3, "expected list of int at least 1 long, got 3"),
        ("name", 3, "expected text, got 3; quote it"),
        ("claims", {}, "expected list of mapping, got a mapping with no keys"),
        ("description", None, "expected text, got nothing (null)"),
        # levels
        ("factors.depth.levels", [], "is empty"),
        (
            "factors.depth.levels",
            [1, 2, "1"],
            "is the same as levels[0]: 1 and '1'",
            "factors.depth.levels[2]",
        ),
        ("factors.depth.levels", 3, "expected list or mapping of mapping, got 3"),
        # baselines
        ("factors.depth.baseline", 4, "4 is not among the levels. Allowed: 1, 2, 3"),
        ("factors.depth.baseline", "2", "'2' is not among the levels. Did you mean 2?"),
        ("factors.depth.baseline", ..., "is missing"),
        # one path, two owners
        ("factors.d2", {"target": "model.num_layers", "levels": [1], "baseline": 1}, "factors.depth"),
        ("factors.d2", {"target": "model", "levels": [{}], "baseline": {}}, "one path has one owner"),
        # paths
        ("factors.depth.target", "num_layers", "Did you mean 'model.num_layers'?"),
        ("factors.depth.target", ..., "is missing: which path"),
        ("factors.arm.target", "generator", "named levels carry the paths that they set"),
        (
            "factors.arm.levels.avg_eg",
            {"generator.kin": 1},
            "kind",
            "factors.arm.levels.avg_eg.generator.kin",
        ),
        (
            "components.gradual.without",
            {"train.gradual": 1},
            "is_gradual",
            "components.gradual.without.train.gradual",
        ),
        ("components.gradual.without", {}, "at least 1 long, got a mapping with no keys"),
        # levels that the system refuses
        ("factors.depth.levels", [2, 9], "expected int >= 1, <= 6, got 9", "factors.depth.levels[1]"),
        (
            "factors.arm.levels.b",
            {"generator.kind": "pat"},
            "Allowed: avg, att",
            "factors.arm.levels.b.generator.kind",
        ),
        (
            "components.gradual.without",
            {"train.is_gradual": 0},
            "got 0",
            "components.gradual.without.train.is_gradual",
        ),
        (
            "base.model",
            {"num_fine_layers": 2},
            "num_fine_layers 2 exceeds num_layers 1 (in cell 'depth=1')",
            "factors.depth.levels[0]",
        ),
        ("base.model", {"num_fine_layers": 3}, "num_fine_layers 3 exceeds num_layers 2"),
        # seeds
        ("seeds", [1, 2, 1], "1 is the same as seeds[0]", "seeds[2]"),
        ("seeds", [2**32], "expected int >= 0, <= 4294967295, got 4294967296", "seeds[0]"),
        ("seeds", [], "at least 1 long, got a list of 0"),
        # metrics
        ("objective.metric", "bleu", "toy_system reports no metric 'bleu'"),
        ("objective.direction", "minimize", "dev/bleu is a metric to maximize"),
        ("objective.direction", "maximise", "Did you mean 'maximize'?"),
        ("objective.metric", "test/bleu", "computed on the test set, which nothing may be"),
        # budgets
        ("budget.wall_clock", -5, "-5 is not a positive duration"),
        ("budget.wall_clock", "2:30", "'2:30' is not a duration"),
        ("budget.max_failed_fraction", 1.5, "expected float >= 0, <= 1, got 1.5"),
        # designs that are not offered
        ("design.kind", "fractional", "Allowed: one_factor, leave_one_out, full, cells"),
        ("design.cells", [{"depth": 1}], "is used by kind cells only"),
        ("design.kind", "cells", "is empty", "design.cells"),
        (
            "design",
            {"kind": "cells", "cells": [{"dept": 1}]},
            "Did you mean 'depth'?",
            "design.cells[0].dept",
        ),
        (
            "design",
            {"kind": "cells", "cells": [{"depth": 5}]},
            "5 is not a level of depth",
            "design.cells[0].depth",
        ),
        ("design", {"kind": "cells", "cells": [{}]}, "is empty", "design.cells[0]"),
        # excludes
        ("exclude", [{"depth": 1, "arm": "att_eg"}], "matches no cell of the design", "exclude[0]"),
        ("exclude", [{"depth": 2}], "drops the baseline"),
        ("exclude", [{"deep": 2}], "Did you mean 'depth'?", "exclude[0].deep"),
        # resources
        (
            "resources",
            {"gpus_per_worker": 0.5, "workers": {"min": 1, "max": 2}},
            "2 workers of one trial cannot share a GPU",
            "resources.gpus_per_worker",
        ),
        ("resources", {"workers": {"min": 2, "max": 4}, "sharding": "full"}, None),
        (
            "resources",
            {"workers": {"min": 1, "max": 4}, "sharding": "full"},
            "over its workers, 1 to 4 workers; give at least 2",
            "resources.sharding",
        ),
        ("resources.workers", {"min": 3, "max": 2}, "2 is below min, 3", "resources.workers.max"),
        ("resources.workers", {"min": 1}, "is missing", "resources.workers.max"),
        ("resources", {"workers": 3, "max_cpus": 2}, "2 is too few: one trial has 3", "resources.max_cpus"),
        # planned looks
        ("sequential", {"looks": []}, "at least 1 long", "sequential.looks"),
        ("sequential", {"kind": "anytime"}, "looks", "sequential.kind"),
        ("sequential", {"looks": [4, 4]}, "4 is not above 4; looks ascend", "sequential.looks[1]"),
        ("resources.gpus_per_worker", 1.5, "above 1, give a whole number"),
        ("resources.workers", 0, "expected int >= 1 or mapping, got 0"),
        # names
        ("name", "a/b", "'a/b' is no usable name"),
        ("factors.a b", {"target": "x", "levels": [1], "baseline": 1}, "is no usable name"),
        ("components.depth", {"without": {"train.is_gradual": False}}, "a factor is called 'depth'"),
        ("factors.depth.levels", [2, "a\nb"], "printable characters", "factors.depth.levels[1]"),
        # tracking
        ("tracking.uri", "sqlite:///nlgraft_store/optuna.db", "is the database of Optuna"),
        ("tracking.uri", "sqlite:////dev/null", "/dev/null is no regular file"),
        ("tracking.uri", "file:///mlruns", "MLflow no longer writes"),
        ("tracking.uri", "./mlruns", "MLflow no longer writes"),
        # versions
        ("schema_version", 2, "2 is newer than this nlgraft, which reads up to 1; upgrade"),
        # systems
        ("system", "toy_sistem", "there is no module 'toy_sistem'"),
        # the config
        ("base.data", {"corpus": "conlang"}, "belongs in the study's own field data"),
        ("data", {}, "is missing. Allowed: conlang, files", "data.corpus"),
        ("data.corpus", "conlag", "'conlag' is not allowed. Did you mean 'conlang'?"),
        ("data", ..., "is missing", "data.corpus"),
        ("base.train.peak_lr", math.nan, "nan is not a finite number"),
        ("base.train", 3, "cannot be set inside 3", "components.gradual.without.train.is_gradual"),
        # cells that are the same
        ("factors.arm.levels.other", {"generator.kind": "avg"}, "have the same config", "factors.arm.levels"),
        # analysis
        ("analysis.family", "claims", "is 'claims', but there are none"),
        ("analysis.gains_over", "leng", "no factor 'leng'"),
        ("analysis.gains_over", "arm", "no other factor is crossed with 'arm'"),
        ("analysis.prior", "study", "Allowed: store, none"),
    ],
)
def test_bad_studies_are_refused_with_path_and_remedy(good, problems, case):
    """Path, value, message, and where that is told if not at the path; without a message all is well."""
    path, value, message, *where = case
    document = change(good, path, value)
    if message is None:
        Study.from_dict(document)
        return
    messages = problems(document)
    assert message in messages[where[0] if where else path], messages
    assert len(messages) <= 2, "one mistake must not drag others along"


TABLE = {"source": "T1", "metric": "test/bleu", "values": {"att_eg": 2, "avg_eg": 1, "without gradual": 3}}


SELF = {"better": "att_eg", "worse": "att_eg", "metric": "test/bleu", "source": "T8"}


@pytest.mark.parametrize(
    "claim, where, message",
    [
        ({"better": "att", "worse": "avg_eg"}, "better", "there is no cell 'att'"),
        ({"better": "without gradul", "worse": "full"}, "better", "Did you mean 'gradual'?"),
        ({"better": "att_eg", "worse": ["avg_eg", "avg"]}, "worse", "there is no cell 'avg'"),
        ({"better": "att_eg"}, "worse", "is missing; a claim names two cells"),
        ({"better": "att_eg", "worse": "arm=att_eg"}, "worse", "'att_eg' are the same cell, 'arm=att_eg'"),
        ({"cell": "att_eg", "better": "att_eg", "worse": "full"}, "cell", "unknown key"),
        ({}, "better", "is missing; a claim names two cells"),
        ({"better": "avg_eg", "worse": "att_eg"}, "", "avg_eg has 1, att_eg has 2 (T1), but"),
        (
            {"better": "avg_eg", "worse": "att_eg", "metric": "test/bleu", "source": "section 4"},
            "",
            "avg_eg has 1, att_eg has 2 (section 4), but",
        ),
        (
            {"better": "depth=1", "worse": "avg_eg"},
            "",
            "no entry of published has 'depth=1' and",
        ),
        ({"better": "att_eg", "worse": "full", "margin": 0}, "margin", "expected float > 0"),
        ({"better": "att_eg", "worse": "avg_eg", "exceeds": ["full"]}, "exceeds", "at least 2 long"),
        ({"better": "att_eg", "worse": "avg_eg", "exceeds": ["full", "depth=9"]}, "exceeds", "depth"),
        (
            {"better": "att_eg", "worse": "full", "metric": "dev/bleu"},
            "",
            "no entry of published has dev/bleu",
        ),
        ({"better": "depth=1", "worse": "full", "source": "T2"}, "metric", "is missing; an ordering without"),
        ({"better": "att_eg", "worse": "full", "sorce": "x"}, "sorce", "Did you mean 'source'?"),
        ({"better": "att_eg", "worse": 3}, "worse", "expected text or list of text, got 3"),
        (SELF | {"worse_metric": "dev/bleus"}, "worse_metric", "Did you mean 'dev/bleu'?"),
        (SELF | {"worse_metric": "dev/loss"}, "worse_metric", "dev/loss is in nats, to minimize"),
        (SELF | {"worse_metric": "test/bleu"}, "worse_metric", "is the metric itself"),
        (SELF | {"worse_metric": "dev/bleu", "source": None}, "worse_metric", "needs better and worse"),
        (
            SELF | {"worse_metric": "dev/bleu", "metric": ["test/bleu", "dev/bleu"]},
            "worse_metric",
            "one metric",
        ),
    ],
)
def test_bad_claims_are_refused_with_path_and_remedy(good, problems, claim, where, message):
    good["published"] = [TABLE]
    good["claims"] = [{"better": "att_eg", "worse": "avg_eg"}, claim]
    messages = problems(good)
    path = f"claims[1].{where}" if where else "claims[1]"
    assert path in messages, messages
    assert len(messages) == 1 or "dev/bleus" in str(claim)
    assert message in messages[path]


@pytest.mark.parametrize(
    "changes, where, message",
    [
        ({"values": {"aug_eg": 1}}, "values.aug_eg", "there is no cell 'aug_eg'"),
        ({"values": {"att_eg": 1, "arm=att_eg": 1}}, "values.arm=att_eg", "are the same cell"),
        ({"values": {}}, "values", "at least 1 long"),
        ({"metric": "test/blue"}, "metric", "Did you mean 'test/bleu'?"),
        ({"source": ""}, "source", "at least 1 long"),
    ],
)
def test_bad_published_figures_are_refused_with_path_and_remedy(good, problems, changes, where, message):
    good["published"] = [TABLE, TABLE | changes]
    messages = problems(good)
    assert list(messages) == [f"published[1].{where}"], messages
    assert message in messages[f"published[1].{where}"]


def test_levels_that_no_cell_uses_are_checked_too(good, problems):
    good["design"] = {"kind": "cells", "cells": [{"depth": 3}]}
    good["factors"]["depth"]["levels"].append(7)
    assert "<= 6, got 7" in problems(good)["factors.depth.levels[3]"]


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


def test_a_baseline_that_is_no_level_is_one_problem(good, problems):
    good["factors"]["depth"]["baseline"] = "foo"
    messages = problems(good)
    assert list(messages) == ["factors.depth.baseline"]
    assert " | " not in messages["factors.depth.baseline"]
