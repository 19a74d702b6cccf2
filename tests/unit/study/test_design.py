"""From factors, components and designs to cells."""

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.data.design import cells, find_cell, select_cells
from nlgraft.study.public import Study


def labels(document):
    return [cell.label for cell in cells(Study.from_dict(document))]


def test_one_factor_is_the_baseline_and_each_single_departure(good):
    assert labels(good) == ["baseline", "depth=1", "depth=3", "arm=att_eg", "without gradual"]


def test_leave_one_out_is_full_each_component_left_out_and_each_other_level(good):
    good["design"] = {"kind": "leave_one_out"}
    good["components"]["dropout"] = {"without": {"model": {"dropout": 0.0}}}
    study = Study.from_dict(good)
    designed = cells(study)
    assert [cell.label for cell in designed] == [
        "baseline",
        "depth=1",
        "depth=3",
        "arm=att_eg",
        "without gradual",
        "without dropout",
    ]
    assert designed[0].levels == {"depth": 2, "arm": "avg_eg", "gradual": "full", "dropout": "full"}
    assert designed[-1].levels == {"depth": 2, "arm": "avg_eg", "gradual": "full", "dropout": "without"}
    assert designed[-1].overrides == {"model.num_layers": 2, "generator.kind": "avg", "model.dropout": 0.0}
    assert find_cell(study, "full") == designed[0]


def test_full_is_every_combination_with_the_baseline_first(good):
    good["design"] = {"kind": "full"}
    names = labels(good)
    assert len(names) == len(set(names)) == 3 * 2 * 2
    assert names[0] == "baseline"
    assert "depth=3, arm=att_eg, without gradual" in names


def test_listed_cells_stay_at_the_baseline_where_they_say_nothing(good):
    good["design"] = {
        "kind": "cells",
        "cells": [{"depth": 3, "arm": "att_eg"}, {"gradual": "without"}, {"depth": 2}],
    }
    assert labels(good) == ["baseline", "depth=3, arm=att_eg", "without gradual"]


def test_excluded_combinations_are_dropped(good):
    good["design"] = {"kind": "full"}
    good["exclude"] = [{"depth": 1, "arm": "att_eg"}, {"gradual": "without", "depth": 3}]
    names = labels(good)
    assert len(names) == 12 - 2 - 2
    assert not any("depth=1, arm=att_eg" in label for label in names)


def test_a_study_without_factors_has_one_cell(good):
    good |= {"factors": {}, "components": {}}
    (only,) = cells(Study.from_dict(good))
    assert (only.label, only.levels, only.overrides, only.is_baseline) == ("baseline", {}, {}, True)


def test_overrides_hold_every_factor_and_know_their_place(study):
    cell = find_cell(study, "att_eg")
    assert cell.overrides == {"model.num_layers": 2, "generator.kind": "att", "generator.kd_weight": 0.25}
    assert cell.origins == {
        "model.num_layers": "factors.depth.levels[1]",
        "generator.kind": "factors.arm.levels.att_eg.generator.kind",
        "generator.kd_weight": "factors.arm.levels.att_eg.generator.kd_weight",
    }
    assert cell.changed == ["generator.kind", "generator.kd_weight"]


def test_keys_of_cells_differ_and_depend_on_the_overrides_alone(good, study):
    keys = [cell.key for cell in cells(study)]
    assert len(set(keys)) == len(keys)
    renamed = good | {"name": "other", "seeds": [5], "design": {"kind": "full"}}
    again = {cell.label: cell.key for cell in cells(Study.from_dict(renamed))}
    assert all(again[cell.label] == cell.key for cell in cells(study))


def test_levels_may_be_any_json_value(good):
    levels = [None, "/upstream", "-3"]
    good["factors"]["start"] = {"target": "start", "levels": levels, "baseline": None}
    good["factors"]["notes"] = {"target": "notes", "levels": [[], ["a", "b"]], "baseline": []}
    good["factors"]["generator"] = {
        "target": "generator",
        "levels": [{"kind": "avg"}, {"kind": "patt", "kd_weight": 1}],
        "baseline": {"kind": "avg"},
    }
    del good["factors"]["arm"]
    study = Study.from_dict(good)
    assert labels(good)[3:8] == [
        "start=/upstream",
        "start=-3",
        'notes=["a","b"]',
        'generator={"kd_weight":1,"kind":"patt"}',
        "without gradual",
    ]
    assert find_cell(study, "start=-3").overrides["start"] == "-3"
    assert find_cell(study, "start=null").is_baseline


@pytest.mark.parametrize(
    "text, label",
    [
        ("baseline", "baseline"),
        ("full", "baseline"),
        ("arm=att_eg", "arm=att_eg"),
        ("att_eg", "arm=att_eg"),
        (" att_eg ", "arm=att_eg"),
        ("depth=2", "baseline"),
        ("depth=3", "depth=3"),
        ("3", "depth=3"),
        ("avg_eg", "baseline"),
        ("without gradual", "without gradual"),
        ("gradual=without", "without gradual"),
        ("depth=2,arm=att_eg", "arm=att_eg"),
    ],
)
def test_cells_are_found_by_what_people_call_them(study, text, label):
    assert find_cell(study, text).label == label


@pytest.mark.parametrize(
    "text, message",
    [
        ("att", "there is no cell 'att'"),
        ("arm=att", "factor 'arm' has no level 'att'. Did you mean 'att_eg'? Allowed: avg_eg, att_eg"),
        ("amr=att_eg", "there is no factor 'amr'. Did you mean 'arm'?"),
        ("without gradul", "there is no component 'gradul'. Did you mean 'gradual'?"),
        ("without depth", "there is no component 'depth'"),
        ("depth=3,arm=att_eg", "'depth=3,arm=att_eg' is not among the cells of this design"),
    ],
)
def test_what_names_no_cell_is_told_the_nearest(study, text, message):
    with pytest.raises(StudyError) as caught:
        find_cell(study, text)
    assert message in str(caught.value)


def test_a_level_of_two_factors_must_say_which(good):
    good["factors"]["fine"] = {"target": "model.num_fine_layers", "levels": [0, 1], "baseline": 0}
    with pytest.raises(StudyError, match="'1' is a level of several factors; write depth=1 or fine=1"):
        find_cell(Study.from_dict(good), "1")


def test_selecting_leaves_other_factors_free(good):
    good["design"] = {"kind": "full"}
    study = Study.from_dict(good)
    assert len(select_cells(study, ["arm=att_eg"])) == 6
    assert len(select_cells(study, ["arm=att_eg", "depth=1"])) == 2
    assert [cell.label for cell in select_cells(study, ["baseline"])] == ["baseline"]
    with pytest.raises(StudyError, match="no cell meets depth=1 and depth=2"):
        select_cells(study, ["depth=1", "depth=2"])
    with pytest.raises(StudyError, match="has no level"):
        select_cells(study, ["depth=9"])


def test_a_design_that_is_too_large_prints_its_number(good, problems):
    good["design"] = {"kind": "full"}
    names = ["model.num_fine_layers", "train.max_steps", "train.peak_lr"]
    for index, path in enumerate(names):
        levels = [0.5, *range(1, 20)] if path.endswith("lr") else list(range(1, 21))
        good["factors"][f"f{index}"] = {"target": path, "levels": levels, "baseline": 1}
    message = problems(good)["design"]
    assert message.startswith("the design has 96,000 cells, at most 1,000 are allowed")
