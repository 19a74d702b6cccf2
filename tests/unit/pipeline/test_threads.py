"""The number of threads that a manifest records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nlgraft.pipeline import execute
from nlgraft.pipeline.execute import Threads, execute_stage
from nlgraft.pipeline.stage import NullReporter, Stage, StageContext
from nlgraft.pipeline.store import ArtifactStore


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = Threads()
    monkeypatch.setattr(execute, "THREADS", threads)
    yield threads
    torch.set_num_threads(before)


def made_with(threads: Threads, store: ArtifactStore, *numbers: int) -> int | None:
    """Run a stage that computes with these numbers of threads, one after another."""

    def run(context: StageContext) -> None:
        for number in numbers:
            threads.set(number)
            assert torch.get_num_threads() == number
        (context.directory / "weights").write_text("x")

    stage = Stage(name="train", run="a.b:c", config={"numbers": list(numbers)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "load_function", lambda *_: run)
        execute_stage(stage, store, reporter=NullReporter())
    manifest = store.manifest(stage)
    assert manifest is not None
    return manifest.num_threads


def test_a_manifest_records_the_threads_of_its_stage(tmp_path: Path, threads: Threads) -> None:
    store = ArtifactStore.open(tmp_path)
    torch.set_num_threads(3)
    assert made_with(threads, store) == 3, "as the process was started"
    threads.set(1)
    assert made_with(threads, store, 4) == 4
    assert made_with(threads, store, 2) == 2
    assert made_with(threads, ArtifactStore.open(tmp_path / "another")) == 2


def test_the_threads_are_no_part_of_the_fingerprint(tmp_path: Path, threads: Threads) -> None:
    first, second = ArtifactStore.open(tmp_path / "1"), ArtifactStore.open(tmp_path / "2")
    threads.set(1)
    made_with(threads, first)
    threads.set(2)
    made_with(threads, second)
    [of_one], [of_two] = ([path.name for path in tmp_path.glob(f"{n}/artifacts/train/*")] for n in (1, 2))
    assert of_one == of_two
