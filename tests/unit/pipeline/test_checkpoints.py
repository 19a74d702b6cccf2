"""Checkpoints: whole or not at all, newest two kept."""

import pytest

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore
from tests.processes import python


def open_checkpoints(root, **options):
    return Checkpoints(LocalFiles(root), "checkpoints/fp", **options)


def folders(root):
    return sorted(child.name for child in (root / "checkpoints" / "fp").iterdir())


def content(checkpoints):
    latest = checkpoints.latest()
    return latest[0], (latest[1] / "state.json").read_text()


def write(text):
    return lambda path: (path / "state.json").write_text(text)


@pytest.mark.parametrize("damage", ["truncated", "missing", "empty manifest"])
def test_damaged_one_is_passed_over(tmp_path, caplog, damage):
    checkpoints = open_checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, write("state"))
    folder = tmp_path / "checkpoints" / "fp" / "2"
    (file,) = folder.glob("*/state.json")
    match damage:
        case "truncated":
            file.write_text("sta")
        case "missing":
            file.unlink()
        case "empty manifest":
            (folder / "checkpoint.json").write_text("")
    assert content(checkpoints) == (1, "state")
    assert "checkpoints/fp/2 is skipped" in caplog.text


def test_failing_write_leaves_nothing(tmp_path):
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.save(1, write("good"))

    def fail(path):
        (path / "state.json").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoints.save(2, fail)
    assert content(checkpoints) == (1, "good")
    assert folders(tmp_path) == ["1"]
    assert not list(tmp_path.glob("tmp/[!.]*"))


def test_killed_while_writing(tmp_path):
    """A process that dies in the middle leaves the previous one in force; the next save cleans up."""
    code = f"""
import os
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore
def die(path):
    (path / "state.json").write_text("half")
    os._exit(9)
checkpoints = ArtifactStore.open({str(tmp_path)!r}).checkpoints(Stage(name="x", run="x:x"))
checkpoints.save(1, lambda path: (path / "state.json").write_text("whole"))
checkpoints.save(2, die)
"""
    python("-c", code, code=9)
    store = ArtifactStore.open(tmp_path)
    checkpoints = store.checkpoints(Stage(name="x", run="x:x"))
    assert content(checkpoints) == (1, "whole")
    checkpoints.save(2, write("whole"))
    assert content(checkpoints) == (2, "whole")
    store.remove_abandoned()
    assert not list(tmp_path.glob("tmp/[!.]*"))


def test_pickles_are_refused(tmp_path):
    with pytest.raises(ContractError, match=r"state\.pt: the store holds no pickles"):
        open_checkpoints(tmp_path).save(1, lambda path: (path / "state.pt").write_text(""))
