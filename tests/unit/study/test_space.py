"""Domains and conditions of the search."""

import pytest
from pydantic import TypeAdapter

from nlgraft.study.data.space import (
    Domain,
    full_condition,
    holds,
    same,
    sampling_order,
    space_problems,
    table_text,
)

DOMAIN = TypeAdapter(Domain)


def space(**domains):
    return {path.replace("_", "."): DOMAIN.validate_python(domain) for path, domain in domains.items()}


def found(**domains):
    return {problem.path: problem.message for problem in space_problems(space(**domains))}


@pytest.mark.parametrize(
    "domain, path, message",
    [
        ({"type": "float", "low": 2, "high": 1}, "x.low", "2.0 is above high"),
        (
            {"type": "float", "low": 1, "high": 1},
            "x.low",
            "low and high are both 1.0; a fixed value belongs in base",
        ),
        ({"type": "float", "low": 0, "high": 1, "log": True}, "x.log", "needs low above 0, got 0.0"),
        ({"type": "float", "low": 1, "high": 2, "log": True, "step": 0.5}, "x.step", "has no step"),
        ({"type": "float", "low": 0, "high": 1, "step": 0.3}, "x.step", "the last value reached is 0.9"),
        (
            {"type": "categorical", "choices": ["a", "b", "a"]},
            "x.choices[2]",
            "is the same as choices[0]; write",
        ),
        ({"type": "categorical", "choices": [1, 1.0]}, "x.choices[1]", "cannot be told apart"),
        ({"type": "categorical", "choices": [1, "1"]}, "x.choices[1]", "cannot be told apart"),
        ({"type": "categorical", "choices": [0, False]}, "x.choices[1]", "cannot be told apart"),
    ],
)
def test_unusable_domains(domain, path, message):
    problems = found(x=domain)
    assert list(problems) == [path]
    assert message in problems[path]


def test_a_step_may_miss_the_end_by_rounding():
    assert found(x={"type": "float", "low": 0.0, "high": 0.5, "step": 0.1}) == {}


def test_a_condition_must_be_able_to_hold():
    kind = {"type": "categorical", "choices": ["gru", "transformer"]}
    heads = {"type": "int", "low": 2, "high": 8, "step": 2}
    assert found(kind=kind, heads=heads | {"when": {"kind": "transformer"}}) == {}
    problems = found(kind=kind, heads=heads | {"when": {"kind": "lstm"}})
    assert problems == {"heads.when.kind": "can never hold: 'lstm' is not a value of the searched kind"}
    assert "layers.when.heads" in found(heads=heads, layers=heads | {"when": {"heads": 3}})
    assert "layers.when.heads" in found(heads=heads, layers=heads | {"when": {"heads": True}})


def test_cycles_of_conditions_are_named():
    def ring(other):
        return {"type": "int", "low": 0, "high": 1, "when": {other: 1}}

    problems = found(a=ring("b"), b=ring("c"), c=ring("a"))
    assert len(problems) == 1
    (message,) = problems.values()
    assert message.startswith("conditions form a cycle: ")
    assert "a needs b needs c" in message or "b needs c needs a" in message or "c needs a needs b" in message
    assert "cycle: a needs a" in next(iter(found(a=ring("a")).values()))


def test_parameters_are_sampled_after_what_they_depend_on():
    number = {"type": "int", "low": 0, "high": 1}
    domains = space(a=number | {"when": {"c": 1}}, b=number, c=number | {"when": {"b": 1}}, d=number)
    assert sampling_order(domains) == ["b", "d", "c", "a"]


def test_conditions_are_exact_about_types():
    assert holds(None, {})
    assert holds({"a": 1}, {"a": 1, "b": 2})
    assert not holds({"a": 1}, {"a": True})
    assert not holds({"a": 1}, {"a": 1.0})
    assert not holds({"a": 1}, {})
    assert not holds({"a": 1, "b": 2}, {"a": 1})


def test_a_list_in_a_condition_means_one_of_its_values():
    assert holds({"arm": ["att", "patt"]}, {"arm": "patt"})
    assert not holds({"arm": ["att", "patt"]}, {"arm": "avg"})
    assert holds({"arm": [["a", "b"]]}, {"arm": ["a", "b"]})
    assert not holds({"arm": []}, {"arm": "avg"})
    kind = {"type": "categorical", "choices": ["gru", "lstm", "transformer"]}
    heads = {"type": "int", "low": 2, "high": 8, "when": {"kind": ["gru", "lstn"]}}
    assert found(kind=kind, heads=heads) == {
        "heads.when.kind": "can never hold: 'lstn' is not a value of the searched kind"
    }


def test_membership_is_exact_about_types():
    domains = space(
        i={"type": "int", "low": 1, "high": 5, "step": 2},
        f={"type": "float", "low": 0, "high": 1},
        c={"type": "categorical", "choices": [1, "a"]},
    )
    assert 3 in domains["i"]
    assert 2 not in domains["i"]
    assert True not in domains["i"]
    assert 1 in domains["f"]
    assert True not in domains["f"]
    assert "a" in domains["c"]
    assert True not in domains["c"]


def test_values_that_look_alike():
    assert table_text(1) == table_text(1.0) == table_text("1") == table_text("1.0")
    assert table_text(1e-4) == table_text("0.0001")
    assert (
        len({table_text(value) for value in (1, True, None, "true", "", [1], {"a": 1}, 2**53, 2**53 + 1)})
        == 9 - 1
    )
    assert table_text(True) == table_text("true")
    assert not same(1, 1.0)
    assert same({"a": [1]}, {"a": [1]})


def test_a_whole_condition_follows_the_paths_that_it_names():
    number = {"type": "int", "low": 0, "high": 1}
    domains = space(a=number | {"when": {"b": 1, "c": [2, 3]}}, b=number | {"when": {"d": "x"}})
    assert full_condition("a", domains) == {"b": 1, "c": [2, 3], "d": "x"}
    assert full_condition("a", space(a=number | {"when": {"a": 1}})) == {"a": 1}
    assert full_condition("c", domains) == {}
