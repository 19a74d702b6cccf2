"""AGENTS.md: its commands run in their order, and the keys that it documents are there."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import nlgraft
from tests.newcomer_text import newcomer_text, write_lines

PAGE = (Path(__file__).parents[2] / "AGENTS.md").read_text("utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
TRAINING = ("run", "try", "report", "ledger")
"""Commands that train, or show what was trained."""
FEW_STEPS = ["train.max_steps=4", "pretraining.train.max_steps=4", "seeds=[1, 2]", "decode.beam=1"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in newcomer_text(150).items():
        write_lines(Path(name), lines)
    return tmp_path


def test_what_starts_nothing_runs_as_printed(place):
    shown = {command[0]: nlgraft(*command).stdout for command in COMMANDS if command[0] not in TRAINING}
    assert {"studies", "systems", "init", "validate", "plan", "status"} == set(shown)
    plan = json.loads(shown["plan"])
    assert {"trials", "cost_s", "problems"} <= set(plan)
    assert plan["problems"] == []
    assert "finished" in plan["stages"]


def test_the_skill_names_commands_options_and_keys_that_the_page_explains():
    skill = (Path(__file__).parents[2] / "SKILL.md").read_text("utf-8")
    typed = [shlex.split(text)[1:] for text in re.findall(r"`(nlgraft [^`]+)`", skill)]
    assert {command[0] for command in typed} <= {command[0] for command in COMMANDS}
    for command in typed:
        shown = nlgraft(command[0], "--help").stdout
        assert [word for word in command if word.startswith("--") and word not in shown] == [], command
    named = set(re.findall(r"`([a-z_]+)`|`[^`]*\.([a-z_]+)`", skill))
    keys = {first or second for first, second in named} - {"nlgraft"}
    assert {"cost_s", "problems", "standing", "seeds_more"} <= keys
    assert {key for key in keys if key not in PAGE} == set()


def keys_of(document, path):
    for part in re.sub(r"\[\]", ".[]", path).split("."):
        if part == "[]":
            document = document[-1]  # not the baseline, which is compared with nothing
        elif part.endswith("[NAME]"):
            document = document[part.removesuffix("[NAME]")]["test/bleu"]
        else:
            assert part in document, path
            document = document[part]
    return document


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("ray_cluster")
def test_all_commands_run_and_the_documented_keys_are_in_the_result(place):
    for command in COMMANDS:
        overrides = FEW_STEPS if command[0] in ("run", "status", "report") else []
        if command[0] == "try":
            overrides = ["train.max_steps=4", "pretraining.train.max_steps=4"]
        text = nlgraft(*command, *overrides).stdout
        if command[0] == "try":
            assert json.loads(text.splitlines()[-1])["decision"] in ("KEEP", "DISCARD", "MORE")
        if command[0] in ("run", "report"):
            result = json.loads(text.splitlines()[-1] if command[0] == "run" else text)
            for row in re.findall(r"^\| (`.*?) \|", PAGE, re.M):
                first, *others = re.findall(r"`([^`]+)`", row)
                stem = first.rpartition(".")[0]
                for path in (first, *(f"{stem}{key}" if key.startswith(".") else key for key in others)):
                    keys_of(result, path)
            compared = (cell["comparison"]["test/bleu"] for cell in result["cells"][1:])
            standing = {each["basis"]: each["standing"] for each in compared}
            assert standing["exploratory"] is None
            assert standing["declared"] in ("better", "worse", "equal", "open")
