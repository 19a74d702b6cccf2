"""Studies that are vast, endless or aimed at places that do not exist are refused within seconds."""

import os
import re
import time
from pathlib import Path

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study
from tests.small_studies import GAINS


@pytest.fixture(autouse=True)
def within_seconds():
    """Each of these took minutes where it was quadratic, and takes a second."""
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s < 5


def test_a_vast_factor_is_refused_within_seconds(toy_document, problems):
    levels = [float(level) for level in range(30_000)]
    toy_document["factors"] = {"gain": {"target": "gain", "levels": levels, "baseline": 0.0}}
    assert "30,000 cells, at most 1,000" in problems(toy_document)["design"]


def test_many_seeds_are_read_within_seconds(toy_document, problems):
    toy_document["seeds"] = [*range(4_000), 7]
    assert problems(toy_document) == {"seeds[4000]": "7 is the same as seeds[7]; write each seed once"}


@pytest.mark.parametrize("place", ["design.cells", "exclude"])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_many_cells_and_exclusions_are_read_within_seconds(toy_document, problems, place, is_wrong):
    levels = [float(level) for level in range(9_000)]
    toy_document["factors"] = {"gain": {"target": "gain", "levels": levels, "baseline": 0.0}}
    entries = [{"gain": level + 0.5 if is_wrong else level} for level in levels[1:]]
    if place == "exclude":
        toy_document["exclude"] = entries if is_wrong else entries[1_500:]
    else:
        toy_document["design"] = {"kind": "cells", "cells": entries}
    messages = problems(toy_document)
    if is_wrong:
        assert len(messages) == 21
        assert "1.5 is not a level of gain. Did you mean '1.0'?" in messages[f"{place}[0].gain"]
        assert "and 8,500 more" in messages[f"{place}[0].gain"]
        assert messages[place] == "more entries are wrong; these are the first 20"
    else:
        count = "1,501" if place == "exclude" else "9,000"
        assert f"{count} cells, at most 1,000" in messages["design"]


def test_a_study_that_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "study.yaml")
    for path in (tmp_path / "study.yaml", Path("/dev/zero")):
        with pytest.raises(StudyError, match="a pipe or a device"):
            Study.from_yaml(path)


def test_thousands_of_unknown_keys_are_refused_within_seconds(tmp_path):
    (tmp_path / "study.yaml").write_text("".join(f"unknown_key_{n}: 1\n" for n in range(20_000)))
    with pytest.raises(StudyError, match="more than 1,000 keys"):
        Study.from_yaml(tmp_path / "study.yaml")


def test_many_misspelt_settings_are_named_within_seconds(toy_document, problems):
    space = {f"gian.{n}": {"type": "float", "low": 0, "high": 1} for n in range(300)}
    toy_document["search"] = {"trials": 3, "space": space}
    assert len(problems(toy_document)) == 300


@pytest.mark.parametrize("text", ["\x1b[2J\x1b[31mgone", "\u202etxt.exe"])
@pytest.mark.parametrize("place", ["description", "factors"])
def test_what_would_disturb_a_terminal_is_refused(toy_document, problems, place, text):
    factors = {text: GAINS}
    toy_document[place] = text if place == "description" else factors
    joined = " ".join(problems(toy_document).values())
    assert f"{text!a} has characters that control a terminal" in joined


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("base.steps", 10**30, "1000000000000000000000000000000 is too large"),
        (
            "tracking.uri",
            "ftp://example.org",
            "'ftp' is no scheme of MLflow. Allowed: http, https",
        ),
        ("storage.path", "s4://bucket/prefix", "cannot be opened: .* Allowed: a directory"),
    ],
)
def test_what_cannot_be_reached_is_refused(toy_document, problems, path, value, message):
    part, _, key = path.partition(".")
    toy_document.setdefault(part, {})[key] = value
    messages = problems(toy_document)
    assert list(messages) == [path]
    assert re.search(message, messages[path])
