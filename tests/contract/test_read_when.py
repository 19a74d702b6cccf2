"""Every value in the conditions under which systems read their settings occurs in a tested arm."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from nlgraft.study.data.system import System
from nlgraft.study.reading.knobs import knobs
from nlgraft.study.reading.system_import import load_system
from tests.contract.effects import config_of
from tests.contract.toy_arms import SYSTEMS, arms_of, toys_of

Condition = Mapping[str, tuple[Any, ...]]


def narrowed(condition):
    """The condition with one of the values that a setting may have, for every setting and value."""
    for path, values in condition.items():
        # of numbers one stands for all: a depth of 7 is read as one of 2 is
        are_numbers = all(type(value) in (int, float) for value in values)
        for value in [values] if are_numbers else [(value,) for value in values]:
            yield {**condition, path: value}


def is_met(system, condition, config):
    """Ask a system that has this condition alone, for every setting."""

    class Narrowed(System):
        def conditions(self, path):
            return (condition,)

    return Narrowed(**vars(system)).is_read("a setting", config)


@pytest.mark.parametrize("path", SYSTEMS)
def test_every_value_of_a_condition_has_an_arm(path):
    """Otherwise no test would cover whether the settings are read under that condition."""
    system = load_system(path)
    arms = [config_of(system, values).model_dump(mode="json") for values in arms_of(path).values()]
    uncovered = {
        json.dumps(narrow): knob.path
        for knob in knobs(system.config_type)
        for condition in system.conditions(knob.path)
        for narrow in narrowed(condition)
        if not any(is_met(system, narrow, config) for config in arms)
    }
    assert not uncovered, "\n".join(
        [
            f"no arm of {toys_of(path).name} has what READ_WHEN names:",
            *(f"  {knob} is read when {condition_text}" for condition_text, knob in uncovered.items()),
        ]
    )
