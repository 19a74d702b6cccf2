"""Command-line arguments that reach the API."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from nlgraft import api
from nlgraft.cli import main

STUDY = "examples/minimal_system/study.yaml"


@pytest.mark.parametrize(
    ("arguments", "cell"),
    [([], "baseline"), (["--cell", "both"], "both"), (["--cell", "a=1", "--cell", "b=2"], "a=1, b=2")],
)
def test_a_trial_takes_a_level_of_every_factor(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], cell: str
) -> None:
    cells: list[Any] = []

    def record(study: Any, cell: str, seed: int | None, reporter: Any) -> SimpleNamespace:
        cells.append(cell)
        return SimpleNamespace(metrics={}, state="finished", reason="")

    monkeypatch.setattr(api, "run_one", record)
    done = CliRunner().invoke(main, ["trial", STUDY, *arguments], catch_exceptions=False)
    assert (done.exit_code, cells) == (0, [cell])


def test_python_ends_without_a_last_collection() -> None:
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from nlgraft.cli import main; main(['systems', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
