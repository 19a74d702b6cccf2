"""Factors without effect: refused, unless a full design declares them, and then merged."""

import json

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.data.design import cells, find_cell, select_cells
from nlgraft.study.public import Study

MERGE = {"target": "model.merge", "levels": ["sum", "gate", "average"], "baseline": "sum"}
DROPOUT = {"target": "model.dropout", "levels": [0.0, 0.1, 0.2], "baseline": 0.1}


def dropout_where(**when):
    """Declare that dropout has no effect there."""
    return {"factor": "dropout", "when": when}


@pytest.fixture
def crossed(good):
    """Dropout is not read with merge average."""
    good |= {"factors": {"merge": MERGE, "dropout": DROPOUT}, "components": {}, "design": {"kind": "full"}}
    return good


def test_levels_that_change_no_stage_are_refused_with_what_they_need(good, problems):
    good["base"]["model"] = {"merge": "average"}
    good["factors"]["dropout"] = DROPOUT
    assert problems(good) == {
        "factors.dropout.levels": (
            "cells 'baseline', 'dropout=0.0' and 'dropout=0.2' run the same trials: model.dropout has no "
            "effect unless model.merge is sum or gate; change that, or keep one of them"
        )
    }


def test_combinations_that_are_one_are_refused_with_the_levels_and_the_declaration(crossed, problems):
    (message,) = problems(crossed).values()
    assert message == (
        "cells 'merge=average, dropout=0.0', 'merge=average' and 'merge=average, dropout=0.2' run the same "
        "trials: model.dropout has no effect where merge is average; declare design.idle: "
        "[{factor: dropout, when: {merge: [average]}}], or keep one of them"
    )


def test_several_levels_that_make_a_factor_idle_are_named_together(crossed, problems):
    crossed["factors"]["merge"] = MERGE | {"levels": ["sum", "average"]}
    crossed["factors"]["gradual"] = {"target": "train.is_gradual", "levels": [True, False], "baseline": True}
    (message,) = problems(crossed).values()
    assert message.startswith(
        "cells 'merge=average, dropout=0.0', 'merge=average' and 'merge=average, dropout=0.2' run the same "
        "trials (and so do 3 others): model.dropout has no effect where merge is average; declare"
    )


def test_other_mistakes_are_reported_beside_it(crossed, problems):
    crossed["resources"] = {"workers": 0}
    assert set(problems(crossed)) == {"resources.workers", "factors.dropout.levels"}


def test_without_the_corpus_other_mistakes_are_still_found(crossed, problems, tmp_path):
    crossed["data"] = {"corpus": "files", "path": str(tmp_path / "missing")}
    assert Study.from_dict(crossed)
    assert set(problems(crossed | {"resources": {"workers": 0}})) == {"resources.workers"}


def test_relative_paths_start_at_the_study_file(crossed, tmp_path):
    (tmp_path / "text").touch()
    crossed["data"] = {"corpus": "files", "path": "text"}
    (tmp_path / "study.yaml").write_text(json.dumps(crossed))
    with pytest.raises(StudyError, match="run the same trials"):
        Study.from_yaml(tmp_path / "study.yaml")


def test_declared_combinations_are_one_cell_by_all_of_its_names(crossed):
    crossed["design"]["idle"] = [dropout_where(merge=["average"])]
    study = Study.from_dict(crossed)
    assert len(cells(study)) == 7
    merged = find_cell(study, "merge=average")
    assert find_cell(study, "merge=average, dropout=0.2") == merged
    assert merged in select_cells(study, ["dropout=0.2"])
    assert [cell.label for cell in select_cells(study, ["merge=average"])] == ["merge=average"]


def test_an_excluded_combination_does_not_take_its_equals_along(crossed):
    crossed["design"]["idle"] = [dropout_where(merge="average")]
    crossed["exclude"] = [{"merge": "average", "dropout": 0.1}]
    assert len(cells(Study.from_dict(crossed))) == 7


@pytest.mark.parametrize(
    ("idle", "where", "message"),
    [
        (
            dropout_where(merge="gate"),
            "",
            "dropout has an effect where merge is gate",
        ),
        ({"factor": "drop", "when": {"merge": "gate"}}, ".factor", "Did you mean 'dropout'?"),
        (dropout_where(merge=["avg"]), ".when.merge", "'avg' is not a level of merge"),
        (dropout_where(mege="gate"), ".when.mege", "Did you mean 'merge'?"),
        (dropout_where(dropout=0.1), ".when.dropout", "is the idle factor itself"),
        (dropout_where(), ".when", "at least 1 long"),
    ],
)
def test_wrong_declarations_are_refused(crossed, problems, idle, where, message):
    right = dropout_where(merge="average")
    crossed["design"]["idle"] = [right, idle]
    messages = problems(crossed)
    assert list(messages) == [f"design.idle[1]{where}"]
    assert message in messages[f"design.idle[1]{where}"]


def test_only_full_designs_declare_idle_factors(good, problems):
    good["design"] = {"kind": "one_factor", "idle": [{"factor": "depth", "when": {"arm": "avg_eg"}}]}
    assert problems(good) == {"design.idle": "is used by kind full only, the kind is one_factor"}


def test_a_searched_cell_is_compared_over_its_whole_space(good, problems):
    good |= {"factors": {"dropout": DROPOUT}, "components": {}}
    good["search"] = {
        "space": {"model.merge": {"type": "categorical", "choices": ["average", "gate"]}},
        "trials": 2,
    }
    assert len(cells(Study.from_dict(good))) == 3  # with gate, dropout has an effect
    good["base"]["model"] = {"merge": "average"}
    good["search"]["space"] = {"train.peak_lr": {"type": "float", "low": 0.1, "high": 1.0}}
    assert "unless model.merge is sum or gate" in problems(good)["factors.dropout.levels"]


def test_a_component_without_effect_is_refused(good, problems):
    good["components"]["nothing"] = {"without": {"model.dropout": 0.1}}
    assert problems(good) == {
        "components.nothing": "cells 'baseline' and 'without nothing' have the same config; keep one"
    }
