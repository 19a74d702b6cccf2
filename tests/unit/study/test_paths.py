"""Dotted paths."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlgraft.study.data import paths

KEY = st.sampled_from(["a", "b", "c.d", "corpus"])
TREE = st.recursive(st.integers(), lambda inner: st.dictionaries(KEY, inner, max_size=3), max_leaves=8)
MAPPING = st.dictionaries(KEY, TREE, max_size=3)


def test_indices_are_written_in_brackets_or_as_parts():
    tree = {"a": [{"b": 1}, {"b": 2}]}
    assert paths.get(tree, "a[1].b") == paths.get(tree, "a.1.b") == 2
    assert paths.get(tree, "a[2].b") is paths.MISSING
    assert paths.get(tree, "a.b") is paths.MISSING
    assert paths.get({"a": None}, "a.b") is paths.MISSING


def test_put_makes_mappings_on_the_way_also_in_place_of_null():
    tree = {"a": None, "l": [1, 2]}
    paths.put(tree, "a.b.c", 1)
    paths.put(tree, "l[1]", 3)
    assert tree == {"a": {"b": {"c": 1}}, "l": [1, 3]}


def test_put_finds_keys_that_hold_dots():
    tree = {"space": {"train.peak_lr": {"low": 1}}}
    paths.put(tree, "space.train.peak_lr.low", 2)
    assert tree == {"space": {"train.peak_lr": {"low": 2}}}


@pytest.mark.parametrize(
    "path, message",
    [
        ("l[2].x", "there is no item 2 in a list of 2"),
        ("l.x", "there is no item x in a list of 2"),
    ],
)
def test_put_says_why_it_cannot(path, message):
    with pytest.raises(ValueError) as caught:
        paths.put({"a": 3, "l": [1, 2]}, path, 1)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "path, other, does_overlap",
    [
        ("a.b", "a.b", True),
        ("a", "a.b", True),
        ("a.b.c", "a", True),
        ("a.b", "a.bc", False),
        ("a.b", "a.c", False),
    ],
)
def test_overlap(path, other, does_overlap):
    assert paths.overlap(path, other) is does_overlap


def test_merge_goes_into_mappings_and_replaces_the_rest():
    under = {"a": {"x": 1, "y": [1]}, "b": 1}
    over = {"a": {"y": [2], "z": None}, "b": {"c": 1}}
    assert paths.merge(under, over) == {"a": {"x": 1, "y": [2], "z": None}, "b": {"c": 1}}


def test_a_mapping_of_another_kind_replaces_what_it_meets():
    conlang = {"data": {"corpus": "conlang", "train": 9}}
    assert paths.merge(conlang, {"data": {"corpus": "files"}}) == {"data": {"corpus": "files"}}
    assert paths.merge(conlang, {"data": {"corpus": "conlang", "dev": 1}}) == {
        "data": {"corpus": "conlang", "train": 9, "dev": 1}
    }


@given(MAPPING, MAPPING)
def test_merge_changes_neither_and_is_idempotent(under, over):
    before = copy.deepcopy((under, over))
    merged = paths.merge(under, over)
    assert (under, over) == before
    assert paths.merge(merged, over) == merged


def test_expand_turns_dotted_keys_into_nested_ones_at_the_top_only():
    flat = {"train.max_steps": 5, "train": {"lr_multipliers": {"encoder.*": 0.1}}, "x": 1}
    assert paths.expand(flat) == {"train": {"max_steps": 5, "lr_multipliers": {"encoder.*": 0.1}}, "x": 1}


def test_expand_refuses_to_set_a_path_twice():
    with pytest.raises(ValueError, match=r"'train.max_steps' is set twice, once by 'train.max_steps'"):
        paths.expand({"train": {"max_steps": 5}, "train.max_steps": 6})
    with pytest.raises(ValueError, match=r"'train' is set twice"):
        paths.expand({"train": 3, "train.max_steps": 6})


def test_leaves_keep_empty_mappings_and_pattern_keys_whole():
    nested = {"a.b": 1, "c": {"d": {"e": 2}, "f": {}}, "g": {"encoder.*": 3}}
    assert dict(paths.leaves(nested)) == {"a.b": 1, "c.d.e": 2, "c.f": {}, "g": {"encoder.*": 3}}


def test_ancestors():
    assert list(paths.ancestors("a.b[1].c")) == ["a.b[1].c", "a.b[1]", "a.b", "a"]


@given(TREE.filter(lambda tree: isinstance(tree, dict)))
def test_what_put_writes_get_finds(tree):
    for path, value in list(paths.leaves(tree)):
        fresh = {}
        paths.put(fresh, path, value)
        assert paths.get(fresh, path) == value
