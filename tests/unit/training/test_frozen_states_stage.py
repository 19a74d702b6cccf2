"""Frozen states as a stage: computed once, kept in the store, read by every trial that wants them."""

from __future__ import annotations

import os

import pytest
import torch

from nlgraft.nn.identity import checkpoint_identity
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from tests.tiny_models import hugging_face
from tests.unit.training.frozen_stages import STATES, graph


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    hugging_face("bert").save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def run(store, *args, **kwargs):
    made = graph(*args, **kwargs)
    record = run_trial(made, store, reporter=NullReporter(), config={}, is_waiting=False)
    assert record.state == "finished", record.reason
    decisions = {
        stage.name: entry["decision"] for stage, entry in zip(made.stages, record.stages, strict=True)
    }
    return record.metrics["dev/loss"], decisions, made


def test_states_are_computed_once_and_shared(tmp_path, checkpoint):
    """Two trials of different merges share them; what is learned from them is what live states teach."""
    store = ArtifactStore.open(str(tmp_path / "store"))
    stored, decisions, made = run(store, str(checkpoint), "sum", is_stored=True)
    assert decisions == {"text": "run", "states": "run", "train": "run"}
    other, decisions, _ = run(store, str(checkpoint), "gate", is_stored=True)
    assert decisions == {"text": "hit", "states": "hit", "train": "run"}
    assert other != stored
    live, decisions, _ = run(store, str(checkpoint), "sum", is_stored=False)
    assert decisions == {"text": "hit", "train": "run"}
    assert stored == pytest.approx(live, abs=1e-5)
    half, decisions, halved = run(store, str(checkpoint), "sum", is_stored=True, precision="fp16")
    assert decisions == {"text": "hit", "states": "run", "train": "run"}
    assert half == pytest.approx(live, abs=1e-2)
    sizes = [(store.fetch(g.find("states")) / STATES).stat().st_size for g in (made, halved)]
    assert 0.5 < sizes[1] / sizes[0] < 0.55


def test_another_checkpoint_is_another_stage(tmp_path, checkpoint):
    first = graph(str(checkpoint), "sum", is_stored=True)
    assert graph(str(checkpoint), "sum", is_stored=True).fingerprint == first.fingerprint
    torch.manual_seed(1)
    hugging_face("bert").save_pretrained(checkpoint)
    second = graph(str(checkpoint), "sum", is_stored=True)
    assert second.find("states").fingerprint != first.find("states").fingerprint
    assert second.find("text").fingerprint == first.find("text").fingerprint


def test_identity_is_that_of_the_bytes(tmp_path):
    """Wherever the directory lies; another byte, name or file is another checkpoint."""
    assert checkpoint_identity("facebook/mbart-large-cc25") == {"checkpoint": "facebook/mbart-large-cc25"}
    seen = []
    for number, files in enumerate(
        (
            {"a": b"12", "b": b"3"},
            {"a": b"1", "b": b"23"},
            {"a": b"12", "c": b"3"},
            {"a": b"12"},
            {"a": b"13", "b": b"3"},
        )
    ):
        identities = []
        for place in ("here", "there"):
            directory = tmp_path / place / str(number)
            directory.mkdir(parents=True)
            for name, content in files.items():
                (directory / name).write_bytes(content)
            identities.append(checkpoint_identity(str(directory)))
        assert identities[0] == identities[1]
        assert identities[0] not in seen
        seen.append(identities[0])
    changed = tmp_path / "here" / "0"
    before = checkpoint_identity(str(changed))
    (changed / "b").write_bytes(b"4")
    os.utime(changed / "b", ns=(1, 1))
    assert checkpoint_identity(str(changed)) != before
