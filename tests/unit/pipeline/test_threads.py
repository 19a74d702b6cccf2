"""The number of threads of a process, and the one that a manifest records."""

import pytest
import torch

from nlgraft.pipeline import trial
from nlgraft.pipeline.stage import NullReporter, Stage
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import Threads, execute_stage
from tests.processes import python


@pytest.fixture
def threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = Threads()
    monkeypatch.setattr(trial, "THREADS", threads)
    yield threads
    torch.set_num_threads(before)


def made_with(threads, store, *numbers):
    """Run a stage that computes with these numbers of threads, one after another."""

    def run(context):
        for number in numbers:
            threads.set(number)
            assert torch.get_num_threads() == number
        (context.directory / "weights").write_text("x")

    stage = Stage(name="train", run="a.b:c", config={"numbers": list(numbers)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "load_function", lambda *_: run)
        execute_stage(stage, store, reporter=NullReporter())
    manifest = store.manifest(stage)
    return manifest.num_threads


def test_a_manifest_records_the_threads_of_its_stage(tmp_path, threads):
    store = ArtifactStore.open(tmp_path)
    torch.set_num_threads(3)
    assert made_with(threads, store) == 3, "as the process was started"
    threads.set(1)
    assert made_with(threads, store, 4) == 4
    assert made_with(threads, store, 2) == 2
    assert made_with(threads, ArtifactStore.open(tmp_path / "another")) == 2


def test_threads_are_limited_without_importing_pytorch_which_takes_seconds():
    code = (
        "import os, sys; from nlgraft.pipeline.trial import THREADS; THREADS.set(2)\n"
        "print('torch' in sys.modules, os.environ['OMP_NUM_THREADS'])"
    )
    done = python("-c", code)
    assert done.stdout.split() == ["False", "2"]
