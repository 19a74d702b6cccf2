"""What docs/any_script.md shows: its study runs as printed, and its other parts belong to a study."""

import re
from pathlib import Path

import pytest

from nlgraft.study.public import Study
from nlgraft.study.reading.documents import parse
from tests.commands import nlgraft, write_study

PAGE = (Path(__file__).parents[3] / "docs" / "any_script.md").read_text("utf-8")


def blocks(language):
    return [text for kind, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.S) if kind == language]


STUDY, *PARTS = blocks("yaml")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("words").mkdir()
    Path("words/train.py").write_text(blocks("python")[0])
    Path("words/prepare.py").touch()
    Path("words.yaml").write_text(STUDY)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_the_study_of_the_page_runs_as_printed():
    commands = [line for line in blocks("")[0].splitlines() if line.startswith("nlgraft ")]
    validate, plan, trial = (line.split("  ")[0].split()[1:] for line in commands[:3])
    assert "3 cells, 3 seeds" in nlgraft(*validate).output
    assert "9" in nlgraft(*plan).output
    shown = nlgraft(*trial).output
    assert {line.split("\t")[0] for line in shown.splitlines() if "\t" in line} == {
        *("command_s", "dev/item.right", "dev/loss", "test/item.right"),
    }


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.partition(":")[0])
def test_every_other_part_belongs_to_a_study(place, part):
    document, values = (parse(text).values for text in (STUDY, part))
    if "system" in values:
        assert Study.from_yaml(write_study(place / "whole.json", values)).seeds == [1, 2, 3]
        return
    document["factors"] = values.pop("factors", {})
    document["base"] |= values
    document["data"]["files"] = {"text": "words/train.py"}
    document["base"]["metrics"] = {"dev/loss": {"direction": "minimize"}}
    document["objective"] = {"metric": "dev/loss", "direction": "minimize"}
    assert Study.from_yaml(write_study(place / "part.json", document)).seeds == [1, 2, 3]
