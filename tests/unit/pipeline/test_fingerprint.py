"""Fingerprints: type-exact, the same everywhere, and picky."""

import json
import math
import os
from enum import IntEnum, StrEnum
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.fingerprint import canonical_json, fingerprint, plain_json
from tests.processes import python

ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


def test_known_digest():
    """The digest is that of the two bytes {}, by sha256sum."""
    value = {"b": [1, 2.0], "a": None}
    assert canonical_json(value) == '{"a":null,"b":[1,2.0]}'
    assert fingerprint({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 1.0),
        (1, "1"),
        (1, True),
        (0, False),
        (0.0, -0.0),
        (None, "null"),
        ([], {}),
        ([1, [2]], [1, 2]),
        ("é", "e\u0301"),
        ({"a": None}, {}),
    ],
)
def test_different_values_differ(first, second):
    assert fingerprint(first) != fingerprint(second)
    assert fingerprint({"x": [first]}) != fingerprint({"x": [second]})


def test_tuples_and_other_mappings_are_what_they_hold():
    assert fingerprint((1, (2,))) == fingerprint([1, [2]])
    assert fingerprint(MappingProxyType({"a": 1})) == fingerprint({"a": 1})


@given(st.dictionaries(st.text(), VALUES))
def test_key_order_does_not_matter(value):
    backwards = dict(reversed(list(value.items())))
    assert fingerprint(backwards) == fingerprint(value)


@given(VALUES)
def test_survives_json(value):
    """A value that went through a JSON file is the same value."""
    assert fingerprint(json.loads(json.dumps(value))) == fingerprint(value)
    assert fingerprint(plain_json(value)) == fingerprint(value)


@given(VALUES, VALUES)
def test_equal_only_when_exactly_equal(first, second):
    same_text = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (fingerprint(first) == fingerprint(second)) == same_text


@settings(max_examples=3)
@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=8), min_size=4, max_size=8))
def test_same_in_another_process(values):
    """Whatever the hash seed there."""
    code = (
        "import json, sys; from nlgraft.pipeline.fingerprint import fingerprint; "
        "print(json.dumps([fingerprint(value) for value in json.load(sys.stdin)]))"
    )
    for hash_seed in ("1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = python("-c", code, input=json.dumps(values), env=environment)
        assert json.loads(done.stdout) == [fingerprint(value) for value in values]


class Level(IntEnum):
    LOW = 1


class Colour(StrEnum):
    RED = "red"


CIRCLE = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        {1: 2},
        {None: 1},
        {"a": {True: 1}},
        {1, 2},
        b"bytes",
        1j,
        Fraction(1, 2),
        object(),
        np.float64(1.0),
        np.int64(1),
        np.zeros(2),
        Level.LOW,
        Colour.RED,
        len,
        CIRCLE,
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_refuses_what_json_cannot_hold(value):
    with pytest.raises(ContractError):
        fingerprint({"deep": [value]})


def test_refusal_names_the_place():
    with pytest.raises(ContractError, match=r"value\.train\.rates\[1\]: .*numpy\.float64.*model_dump"):
        fingerprint({"train": {"rates": [1.0, np.float64(2.0)]}})
