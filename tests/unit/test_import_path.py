"""Which files of the working directory a command runs: those of a study's system, and no others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study

ROOT = Path(__file__).parents[2]
CHOOSES_CODE = {
    "task": "translation",
    "trial": "0" * 64,
    "later": [{"name": "last", "run": "helper:run", "version": 1, "config": {}, "input": "translation"}],
}


MODULE = ("-m", "nlgraft")


@pytest.fixture
def script(tmp_path):
    """``nlgraft`` as pip installs it."""
    file = tmp_path / "bin" / "nlgraft"
    file.parent.mkdir()
    file.write_text("from nlgraft.commands.main import main\nmain()\n")
    return [str(file)]


@pytest.fixture
def planted(tmp_path):
    """A directory from somebody else, whose modules leave a trace when they are imported."""
    folder = tmp_path / "received"
    folder.mkdir()
    for name in ("numpy", "sacrebleu", "torch", "click", "helper"):
        (folder / f"{name}.py").write_text(f"open('ran_{name}', 'w')\nraise ImportError('planted')\n")
    (folder / "nlgraft.json").write_text(json.dumps(CHOOSES_CODE))
    for name in ("one", "two"):
        (folder / name).write_text("a small house\nthe house\n")
    return folder


def call(program, folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PYTHONSAFEPATH": ""}
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env=environment,
        input="",
        capture_output=True,
        text=True,
    )


def test_a_file_of_the_working_directory_never_stands_for_a_package(script, planted):
    done = call(MODULE, planted, "compare", "one", "two", "--ref", "one")
    assert done.returncode == 0, done.stderr
    assert "bleu" in done.stdout
    refused = call(script, planted, "translate", ".")
    assert refused.returncode == 2
    assert "later" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not [*planted.glob("ran_*")]


def test_a_system_of_ones_own_is_found_in_the_working_directory(script, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "my_system.py").write_text("from examples.minimal_system import *\n")
    document = Study.from_yaml(ROOT / "examples/minimal_system/study.yaml").to_dict()
    (folder / "study.json").write_text(json.dumps({**document, "system": "my_system"}))
    (folder / "numpy.py").write_text("raise ImportError('planted')\n")
    for program in (script, MODULE):
        done = call(program, folder, "plan", "study.json")
        assert done.returncode == 0, done.stderr


def test_a_store_of_somebody_else_brings_no_system(planted):
    """Its study names a module that lies beside it."""
    study = Study.from_yaml(ROOT / "examples/minimal_system/study.yaml")
    study.record(ArtifactStore.open(planted))
    [record] = planted.glob("records/definitions/*")
    record.write_text(record.read_text().replace("examples.minimal_system", "helper"))
    done = call(MODULE, planted, "report", study.variant, "--storage", ".")
    assert done.returncode == 2
    assert "no module 'helper'" in done.stderr
    assert not [*planted.glob("ran_*")]
