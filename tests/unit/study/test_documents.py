"""YAML in and out: strict, without surprises, never a traceback."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlgraft.study.reading.documents import from_values, masked, parse, read_file, resolve_plain, write_yaml

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def messages(text):
    return [problem.message for problem in parse(text).problems]


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-4", 1e-4),
        ("1.0e-5", 1e-5),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("2:30", "2:30"),
        ("2026-11-21", "2026-11-21"),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("true", True),
        ("~", None),
        ("", None),
        ('"1"', "1"),
        ("'true' # a comment", "true"),
        (".5", 0.5),
        ("3.", 3.0),
        ("-0", 0),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    document = parse(text)
    assert document.problems == []
    assert document.values == value
    assert type(document.values) is type(value)


def test_json_is_read_too():
    values = {"a": [1, 1.5, "x\n", None, True], "b": {"c": "ü\\"}}
    assert parse(json.dumps(values)).values == values


def test_lines_are_known_by_path():
    document = parse("a:\n  b: [1,\n    2]\nsearch:\n  x.y: 3\n")
    assert document.lines == {"a": 1, "a.b": 2, "a.b[0]": 2, "a.b[1]": 3, "search": 4, "search.x.y": 5}


def test_every_duplicate_key_is_reported_and_the_first_value_kept():
    document = parse("a: 1\nb: {c: 1, c: 2}\na: {d: 3, d: 4}\n")
    assert [(p.path, p.message) for p in document.problems] == [
        ("b.c", "line 2: key 'c' is written twice, first on line 2; keep one"),
        ("a", "line 3: key 'a' is written twice, first on line 1; keep one"),
        ("a.d", "line 3: key 'd' is written twice, first on line 3; keep one"),
    ]
    assert document.values == {"a": 1, "b": {"c": 1}}
    assert document.is_whole


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: &x 1\nb: *x\n", "line 1: anchor &x is not allowed; write the value out where it is used"),
        ("a: &x 1\nb: *x\n", "line 2: alias *x is not allowed; write the value out"),
        ("b: {<<: {a: 1}}\n", "line 1: merge key << is not allowed; write the values out"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "line 1: tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ("a: !mine 1\n", "line 1: tag !mine is not allowed; quote the value if it is text"),
        ("a:\n\tb: 1\n", "line 2: while scanning for the next token found character"),
        ("a:\n\tb: 1\n", "indent with spaces, tabs are not allowed"),
        ("a: [1\nb: 2\n", "line 2: while parsing a flow sequence"),
        ("a: 1\n--- \nb: 1\n", "line 2: a second document begins"),
        ("%YAML 1.1\n---\na: no\n", "line 1: studies are YAML 1.2; remove the %YAML line"),
        ("1: x\n", 'line 1: key 1 is not text; quote it: "1"'),
        ("? [a]\n: 1\n", "line 1: a key must be text"),
        ("a: .nan\n", "line 1: nan is not a finite number"),
        ("a: 1e999\n", "line 1: inf is not a finite number"),
        ("a: \x07\n", "unacceptable character #x0007"),
        ('a: "\\0"\n', "line 1: holds a character that no text file has"),
        ('a: "\\ud800"\n', "line 1: while parsing a quoted scalar found invalid Unicode"),
        ("[" * 60 + "]" * 60, "line 1: nested deeper than 50 levels"),
        ("[" * 100_000, "line 1: nested deeper than 50 levels"),
    ],
)
def test_what_could_mislead_is_refused_with_its_line(text, message):
    document = parse(text)
    assert any(message in problem.message for problem in document.problems), document.problems
    assert not document.is_whole


def test_a_bomb_of_aliases_is_refused_without_being_expanded():
    lines = ["a0: &a0 [x, x]"] + [
        f"a{i}: &a{i} [{', '.join(['*a' + str(i - 1)] * 10)}]" for i in range(1, 40)
    ]
    refusals = messages("\n".join(lines))
    assert len(refusals) == 40 + 39 * 10


def test_files_that_cannot_be_read_are_problems(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("a: ü".encode("latin-1"))
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1")
    assert "cannot be read: No such file" in read_file(tmp_path / "none.yaml").problems[0].message
    (tmp_path / "mine.yaml").write_text("a: 1")
    message = read_file(tmp_path / "mien.yaml").problems[0].message
    assert message.endswith("cannot be read: No such file or directory. Did you mean 'mine.yaml'?")
    assert (
        read_file(tmp_path / "mine.yaml@tiny").problems[0].message.endswith(f"{tmp_path / 'mine.yaml'} @tiny")
    )
    assert "cannot be read: Is a directory" in read_file(tmp_path).problems[0].message
    assert "is not UTF-8: byte 0xfc at offset 3" in read_file(tmp_path / "latin.yaml").problems[0].message
    assert read_file(tmp_path / "bom.yaml").values == {"a": 1}


def test_values_that_json_lacks_are_problems_of_their_path():
    assert from_values({"a": (1, 2)}).values == {"a": [1, 2]}
    (problem,) = from_values({"a": {"b": [math.nan]}}).problems
    assert (problem.path, problem.message) == ("a.b[0]", "nan is not a finite number; JSON has no such value")


@pytest.mark.parametrize(
    "text",
    [
        "word " * 100,
        "  leading and trailing  ",
        "two  spaces " * 40,
        "a\n\nb\n" * 30,
        "x" * 500,
        "- no list",
        "# no comment",
        "a: b",
        "${env:X}",
        "\u2028\x85\ufeff",
        "0\x850",
        "\t",
    ],
)
def test_awkward_text_is_read_back_exactly(text):
    for values in (text, {text: [text, {"a": text}]}):
        assert parse(write_yaml(values)).values == values


def test_passwords_are_masked_for_showing():
    uris = [
        "postgresql://me:secret@host/db",
        "s3://key:secret@bucket/x?a=b",
        "http://host:5000",
        "sqlite:///a:b@c",
    ]
    assert masked({"a": uris}) == {
        "a": [
            "postgresql://me:***@host/db",
            "s3://key:***@bucket/x?a=b",
            "http://host:5000",
            "sqlite:///a:b@c",
        ]
    }


@given(JSON)
def test_what_is_written_is_read_back_exactly(values):
    document = parse(write_yaml(values))
    assert document.problems == []
    assert repr(document.values) == repr(values)  # repr tells 1 from 1.0 and True


@given(st.text(max_size=40) | st.text("{}[]:,-?&*!|>'\"%@` \n\tab1.", max_size=40))
def test_no_text_makes_the_parser_raise(text):
    document = parse(text)
    assert document.is_whole or document.problems


@given(st.text("0123456789.eE+-_oxinfa", max_size=8))
def test_only_what_python_can_read_is_a_number(text):
    value = resolve_plain(text)
    if type(value) is float and math.isfinite(value):
        assert value == float(text)
    if type(value) is int:
        assert value == int(text, 0 if text[:2] in ("0x", "0o") else 10)
