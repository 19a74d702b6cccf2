"""All problems of a file at once, each with its path, what is allowed and the nearest name."""

import contextlib
import copy
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study
from nlgraft.study.reading.rules import warnings
from tests.unit.study.mistakes import SEARCH

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


def test_ten_mistakes_in_one_file_are_all_reported_in_file_order(tmp_path):
    path = tmp_path / "ten.yaml"
    path.write_text(TEN_MISTAKES)
    with pytest.raises(StudyError) as caught:
        Study.from_yaml(path)
    problems = [(problem.path, problem.message) for problem in caught.value.problems]
    assert [(path, int(re.search(r"line (\d+)", message)[1])) for path, message in problems] == [
        ("lamda", 3),
        ("factors.depth.target", 6),
        ("factors.merge.baseline", 7),
        ("seeds", 10),
        ("seeds[2]", 9),
        ("objective.metric", 11),
        ("budget.wall_clock", 12),
        ("search.space.train.peak_lr", 16),
        ("search.space.train.peak_lr.low", 16),
        ("search.space.model.dropout.log", 17),
    ]


def test_a_misspelt_key_stands_for_the_one_meant(good, problems):
    good["factors"]["depth"]["baselin"] = good["factors"]["depth"].pop("baseline")
    good["claims"] = [{"better": "depth=1", "worse": "baseline", "metric": "dev/bleu", "source": "T1"}]
    messages = problems(good)
    assert list(messages) == ["factors.depth.baselin"]


def test_a_part_that_cannot_be_read_hides_no_mistake_elsewhere(good, problems):
    good["factors"]["depth"] = {"levels": "1, 2"}
    good["factors"]["arm"]["baseline"] = "aug_eg"
    good["seeds"] = [1, "x", 1]
    good["search"] = {"space": {"train.peak_lr": {"type": "float", "low": 2, "high": 1}, "x": 3}}
    good["objective"] = {"metric": "dev/los"}
    good["published"] = [{"metric": "dev/bleu", "source": "T1"}]
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
        "objective.direction",
        "published[0].values",
        "claims[0]",
        "claims[1].metric",
    }


def test_rules_over_several_values_are_seen_through_unknown_keys(good, problems):
    good["base"]["model"] = {"num_fine_layers": 6, "typo": 1}
    messages = problems(good)
    assert "unknown key 'typo'" in messages["base.model.typo"]
    assert messages["base.model"] == "num_fine_layers 6 exceeds num_layers 2"


def test_a_problem_of_every_cell_is_reported_once(good):
    good["base"]["train"]["max_steps"] = 0
    with pytest.raises(StudyError) as caught:
        Study.from_dict(good)
    assert [str(problem) for problem in caught.value.problems] == [
        "base.train.max_steps: expected int >= 1, got 0"
    ]


def test_warnings_name_what_is_allowed_yet_disappoints(good):
    good["factors"]["arm"]["levels"]["att_eg_with_kd"] = {"generator.kind": "att"}
    good["factors"]["arm"]["levels"]["att_eg_with_x"] = {"generator.kind": "patt"}
    good["seeds"] = [1]
    good["published"] = [{"metric": "test/bleu", "source": "T1", "values": {"baseline": 3.0}}]
    texts = warnings(Study.from_dict(good))
    assert [warning.partition(":")[0] for warning in texts] == ["factors.arm.levels", "seeds", "published[0]"]
    assert "'att_eg_with_kd' and 'att_eg_with_x' begin with the same 10 characters" in texts[0]


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


@settings(max_examples=150)
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
