"""Checkpoints: whole or not at all, newest two kept (platform.md F05)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nlgraft.errors import ContractError
from nlgraft.pipeline.checkpoints import Checkpoints


def write(text: str):
    return lambda path: (path / "state.json").write_text(text)


def test_newest_two_are_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "fp")
    assert checkpoints.latest() is None
    assert checkpoints.newest_step() is None
    for step in (2, 9, 10):
        checkpoints.save(step, write(str(step)))
    step, path = checkpoints.latest()
    assert (step, (path / "state.json").read_text()) == (10, "10")
    assert checkpoints.newest_step() == 10
    assert sorted(child.name for child in (tmp_path / "fp").iterdir()) == ["10", "9"]
    checkpoints.clear()
    assert checkpoints.latest() is None
    checkpoints.clear()


def test_same_step_is_replaced(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write("old"))
    checkpoints.save(1, write("new"))
    step, path = checkpoints.latest()
    assert (step, (path / "state.json").read_text()) == (1, "new")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no manifest", "empty manifest"])
def test_damaged_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, write("state"))
    file = tmp_path / "2" / "state.json"
    match damage:
        case "truncated":
            file.write_text("sta")
        case "flipped":
            file.write_text("stat3")
        case "missing":
            file.unlink()
        case "no manifest":
            (tmp_path / "2" / "checkpoint.json").unlink()
        case "empty manifest":
            (tmp_path / "2" / "checkpoint.json").write_text("")
    assert checkpoints.latest() == (1, tmp_path / "1")
    assert "2 is passed over" in caplog.text


def test_failing_write_leaves_nothing(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write("good"))

    def fail(path: Path) -> None:
        (path / "state.json").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2, fail)
    assert checkpoints.latest() == (1, tmp_path / "1")
    assert [child.name for child in tmp_path.iterdir()] == ["1"]


def test_killed_while_writing(tmp_path: Path):
    """A process that dies in the middle leaves the previous one in force; the next save cleans up."""
    code = f"""
import os
from pathlib import Path
from nlgraft.pipeline.checkpoints import Checkpoints
def die(path):
    (path / "state.json").write_text("half")
    os._exit(9)
checkpoints = Checkpoints(Path({str(tmp_path)!r}))
checkpoints.save(1, lambda path: (path / "state.json").write_text("whole"))
checkpoints.save(2, die)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == (1, tmp_path / "1")
    checkpoints.save(2, write("whole"))
    assert sorted(child.name for child in tmp_path.iterdir()) == ["1", "2"]


def test_ranks_above_zero_write_nothing(tmp_path: Path):
    Checkpoints(tmp_path).save(1, write("state"))
    other = Checkpoints(tmp_path, is_writable=False)

    def never(path: Path) -> None:
        raise AssertionError

    other.save(2, never)
    other.clear()
    assert other.latest() == (1, tmp_path / "1")


def test_pickles_are_refused(tmp_path: Path):
    with pytest.raises(ContractError, match=r"state\.pt: the store holds no pickles"):
        Checkpoints(tmp_path).save(1, lambda path: (path / "state.pt").write_text(""))
