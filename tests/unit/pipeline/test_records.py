"""Records: trials, proposals, studies."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nlgraft.errors import ContractError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord


def test_trial_record_round_trip(store: ArtifactStore):
    record = TrialRecord(
        fingerprint="abc",
        config={"train": {"peak_lr": 0.001}},
        seed=3,
        state="failed",
        reason="training: FloatingPointError: loss is nan at step 2",
        metrics={"dev/loss": math.nan, "dev/bleu": 3.5, "x": math.inf, "y": -math.inf},
        signatures={"dev/bleu": "nrefs:1|case:mixed"},
        curves={"train/loss": [[1, 2.5, 1000], [2, math.nan, 1001]]},
        stages=[{"name": "training", "decision": "failed"}],
        started_at=1.5,
        ended_at=2.5,
        host="here",
        attempt=2,
    )
    store.write_record("trials", "abc", record.to_json())
    back = TrialRecord.from_json(store.read_record("trials", "abc"))
    assert math.isnan(back.metrics["dev/loss"])
    assert math.isnan(back.curves["train/loss"][1][1])
    assert (back.metrics["x"], back.metrics["y"]) == (math.inf, -math.inf)
    assert back.to_json() == record.to_json()


def test_keys_of_a_later_version_are_dropped():
    document = TrialRecord(fingerprint="abc", config={}, seed=None, state="finished").to_json()
    assert TrialRecord.from_json({**document, "colour": "red"}).fingerprint == "abc"


def test_list_by_prefix(store: ArtifactStore):
    for key in ("study1/00001", "study1/00002", "study10/00001", "other"):
        store.write_record("proposals", key, {"key": key})
    assert list(store.list_records("proposals", "study1/")) == ["study1/00001", "study1/00002"]
    assert list(store.list_records("proposals", "study1")) == [
        "study1/00001",
        "study1/00002",
        "study10/00001",
    ]
    assert len(store.list_records("proposals")) == 4
    assert store.list_records("trials") == {}
    assert store.read_record("proposals", "study2") is None


@pytest.mark.parametrize("content", [b"", b'{"state": "fin', b"\x00" * 20, b"[1]"])
def test_garbage_is_set_aside_and_named(
    store: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
):
    """platform.md F16."""
    store.write_record("trials", "good", {"state": "finished"})
    store.write_record("trials", "bad", {"state": "finished"})
    path = tmp_path / "store" / "records" / "trials" / "bad.json"
    path.write_bytes(content)
    assert store.list_records("trials") == {"good": {"state": "finished"}}
    assert "records/trials/bad.json cannot be read" in caplog.text
    assert path.with_name("bad.json.corrupt").read_bytes() == content
    assert store.read_record("trials", "bad") is None
    store.write_record("trials", "bad", {"state": "failed"})
    assert store.read_record("trials", "bad") == {"state": "failed"}


def test_misuse_is_refused(store: ArtifactStore):
    with pytest.raises(ContractError, match="Did you mean 'trials'"):
        store.read_record("trial", "abc")
    with pytest.raises(ContractError, match="record key"):
        store.write_record("trials", "../escape", {})
    with pytest.raises(ContractError, match="trials/abc"):
        store.write_record("trials", "abc", {"x": math.nan})
    with pytest.raises(ContractError, match="trials/abc"):
        store.write_record("trials", "abc", {"x": {1, 2}})
    assert store.list_records("trials") == {}
