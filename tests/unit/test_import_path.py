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


@pytest.fixture(params=["script", "module"])
def program(request, tmp_path):
    """``nlgraft`` as pip installs it, and ``python -m nlgraft``."""
    if request.param == "module":
        return [sys.executable, "-m", "nlgraft"]
    script = tmp_path / "bin" / "nlgraft"
    script.parent.mkdir()
    script.write_text("from nlgraft.commands.main import main\nmain()\n")
    return [sys.executable, str(script)]


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
        [*program, *arguments], cwd=folder, env=environment, input="", capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["compare", "one", "two", "--ref", "one"], 0, "bleu"),
        (["translate", "."], 2, "later"),
    ],
)
def test_a_file_of_the_working_directory_never_stands_for_a_package(program, planted, arguments, code, shown):
    done = call(program, planted, *arguments)
    assert done.returncode == code, done.stderr
    assert shown in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not [*planted.glob("ran_*")]


def test_a_system_of_ones_own_is_found_in_the_working_directory(program, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "my_system.py").write_text("from examples.minimal_system import *\n")
    document = Study.from_yaml(ROOT / "examples/minimal_system/study.yaml").to_dict()
    (folder / "study.json").write_text(json.dumps({**document, "system": "my_system"}))
    (folder / "numpy.py").write_text("raise ImportError('planted')\n")
    done = call(program, folder, "plan", "study.json")
    assert done.returncode == 0, done.stderr


def test_a_store_of_somebody_else_brings_no_system(program, planted):
    """Its study names a module that lies beside it."""
    study = Study.from_yaml(ROOT / "examples/minimal_system/study.yaml")
    study.record(ArtifactStore.open(planted))
    [record] = planted.glob("records/definitions/*")
    record.write_text(record.read_text().replace("examples.minimal_system", "helper"))
    done = call(program, planted, "report", study.variant, "--storage", ".")
    assert done.returncode == 2
    assert "no module 'helper'" in done.stderr
    assert not [*planted.glob("ran_*")]
