"""Records: trials, proposals, studies."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.trial import TRIAL_RECORD, TrialRecord, trial_record

ANY = TypeAdapter(dict[str, Any])


def test_trial_record_round_trip(store):
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
    store.records.write("trials", "abc", record.to_json())
    back = store.records.read("trials", "abc", TRIAL_RECORD)
    assert math.isnan(back.metrics["dev/loss"])
    assert math.isnan(back.curves["train/loss"][1][1])
    assert (back.metrics["x"], back.metrics["y"]) == (math.inf, -math.inf)
    assert back.to_json() == record.to_json()


def test_list_by_prefix(store):
    for key in ("study1/00001", "study1/00002", "study10/00001", "other"):
        store.records.write("proposals", key, {"key": key})
    assert list(store.records.list("proposals", ANY, "study1/")) == ["study1/00001", "study1/00002"]
    assert list(store.records.list("proposals", ANY, "study1")) == [
        "study1/00001",
        "study1/00002",
        "study10/00001",
    ]
    assert len(store.records.list("proposals", ANY)) == 4
    assert store.records.list("trials", ANY) == {}
    assert store.records.read("proposals", "study2", ANY) is None


@pytest.mark.parametrize("content", [b"", b'{"state": "fin', b"\x00" * 20, b"[1]"])
def test_garbage_is_set_aside_and_named(store, tmp_path, caplog, content):
    store.records.write("trials", "good", {"state": "finished"})
    store.records.write("trials", "bad", {"state": "finished"})
    path = tmp_path / "store" / "records" / "trials" / "bad.json"
    path.write_bytes(content)
    assert store.records.list("trials", ANY) == {"good": {"state": "finished"}}
    assert "records/trials/bad.json cannot be read" in caplog.text
    assert path.with_name("bad.json.corrupt").read_bytes() == content
    assert store.records.read("trials", "bad", ANY) is None
    store.records.write("trials", "bad", {"state": "failed"})
    assert store.records.read("trials", "bad", ANY) == {"state": "failed"}


def test_misuse_is_refused(store):
    with pytest.raises(ContractError, match="record key"):
        store.records.write("trials", "../escape", {})
    with pytest.raises(ContractError, match="trials/abc"):
        store.records.write("trials", "abc", {"x": math.nan})
    with pytest.raises(ContractError, match="trials/abc"):
        store.records.write("trials", "abc", {"x": {1, 2}})
    assert store.records.list("trials", ANY) == {}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (None, "fingerprint: Field required"),
        ({"state": "won"}, "state: Input should be 'finished', 'failed', 'stopped' or 'killed'"),
        ({"metrics": {"dev/bleu": "high"}}, "metrics.dev/bleu: Input should be a valid number"),
        ({"curves": [1]}, "curves: Input should be an object"),
    ],
)
def test_a_record_of_another_form_counts_as_missing(store, caplog, change, problem):
    record = TrialRecord(fingerprint="abc", config={}, seed=None, state="finished")
    whole = record.to_json()
    store.records.write("trials", "abc", {} if change is None else {**whole, **change})
    assert trial_record(store, "abc") is None
    assert f"records/trials/abc.json cannot be read ({problem}" in caplog.text
    store.records.write("trials", "abc", whole)
    assert trial_record(store, "abc") == record


def test_a_record_holds_no_credentials(store):
    reason = "http://me:s3cret@host/api?token=s3cret refused"
    stage = {"name": "training", "reason": reason, "traceback": f"Traceback\n  {reason}", "duration_s": 1.0}
    record = TrialRecord(
        fingerprint="abc", config={}, seed=None, state="failed", reason=reason, stages=[stage]
    )
    store.records.write("trials", "abc", record.to_json())
    for version in (record, trial_record(store, "abc")):
        assert version is not None
        assert "s3cret" not in str(version)
        assert version.reason == "http://me:***@host/api?token=*** refused"
        assert version.stages[0]["traceback"] == "Traceback\n  http://me:***@host/api?token=*** refused"
