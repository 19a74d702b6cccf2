"""Artifacts, checkpoints and records over every kind of store, see `conftest.py`."""

import errno
import json
import os
import shutil
import socket
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from pipeline_stages import alone, number, total
from pydantic import TypeAdapter

from nlgraft.basics.errors import HostFault, StoreError
from nlgraft.pipeline import artifacts, object_files
from nlgraft.pipeline.integrity import ArtifactDamaged, FileEntry
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.manifest import MANIFEST
from nlgraft.pipeline.stage import KillReason, NullReporter
from nlgraft.pipeline.store import ArtifactStore, Decision
from nlgraft.pipeline.trial import execute_stage, finished_record, run_trial
from tests.processes import at_once
from tests.store_places import files_of, publish

ANY = TypeAdapter(dict[str, Any])
ONE = number(1)
ARTIFACT = f"artifacts/number/{ONE.fingerprint}"


def artifact_file(store, name):
    """Key of a file of the artifact."""
    return f"{ARTIFACT}/{store.manifest(ONE).location}/{name}"


def decision(store):
    return store.verify(ONE).decision


def text_of(store):
    """The text of the artifact, fetched anew."""
    return (store.fetch(ONE) / "deep" / "number.txt").read_text()


def save(store, step, stage=ONE, text="1"):
    store.checkpoints(stage).save(step, lambda path: (path / "state.json").write_text(text))


def damage(store, name, data):
    """Overwrite a file where it is stored."""
    files, key = files_of(store), artifact_file(store, name)
    if isinstance(files, LocalFiles):
        (files.root / key).chmod(0o644)
        (files.root / key).write_bytes(data)
    else:
        files.write(key, data)


def ran(graph, store, **options):
    """The record of a trial that runs now."""
    defaults = {"reporter": NullReporter(), "config": {}, "is_waiting": False}
    return run_trial(graph, store, **defaults | options)


def test_publish_and_fetch(open_store):
    store = open_store()
    assert not store.has(ONE)
    assert store.manifest(ONE) is None
    assert decision(store) is Decision.MISS
    with pytest.raises(StoreError, match="has no artifact"):
        store.fetch(ONE)

    published = publish(store)
    assert (published / "deep" / "number.txt").read_text() == "1"
    for opened in (store, open_store()):
        assert opened.has(ONE)
        assert decision(opened) is Decision.HIT
        path = opened.fetch(ONE)
        assert (path / "deep" / "number.txt").read_text() == "1"
        assert (path / "model.safetensors").stat().st_size == 10240
        assert opened.fetch(ONE) == path
        assert opened.read_file(ONE, "deep/number.txt") == b"1"
        assert opened.read_file(ONE, "absent.json") is None
        assert not opened.has(number(2))


def test_manifest(open_store):
    publish(open_store())
    manifest = open_store().manifest(ONE.fingerprint)
    assert (manifest.name, manifest.fingerprint, manifest.version) == ("number", ONE.fingerprint, 1)
    assert (manifest.config, manifest.inputs, manifest.seed) == ({"value": 1}, {}, None)
    assert manifest.files["deep/number.txt"] == FileEntry(
        bytes=1, sha256="6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    )
    assert manifest.bytes == 10241
    assert (manifest.started_at, manifest.duration_s, manifest.reason) == (5.0, 2.5, "missing")


def test_why_it_is_missing(open_store):
    publish(open_store())
    verdict = open_store().verify(number(2))
    assert verdict.decision is Decision.MISS
    assert verdict.reason == f"changed field value (1 -> 2) since {ONE.fingerprint[:12]}"


def test_second_writer_is_harmless(open_store):
    """Its bytes are dropped even if they differ."""
    first, second = open_store(), open_store()
    scratch = second.new_scratch(ONE)
    (scratch / "other.txt").write_text("other")
    publish(first)
    path = second.publish(ONE, scratch)
    assert sorted(child.name for child in path.iterdir() if child.name != MANIFEST) == [
        "deep",
        "model.safetensors",
    ]
    assert decision(open_store()) is Decision.HIT
    assert sum("other.txt" in key for key in files_of(first).sizes("artifacts")) == 0


def test_many_writers_at_once(open_store):
    """Different bytes, one name: whoever wins, the artifact is one writer's alone."""
    barrier = threading.Barrier(4)

    def write(text):
        store = open_store()
        barrier.wait()
        publish(store, text=text)

    at_once(write, "0123")
    store = open_store()
    assert decision(store) is Decision.HIT
    assert text_of(store) in "0123"


@pytest.mark.parametrize("data", [b"2", b"", b"22"])
def test_damage_is_found_and_repaired(open_store, data):
    """Other bytes of the same length, none, too many."""
    publish(open_store())
    damage(open_store(), "deep/number.txt", data)
    store = open_store()
    with pytest.raises(ArtifactDamaged, match=r"number\.txt has"):
        store.fetch(ONE)
    with pytest.raises(ArtifactDamaged):
        store.read_file(ONE, "deep/number.txt")
    if len(data) != 1:
        assert decision(store) is Decision.CORRUPT
    store.discard(ONE)
    assert not store.has(ONE)
    assert decision(store) is Decision.MISS
    publish(store)
    assert text_of(open_store()) == "1"


def test_damage_that_keeps_the_size_is_found_by_reading_again(open_store):
    """An object store compares sizes alone otherwise, and a local one each file once per process."""
    store = open_store()
    publish(store)
    assert store.verify(ONE, is_afresh=True).decision is Decision.HIT
    key = artifact_file(store, "model.safetensors")
    data = bytearray(files_of(store).read(key) or b"")
    data[0] ^= 1
    files_of(store).write(key, bytes(data))
    verdict = open_store().verify(ONE, is_afresh=True)
    assert verdict.decision is Decision.CORRUPT
    assert "model.safetensors has" in verdict.reason


def test_missing_file_and_garbage_manifest(open_store):
    store = open_store()
    publish(store)
    files_of(store).delete(artifact_file(store, "model.safetensors"))
    assert store.verify(ONE).reason == "model.safetensors is missing"
    store.discard(ONE)
    publish(store)
    files_of(store).write(f"{ARTIFACT}/{MANIFEST}", b'{"name": "num')
    assert decision(store) is Decision.CORRUPT
    store.discard(ONE)
    assert decision(store) is Decision.MISS


def test_half_published_is_invisible(open_store):
    """Files without a manifest: a writer that was killed."""
    store = open_store()
    files_of(store).write(f"{ARTIFACT}/half/deep/number.txt", b"1")
    assert not store.has(ONE)
    assert store.finished([ONE.fingerprint]) == set()
    assert decision(store) is Decision.MISS
    publish(store)
    assert text_of(open_store()) == "1"


def test_forgotten_uploads_are_removed(open_store, monkeypatch):
    """Remains of a killed writer go when they are old; files that another is writing now stay."""
    store = open_store()
    key = f"{ARTIFACT}/killed/number.txt"
    files_of(store).write(key, b"1")
    publish(store)
    assert files_of(store).existing([key])
    store.discard(ONE)
    files_of(store).write(key, b"1")
    monkeypatch.setattr(artifacts, "_ABANDONED_AFTER_S", -10.0)
    publish(store)
    assert not files_of(store).existing([key])
    assert decision(store) is Decision.HIT


def test_finished_and_accounts(open_store):
    store = open_store()
    for value in (1, 2):
        publish(store, value)
    ran(alone("ranked"), store)
    fingerprints = [number(value).fingerprint for value in (1, 2, 3)] + [alone("ranked").fingerprint]
    assert store.finished(fingerprints) == {fingerprints[0], fingerprints[1], fingerprints[3]}
    assert store.finished([]) == set()
    costs = open_store().durations()
    assert (costs["number"].mean_duration_s, costs["number"].mean_bytes) == (2.5, 10241)
    assert [len(costs[name].runs) for name in ("number", "ranked")] == [2, 1]


def test_trial_on_two_hosts(open_store):
    """The second host reads what the first computed, also as an input of something new."""
    first = open_store()
    record = ran(total(1, 2), first)
    second = open_store()
    assert finished_record(total(1, 2), second) == record
    assert ran(total(1, 2), second) == record
    other = ran(total(1, 5), second)
    assert other.metrics == {"test/total": 6.0}
    assert [stage["decision"] for stage in other.stages].count("hit") == 1


def test_trial_repairs_a_damaged_input(open_store):
    """Same length, other bytes: on a remote store only fetching it finds out."""
    ran(total(1, 2), open_store())
    damage(open_store(), "number.txt", b"9")
    record = ran(total(1, 3), open_store())
    assert record.metrics == {"test/total": 4.0}
    assert (open_store().fetch(ONE) / "number.txt").read_text() == "1"


def test_checkpoints(open_store):
    stage = alone("stepping").result
    checkpoints = open_store().checkpoints(stage)
    assert checkpoints.latest() is None
    for step in (3, 10, 20):
        save(open_store(), step, stage, str(step))
    save(open_store(), 20, stage, "again")
    for _ in range(2):
        other = open_store().checkpoints(stage, is_writable=False)
        assert other.newest_step() == 20
        latest = other.latest()
        assert (latest[0], (latest[1] / "state.json").read_text()) == (20, "again")
        assert other.latest() == latest
        other.clear()
    keys = files_of(open_store()).sizes("checkpoints")
    assert {key.split("/")[2] for key in keys} == {"10", "20"}

    key = next(key for key in keys if "/20/" in key and key.endswith("state.json"))
    files_of(open_store()).write(key, b"AGAIN")
    latest = open_store().checkpoints(stage).latest()
    assert (latest[0], (latest[1] / "state.json").read_text()) == (10, "10")
    checkpoints.clear()
    assert open_store().checkpoints(stage).latest() is None
    assert open_store().checkpoints(stage).newest_step() is None


def test_checkpoint_cut_off_while_uploading(open_store):
    """Its manifest comes last: without it the previous one is used."""
    stage = alone("stepping").result
    store = open_store()
    save(store, 1, stage)
    files_of(store).write(f"checkpoints/{stage.fingerprint}/2/state.json", b"2")
    latest = open_store().checkpoints(stage).latest()
    assert latest[0] == 1


def test_a_trial_that_finishes_while_another_end_of_it_is_written_stays_finished(open_store, monkeypatch):
    """Killed while it waits for another process, which is quicker than the write of that."""
    graph, store, other = total(1, 2), open_store(), open_store()
    leases = [other.leases.acquire(graph.fingerprint)]
    files = files_of(store)

    class Kills(NullReporter):
        def should_stop(self):
            return KillReason("told to end")

    def after_the_other(write):
        def write_late(key, *arguments):
            if key.startswith("records/trials/") and leases:
                leases.pop().release()
                ran(graph, other)
            return write(key, *arguments)

        return write_late

    for name in ("write", "create", "replace"):
        monkeypatch.setattr(files, name, after_the_other(getattr(files, name)))
    assert ran(graph, store, reporter=Kills(), is_waiting=True).state == "killed"
    assert finished_record(graph, open_store()) is not None


def test_a_full_disk_of_one_host_is_named_and_ends_no_trial(open_store, tmp_path, monkeypatch):
    """Where artifacts are fetched to, and where they are written; another host goes on."""
    graph, store = total(1, 2), open_store()
    if isinstance(files_of(store), LocalFiles):
        pytest.skip("its disk is that of the store")
    for stage in graph.stages[:2]:
        execute_stage(stage, store, reporter=NullReporter())
    open_file, make = Path.open, Path.mkdir

    def refuse(path, *arguments, **options):
        if store.scratch_root in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *arguments, **options)

    def open_full(path, mode="r", *arguments, **options):
        is_full = "w" in mode and store.scratch_root in path.parents
        return open_file(Path("/dev/full") if is_full else path, mode, *arguments, **options)

    for name, fault in (("mkdir", refuse), ("open", open_full)):
        store = open_store()
        with monkeypatch.context() as patching:
            patching.setattr(Path, name, fault)
            with pytest.raises(HostFault) as raised:
                ran(graph, store)
        assert f"host {socket.gethostname()}" in str(raised.value)
        assert str(tmp_path) in str(raised.value)
        assert "s3://" not in str(raised.value)
        assert "No space left" in str(raised.value)
        assert open_store().records.read("trials", graph.fingerprint, ANY) is None
    assert ran(graph, open_store()).state == "finished"


def test_records(open_store, caplog):
    store = open_store()
    store.records.write("proposals", "study/00001", {"params": {"lr": 0.1}})
    store.records.write("proposals", "study/00002", {"params": {}})
    store.records.write("proposals", "study/00002", {"params": {"lr": 0.2}})
    other = open_store()
    assert other.records.read("proposals", "study/00002", ANY) == {"params": {"lr": 0.2}}
    assert other.records.read("proposals", "study/00003", ANY) is None
    assert list(other.records.list("proposals", ANY, "study/")) == ["study/00001", "study/00002"]
    files_of(store).write("records/proposals/study/00001.json", b'{"par')
    assert list(other.records.list("proposals", ANY)) == ["study/00002"]
    assert "study/00001.json cannot be read" in caplog.text
    assert files_of(store).read("records/proposals/study/00001.json.corrupt") == b'{"par'


def test_clean_up_after_killed_processes(open_store):
    store = open_store()
    publish(store)
    save(store, 1)
    save(store, 1, number(2))
    store.remove_abandoned()
    assert store.checkpoints(ONE).newest_step() is None
    assert store.checkpoints(number(2)).newest_step() == 1


ESCAPING = ("../../../../escaped", "/escaped", "deep/../../escaped", "deep//x", ".")


@pytest.mark.parametrize("key", ["files", "location"])
def test_names_in_a_manifest_stay_inside(open_store, tmp_path, key):
    """Whoever can write to the store must not read or write outside it."""
    publish(open_store())
    save(open_store(), 1)
    files = files_of(open_store())
    entry = {"bytes": 1, "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"}
    paths = (f"{ARTIFACT}/{MANIFEST}",
             f"checkpoints/{ONE.fingerprint}/1/checkpoint.json")  # fmt: skip
    outside = {path for path in tmp_path.rglob("*") if "store" not in path.parts}
    for name in ESCAPING:
        for path in paths:
            document = json.loads(files.read(path) or b"")
            value = {name: entry} if key == "files" else name
            files.write(path, json.dumps({**document, key: value}).encode())
        store = open_store()
        assert decision(store) is Decision.CORRUPT, name
        assert "leads outside" in store.verify(ONE).reason, name
        for use in (store.fetch, lambda stage, store=store, name=name: store.read_file(stage, name)):
            with pytest.raises(ArtifactDamaged, match="leads outside"):
                use(ONE)
        assert store.checkpoints(ONE).latest() is None, name
    assert {path for path in tmp_path.rglob("*") if "store" not in path.parts} - outside == set()


def test_child_uri_keeps_the_options(tmp_path):
    uri = "s3://key:secret@bucket/some/prefix/?endpoint_override=127.0.0.1:9000&scheme=http"
    child = ArtifactStore.open(uri, cache=tmp_path).child_uri("ray")
    assert child == "s3://key:secret@bucket/some/prefix/ray?endpoint_override=127.0.0.1:9000&scheme=http"
    assert ArtifactStore.open("s3://bucket", cache=tmp_path).child_uri("ray") == "s3://bucket/ray"
    assert ArtifactStore.open(tmp_path).child_uri("ray") == str(tmp_path / "ray")


def test_unreachable_server_is_named(tmp_path):
    """Port 1 of this host answers nobody; the message holds no secrets."""
    uri = "s3://key:secret@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    store = ArtifactStore.open(uri, cache=tmp_path)
    with pytest.raises(StoreError, match=r"^s3://bucket/x: cannot look at artifacts/number") as error:
        store.has(ONE)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://key:se cret@bucket/x?regoin=here", r"option 'regoin' is unknown. Did you mean 'region'"),
        ("gs://bucket/x?region=here", "belong to s3:// only"),
        (
            "ftp://key:secret@host/x",
            r"storage 'ftp://key:\*\*\*@host/x' cannot be opened: .*Allowed: .*s3://",
        ),
    ],
)
def test_uris_that_are_not_understood(uri, message):
    with pytest.raises(StoreError, match=message) as error:
        ArtifactStore.open(uri)
    assert "cret" not in str(error.value)
    assert error.value.__suppress_context__


def test_an_aws_profile_is_used(s3_server, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    session = boto3.session.Session(profile_name="work", region_name="us-east-1")
    session.client("s3", endpoint_url=f"http://{s3_server}").create_bucket(Bucket="bucket-profile")
    uri = f"s3://bucket-profile/x?endpoint_override={s3_server}&scheme=http&region=us-east-1"
    store = ArtifactStore.open(uri, cache=tmp_path / "cache")
    publish(store)
    assert store.has(ONE)


def test_a_cache_stays_within_its_bound_and_keeps_what_is_used(s3_uri, tmp_path, monkeypatch):
    """Artifacts of 10 kB on a disk of 50 kB: the least recently used go, never one that a process reads."""

    def usage(root):
        used = sum(path.stat().st_size for path in root.rglob("*.safetensors"))
        return SimpleNamespace(total=50_000, free=50_000 - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(object_files, "_NUM_HELD", 1)
    writer = ArtifactStore.open(s3_uri, cache=tmp_path / "writer")
    for value in range(8):
        publish(writer, value)
        assert usage(tmp_path / "writer").free >= 0
    store = ArtifactStore.open(s3_uri, cache=tmp_path / "cache")
    reader = deque()
    monkeypatch.setattr(object_files, "_held", reader)
    read = store.fetch(number(0))
    monkeypatch.setattr(object_files, "_held", deque())  # another process of the host
    for value in (1, 2, 1, 3, 4):
        os.utime(read, (1, 1))
        store.fetch(number(value))
    kept = {path.parent.name for path in (tmp_path / "cache" / "artifacts").glob("*/*/*")}
    assert number(2).fingerprint not in kept
    assert kept >= {number(value).fingerprint for value in (0, 1, 4)}
    for value in (5, 6, 7):
        assert (store.fetch(number(value)) / "deep" / "number.txt").read_text() == str(value)
        assert (read / "deep" / "number.txt").read_text() == "0"
    os.close(reader.pop())  # as the kernel does when the reader ends
    os.utime(read, (1, 1))
    store.fetch(ONE)
    assert not read.exists()
    assert (store.fetch(number(0)) / "deep" / "number.txt").read_text() == "0"


def test_default_cache_is_one_per_store(tmp_path, monkeypatch):
    monkeypatch.setenv("NLGRAFT_CACHE", str(tmp_path))
    stores = [ArtifactStore.open(f"s3://bucket/{name}?region=us-east-1") for name in ("a", "b")]
    assert len({files_of(store).scratch.new("f" * 64).parent for store in stores}) == 2
    assert len(list(tmp_path.iterdir())) == 2
