"""One suite over every kind of store: a directory, an S3-compatible server, one whose answers get lost."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))

from pipeline_stages import alone, number, total

from nlgraft.errors import StageBusy, StoreError, StudyLockedError
from nlgraft.pipeline import artifacts, journal
from nlgraft.pipeline.fence import Fence, Superseded
from nlgraft.pipeline.integrity import ArtifactDamaged, FileEntry
from nlgraft.pipeline.leases import Lease
from nlgraft.pipeline.local_files import Files, LocalFiles
from nlgraft.pipeline.manifest import MANIFEST
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore, Decision
from nlgraft.pipeline.trial import finished_record, run_trial
from tests.proxies import LosingProxy, listening

OpenStore = Callable[..., ArtifactStore]
ANY = TypeAdapter(dict[str, Any])


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3-compatible server on loopback."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def losing_s3_server(s3_server: str) -> Iterator[str]:
    """The same server through a network that loses the answer to the first change of each key."""
    with listening(s3_server, LosingProxy) as proxy:
        yield proxy.address.removeprefix("http://")


@pytest.fixture(params=["local", "s3", "losing_s3"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """Opens one place, each time as from another host: with a cache of its own."""
    num_opened = 0

    def new_cache() -> Path:
        nonlocal num_opened
        num_opened += 1
        return tmp_path / f"cache{num_opened}"

    def open_local(**options) -> ArtifactStore:
        return ArtifactStore.open(tmp_path / "store", **options)

    def open_s3(**options) -> ArtifactStore:
        return ArtifactStore.open(uri, cache=new_cache(), **options)

    if request.param == "local":
        return open_local
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server = request.getfixturevalue(f"{request.param}_server")
    bucket = f"bucket-{tmp_path.name.replace('_', '-').lower()[:50]}"
    direct = f"http://{request.getfixturevalue('s3_server')}"
    boto3.client("s3", endpoint_url=direct, region_name="us-east-1").create_bucket(Bucket=bucket)
    uri = f"s3://{bucket}/some/prefix?endpoint_override={server}&scheme=http&region=us-east-1"
    return open_s3


def files_of(store: ArtifactStore) -> Files:
    return store._files


def publish(store: ArtifactStore, value: int = 1, text: str | None = None) -> Path:
    scratch = store.new_scratch(number(value))
    (scratch / "deep").mkdir()
    (scratch / "deep" / "number.txt").write_text(str(value) if text is None else text)
    (scratch / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return store.publish(number(value), scratch, started_at=5.0, duration_s=2.5, reason="missing")


def artifact_file(store: ArtifactStore, name: str) -> str:
    """Key of a file of number(1)'s artifact."""
    manifest = store.manifest(number(1))
    assert manifest is not None
    return f"artifacts/number/{manifest.fingerprint}/{manifest.location}/{name}"


def damage(store: ArtifactStore, name: str, data: bytes) -> None:
    """Overwrite a file where it is stored."""
    files, key = files_of(store), artifact_file(store, name)
    if isinstance(files, LocalFiles):
        (files.root / key).chmod(0o644)
        (files.root / key).write_bytes(data)
    else:
        files.write(key, data)


def test_publish_and_fetch(open_store: OpenStore):
    store = open_store()
    assert not store.has(number(1))
    assert store.manifest(number(1)) is None
    assert store.verify(number(1)).decision is Decision.MISS
    with pytest.raises(StoreError, match="has no artifact"):
        store.fetch(number(1))

    published = publish(store)
    assert (published / "deep" / "number.txt").read_text() == "1"
    for opened in (store, open_store()):
        assert opened.has(number(1))
        assert opened.has(number(1).fingerprint)
        assert opened.verify(number(1)).decision is Decision.HIT
        path = opened.fetch(number(1))
        assert (path / "deep" / "number.txt").read_text() == "1"
        assert (path / "model.safetensors").stat().st_size == 10240
        assert opened.fetch(number(1)) == path
        assert opened.read_file(number(1), "deep/number.txt") == b"1"
        assert opened.read_file(number(1), "absent.json") is None
        assert not opened.has(number(2))
        assert not opened.has("0" * 64)


def test_manifest(open_store: OpenStore):
    publish(open_store())
    manifest = open_store().manifest(number(1).fingerprint)
    assert manifest is not None
    assert (manifest.name, manifest.fingerprint, manifest.version) == ("number", number(1).fingerprint, 1)
    assert (manifest.config, manifest.inputs, manifest.seed) == ({"value": 1}, {}, None)
    assert manifest.files["deep/number.txt"] == FileEntry(
        bytes=1, sha256="6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    )
    assert manifest.bytes == 10241
    assert (manifest.started_at, manifest.duration_s, manifest.reason) == (5.0, 2.5, "missing")


def test_why_it_is_missing(open_store: OpenStore):
    publish(open_store())
    verdict = open_store().verify(number(2))
    assert verdict.decision is Decision.MISS
    assert verdict.reason == f"changed field value (1 -> 2) since {number(1).fingerprint[:12]}"


def test_second_writer_is_harmless(open_store: OpenStore):
    """Its bytes are dropped even if they differ."""
    first, second = open_store(), open_store()
    scratch = second.new_scratch(number(1))
    (scratch / "other.txt").write_text("other")
    publish(first)
    path = second.publish(number(1), scratch)
    assert sorted(child.name for child in path.iterdir() if child.name != MANIFEST) == [
        "deep",
        "model.safetensors",
    ]
    assert open_store().verify(number(1)).decision is Decision.HIT
    assert sum("other.txt" in key for key in files_of(first).sizes("artifacts")) == 0


def test_many_writers_at_once(open_store: OpenStore):
    """Different bytes, one name: whoever wins, the artifact is one writer's alone."""
    barrier = threading.Barrier(4)
    failures: list[Exception] = []

    def write(text: str) -> None:
        try:
            store = open_store()
            barrier.wait()
            publish(store, text=text)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(str(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = open_store()
    assert store.verify(number(1)).decision is Decision.HIT
    assert (store.fetch(number(1)) / "deep" / "number.txt").read_text() in "0123"


@pytest.mark.parametrize("data", [b"2", b"", b"22"])
def test_damage_is_found_and_repaired(open_store: OpenStore, data: bytes):
    """Other bytes of the same length, none, too many."""
    publish(open_store())
    damage(open_store(), "deep/number.txt", data)
    store = open_store()
    with pytest.raises(ArtifactDamaged, match=r"number\.txt has"):
        store.fetch(number(1))
    with pytest.raises(ArtifactDamaged):
        store.read_file(number(1), "deep/number.txt")
    if len(data) != 1:
        assert store.verify(number(1)).decision is Decision.CORRUPT
    store.discard(number(1))
    assert not store.has(number(1))
    assert store.verify(number(1)).decision is Decision.MISS
    publish(store)
    assert (open_store().fetch(number(1)) / "deep" / "number.txt").read_text() == "1"


def test_damage_that_keeps_the_size_is_found_by_reading_again(open_store: OpenStore):
    """An object store compares sizes alone otherwise, and a local one each file once per process."""
    store = open_store()
    publish(store)
    assert store.verify(number(1), is_afresh=True).decision is Decision.HIT
    key = artifact_file(store, "model.safetensors")
    data = bytearray(files_of(store).read(key) or b"")
    data[0] ^= 1
    files_of(store).write(key, bytes(data))
    found = open_store().verify(number(1), is_afresh=True)
    assert found.decision is Decision.CORRUPT
    assert "model.safetensors has" in found.reason


def test_missing_file_and_garbage_manifest(open_store: OpenStore):
    store = open_store()
    publish(store)
    files_of(store).delete(artifact_file(store, "model.safetensors"))
    assert store.verify(number(1)).reason == "model.safetensors is missing"
    store.discard(number(1))
    publish(store)
    files_of(store).write(f"artifacts/number/{number(1).fingerprint}/{MANIFEST}", b'{"name": "num')
    assert store.verify(number(1)).decision is Decision.CORRUPT
    store.discard(number(1))
    assert store.verify(number(1)).decision is Decision.MISS


def test_half_published_is_invisible(open_store: OpenStore):
    """Files without a manifest: a writer that was killed."""
    store = open_store()
    key = f"artifacts/number/{number(1).fingerprint}"
    files_of(store).write(f"{key}/half/deep/number.txt", b"1")
    assert not store.has(number(1))
    assert store.finished([number(1).fingerprint]) == set()
    assert store.verify(number(1)).decision is Decision.MISS
    publish(store)
    assert (open_store().fetch(number(1)) / "deep" / "number.txt").read_text() == "1"


def test_forgotten_uploads_are_removed(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch):
    """Remains of a killed writer go when they are old; files that another is writing now stay."""
    store = open_store()
    key = f"artifacts/number/{number(1).fingerprint}"
    files_of(store).write(f"{key}/killed/number.txt", b"1")
    publish(store)
    assert files_of(store).existing([f"{key}/killed/number.txt"])
    store.discard(number(1))
    files_of(store).write(f"{key}/killed/number.txt", b"1")
    monkeypatch.setattr(artifacts, "_FORGOTTEN_AFTER_S", -10.0)
    publish(store)
    assert not files_of(store).existing([f"{key}/killed/number.txt"])
    assert store.verify(number(1)).decision is Decision.HIT


def test_finished_and_accounts(open_store: OpenStore):
    store = open_store()
    for value in (1, 2):
        publish(store, value)
    run_trial(alone("ranked"), store, reporter=NullReporter(), config={}, is_waiting=False)
    wanted = [number(value).fingerprint for value in (1, 2, 3)] + [alone("ranked").fingerprint]
    assert store.finished(wanted) == {wanted[0], wanted[1], wanted[3]}
    assert store.finished([]) == set()
    costs = open_store().durations()
    assert (costs["number"].mean_duration_s, costs["number"].mean_bytes, costs["number"].count) == (
        2.5,
        10241,
        2,
    )
    assert costs["ranked"].count == 1


def test_trial_on_two_hosts(open_store: OpenStore):
    """The second host reads what the first computed, also as an input of something new."""
    first = open_store()
    record = run_trial(
        total_of_written(first, 1, 2), first, reporter=NullReporter(), config={}, is_waiting=False
    )
    second = open_store()
    assert finished_record(total(1, 2), second) == record
    assert run_trial(total(1, 2), second, reporter=NullReporter(), config={}, is_waiting=False) == record
    other = run_trial(total(1, 5), second, reporter=NullReporter(), config={}, is_waiting=False)
    assert other.metrics == {"test/total": 6.0}
    assert [stage["decision"] for stage in other.stages].count("hit") == 1


def total_of_written(store: ArtifactStore, *values: int):
    graph = total(*values)
    run_trial(graph, store, reporter=NullReporter(), config={}, is_waiting=False)
    return graph


def test_trial_repairs_a_damaged_input(open_store: OpenStore):
    """Same length, other bytes: on a remote store only fetching it finds out."""
    total_of_written(open_store(), 1, 2)
    damage(open_store(), "number.txt", b"9")
    record = run_trial(total(1, 3), open_store(), reporter=NullReporter(), config={}, is_waiting=False)
    assert record.metrics == {"test/total": 4.0}
    assert (open_store().fetch(number(1)) / "number.txt").read_text() == "1"


def test_checkpoints(open_store: OpenStore):
    stage = alone("stepping").result
    checkpoints = open_store().checkpoints(stage)
    assert checkpoints.latest() is None
    for step in (3, 10, 20):
        checkpoints.save(step, lambda path, step=step: (path / "state.json").write_text(str(step)))
    checkpoints.save(20, lambda path: (path / "state.json").write_text("again"))
    for _ in range(2):
        other = open_store().checkpoints(stage, is_writable=False)
        assert other.newest_step() == 20
        latest = other.latest()
        assert latest is not None
        assert (latest[0], (latest[1] / "state.json").read_text()) == (20, "again")
        assert other.latest() == latest
        other.clear()
    keys = files_of(open_store()).sizes("checkpoints")
    assert {key.split("/")[2] for key in keys} == {"10", "20"}

    key = next(key for key in keys if "/20/" in key and key.endswith("state.json"))
    files_of(open_store()).write(key, b"AGAIN")
    latest = open_store().checkpoints(stage).latest()
    assert latest is not None
    assert (latest[0], (latest[1] / "state.json").read_text()) == (10, "10")
    checkpoints.clear()
    assert open_store().checkpoints(stage).latest() is None
    assert open_store().checkpoints(stage).newest_step() is None


def test_checkpoint_cut_off_while_uploading(open_store: OpenStore):
    """Its manifest comes last: without it the previous one is used."""
    stage = alone("stepping").result
    store = open_store()
    store.checkpoints(stage).save(1, lambda path: (path / "state.json").write_text("1"))
    files_of(store).write(f"checkpoints/{stage.fingerprint}/2/state.json", b"2")
    latest = open_store().checkpoints(stage).latest()
    assert latest is not None
    assert latest[0] == 1


def test_leases(open_store: OpenStore):
    first, second = open_store(), open_store()
    with first.leases.acquire("a" * 64, "trial 7"):
        with pytest.raises(StageBusy, match="trial 7"):
            second.leases.acquire("a" * 64)
        assert second.leases.busy() == {"a" * 64}
        second.leases.acquire("b" * 64).release()
    assert second.leases.busy() == set()
    second.leases.acquire("a" * 64).release()


def test_study_lock(open_store: OpenStore):
    first, second = open_store(), open_store()
    assert not second.leases.is_study_locked("abc")
    with first.lock_study("abc", "nlgraft run"):
        with pytest.raises(StudyLockedError, match=f"nlgraft run .*pid {os.getpid()}"):
            second.lock_study("abc")
        assert second.leases.is_study_locked("abc")
    second.lock_study("abc").release()


def silent_lease(store: ArtifactStore) -> str:
    """A lease of an owner on another host that no longer renews it."""
    with store.leases.acquire("a" * 64) as lease:
        data = json.loads(files_of(store).read(lease.key) or b"")
    files_of(store).write(lease.key, json.dumps({**data, "host": "elsewhere"}).encode())
    return lease.key


def shift_clock(store: ArtifactStore, key: str, monkeypatch: pytest.MonkeyPatch, *, by_s: float) -> None:
    """Let the store's clock say that a key was written some time ago."""
    written_at = files_of(store).modified_at(key)
    assert written_at is not None
    monkeypatch.setattr(store.leases._clock, "now", lambda: written_at + by_s)


def stored(store: ArtifactStore) -> dict[str, bytes | None]:
    """Everything that a store holds for others than the process that wrote it."""
    files = files_of(store)
    return {key: files.read(key) for key in files.sizes("") if not key.startswith("tmp/")}


def test_who_has_lost_the_lock_of_a_study_writes_nothing(open_store: OpenStore):
    lock = open_store().lock_study("study")
    older = open_store(fence=lock.fence)
    publish(older, 1)
    older.write_record("trials", "a", {"by": "older"})
    older.checkpoints(number(2)).save(1, lambda path: (path / "state").write_text("older"))
    stage = older.leases.acquire("c")
    assert older.is_writable()
    files_of(open_store()).delete(lock.key)
    newer = open_store().lock_study("study")
    before = stored(open_store())
    writes: list[Callable[[], object]] = [
        lambda: publish(older, 3),
        lambda: older.discard(number(1)),
        lambda: older.write_record("trials", "a", {"by": "older, later"}),
        lambda: older.write_record("proposals", "b", {"by": "older"}),
        lambda: older.checkpoints(number(2)).save(2, lambda path: (path / "state").write_text("older")),
        lambda: older.checkpoints(number(2)).clear(),
        lambda: older.leases.acquire("b"),
        lambda: older.journal("ledger", dict).append(1, {"by": "older"}),
        older.check_writable,
    ]
    for write in writes:
        with pytest.raises(Superseded, match="another driver has taken the study over"):
            write()
    assert stored(open_store()) == before
    assert older.read_record("trials", "a", ANY) == {"by": "older"}
    stage.release()  # its own lease it may give back, for the newer one to compute the stage
    open_store(fence=newer.fence).leases.acquire("c").release()
    newer.release()
    assert not older.is_writable()


@pytest.mark.parametrize("before", [None, {"by": "older"}])
def test_a_write_that_slept_after_its_look_at_the_lock_replaces_nothing_newer(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, before: dict[str, str] | None
):
    """SIGSTOP between the look and the write: a look alone would let it through."""
    lock = open_store().lock_study("study")
    older = open_store(fence=lock.fence)
    if before is not None:
        older.write_record("trials", "a", before)
    look = Fence.is_held
    taken: list[Lease] = []

    def sleep_after(fence: Fence, files: Files) -> bool:
        is_held = look(fence, files)
        monkeypatch.setattr(Fence, "is_held", look)
        files_of(open_store()).delete(lock.key)
        newer = open_store().lock_study("study")
        taken.append(newer)
        open_store(fence=newer.fence).write_record("trials", "a", {"by": "newer"})
        return is_held

    monkeypatch.setattr(Fence, "is_held", sleep_after)
    with pytest.raises(Superseded):
        older.write_record("trials", "a", {"by": "older, later"})
    assert open_store().read_record("trials", "a", ANY) == {"by": "newer"}
    taken[0].release()


def test_silent_lease_expires(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch):
    store = open_store(expiry_s=60.0)
    key = silent_lease(store)
    shift_clock(store, key, monkeypatch, by_s=59.0)
    with pytest.raises(StageBusy, match="last sign of life 59 s ago"):
        store.leases.acquire("a" * 64)
    shift_clock(store, key, monkeypatch, by_s=61.0)
    store.leases.acquire("a" * 64).release()


def test_the_clock_is_that_of_the_place(open_store: OpenStore):
    """S3 keeps times to the second."""
    store = open_store()
    before = store.leases._clock.now()
    files_of(store).write("leases/x", b"")
    stamp = files_of(store).modified_at("leases/x")
    assert stamp is not None
    assert before - 2 < stamp < store.leases._clock.now() + 2


def test_only_one_of_many_takes_over(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch):
    """All see that the owner is silent before the first of them writes."""
    key = silent_lease(open_store())
    barrier = threading.Barrier(6, timeout=60)
    outcomes: list[object] = []

    def grab() -> None:
        store = open_store()
        shift_clock(store, key, monkeypatch, by_s=1000.0)
        find = store.leases._find

        def find_and_wait(key: str):
            monkeypatch.setattr(store.leases, "_find", find)
            found = find(key)
            barrier.wait()
            return found

        monkeypatch.setattr(store.leases, "_find", find_and_wait)
        try:
            outcomes.append(store.leases.acquire("a" * 64))
        except StageBusy as busy:
            outcomes.append(busy)

    threads = [threading.Thread(target=grab) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(outcome).__name__ for outcome in outcomes].count("Lease") == 1
    assert len(outcomes) == 6
    for outcome in outcomes:
        if isinstance(outcome, Lease):
            outcome.release()


@pytest.mark.parametrize("is_taken", [False, True])
def test_conditional_writes_have_one_winner(open_store: OpenStore, is_taken: bool):
    if is_taken:
        files_of(open_store()).write("leases/x", b"before")
    barrier = threading.Barrier(6, timeout=60)
    winners: list[bytes] = []

    def write(data: bytes) -> None:
        files = files_of(open_store())
        barrier.wait()
        if files.replace("leases/x", b"before", data) if is_taken else files.create("leases/x", data):
            winners.append(data)

    threads = [threading.Thread(target=write, args=(str(index).encode(),)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [files_of(open_store()).read("leases/x")]
    assert not files_of(open_store()).replace("leases/x", b"before", b"late")
    assert not files_of(open_store()).create("leases/x", b"late")
    assert not files_of(open_store()).replace("leases/missing", b"", b"late")


def test_lease_of_a_dead_process_of_this_host(open_store: OpenStore):
    store = open_store()
    with store.leases.acquire("a" * 64) as lease:
        data = json.loads(files_of(store).read(lease.key) or b"")
    files_of(store).write(lease.key, json.dumps({**data, "process_started": "1"}).encode())
    assert store.leases.busy() == set()
    store.leases.acquire("a" * 64).release()


def test_records(open_store: OpenStore, caplog: pytest.LogCaptureFixture):
    store = open_store()
    store.write_record("proposals", "study/00001", {"params": {"lr": 0.1}})
    store.write_record("proposals", "study/00002", {"params": {}})
    store.write_record("proposals", "study/00002", {"params": {"lr": 0.2}})
    other = open_store()
    assert other.read_record("proposals", "study/00002", ANY) == {"params": {"lr": 0.2}}
    assert other.read_record("proposals", "study/00003", ANY) is None
    assert list(other.list_records("proposals", ANY, "study/")) == ["study/00001", "study/00002"]
    files_of(store).write("records/proposals/study/00001.json", b'{"par')
    assert list(other.list_records("proposals", ANY)) == ["study/00002"]
    assert "study/00001.json cannot be read" in caplog.text
    assert files_of(store).read("records/proposals/study/00001.json.corrupt") == b'{"par'


def test_clean_up_after_killed_processes(open_store: OpenStore):
    store = open_store()
    publish(store)
    store.checkpoints(number(1)).save(1, lambda path: (path / "state.json").write_text("1"))
    store.checkpoints(number(2)).save(1, lambda path: (path / "state.json").write_text("1"))
    store.remove_abandoned()
    assert store.checkpoints(number(1)).newest_step() is None
    assert store.checkpoints(number(2)).newest_step() == 1


@pytest.mark.parametrize("name", ["../../../../escaped", "/escaped", "deep/../../escaped", "deep//x", "."])
@pytest.mark.parametrize("key", ["files", "location"])
def test_names_in_a_manifest_stay_inside(open_store: OpenStore, tmp_path: Path, name: str, key: str):
    """Whoever can write to the store must not read or write outside it."""
    publish(open_store())
    checkpoints = open_store().checkpoints(number(1))
    checkpoints.save(1, lambda path: (path / "state.json").write_text("1"))
    files = files_of(open_store())
    entry = {"bytes": 1, "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"}
    for path in (f"artifacts/number/{number(1).fingerprint}/manifest.json",
                 f"checkpoints/{number(1).fingerprint}/1/checkpoint.json"):  # fmt: skip
        document = json.loads(files.read(path) or b"")
        files.write(path, json.dumps({**document, key: {name: entry} if key == "files" else name}).encode())
    outside = {path for path in tmp_path.rglob("*") if "store" not in path.parts}
    store = open_store()
    assert store.verify(number(1)).decision is Decision.CORRUPT
    assert "leads outside" in store.verify(number(1)).reason
    for use in (lambda: store.fetch(number(1)), lambda: store.read_file(number(1), name)):
        with pytest.raises(ArtifactDamaged, match="leads outside"):
            use()
    assert store.checkpoints(number(1)).latest() is None
    assert {path for path in tmp_path.rglob("*") if "store" not in path.parts} - outside == set()


def test_child_uri_keeps_the_options(tmp_path: Path):
    uri = "s3://key:secret@bucket/some/prefix/?endpoint_override=127.0.0.1:9000&scheme=http"
    child = ArtifactStore.open(uri, cache=tmp_path).child_uri("ray")
    assert child == "s3://key:secret@bucket/some/prefix/ray?endpoint_override=127.0.0.1:9000&scheme=http"
    assert ArtifactStore.open("s3://bucket", cache=tmp_path).child_uri("ray") == "s3://bucket/ray"
    assert ArtifactStore.open(tmp_path).child_uri("ray") == str(tmp_path / "ray")


def test_unreachable_server_is_named(tmp_path: Path):
    """Port 1 of this host answers nobody; the message holds no secrets."""
    uri = "s3://key:secret@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    store = ArtifactStore.open(uri, cache=tmp_path)
    with pytest.raises(StoreError, match=r"^s3://bucket/x: cannot look at artifacts/number") as error:
        store.has(number(1))
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BLOCK", 4)


def fill(store: ArtifactStore, last: int) -> None:
    for place in range(1, last + 1):
        assert store.journal("log", dict[str, int]).append(place, {"value": 10 * place})


@pytest.mark.usefixtures("small_blocks")
def test_a_journal_keeps_what_was_written_in_order(open_store: OpenStore):
    assert open_store().journal("log", dict[str, int]).read() == journal.Pages({}, 0)
    fill(open_store(), 10)
    pages = open_store().journal("log", dict[str, int]).read()
    assert pages == journal.Pages({number: {"value": 10 * number} for number in range(1, 11)}, 10)
    assert list(pages.documents) == list(range(1, 11))
    assert not open_store().journal("log", dict[str, int]).append(10, {"value": 0})
    assert open_store().journal("log", dict[str, int]).read() == pages


@pytest.mark.usefixtures("small_blocks")
def test_packs_stand_for_their_entries(open_store: OpenStore):
    store = open_store()
    fill(store, 9)
    files = files_of(store)
    whole = store.journal("log", dict[str, int]).read()
    files.delete_tree("log/entries/000000")
    assert store.journal("log", dict[str, int]).read() == whole, "the first four are read from their pack"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("pack", [b"{}", b"half a docu", b'{"1": {"value": 10}}'])
def test_a_damaged_pack_is_named_and_its_entries_are_read(open_store: OpenStore, pack: bytes):
    store = open_store()
    fill(store, 9)
    files_of(store).write("log/packs/000001.json", pack)
    pages = store.journal("log", dict[str, int]).read()
    assert list(pages.documents) == list(range(1, 10))
    assert [text.partition(":")[0] for text in pages.problems] == ["log/packs/000001.json"]


@pytest.mark.usefixtures("small_blocks")
def test_damaged_missing_and_foreign_files_of_a_journal_are_named(open_store: OpenStore):
    store = open_store()
    fill(store, 3)
    files = files_of(store)
    files.write("log/entries/000000/00000001.json", b'{"value": "ten"}')
    files.delete("log/entries/000000/00000002.json")
    files.write("log/entries/000000/notes.txt", b"mine")
    pages = store.journal("log", dict[str, int]).read()
    assert pages.documents == {3: {"value": 30}}
    assert pages.last == 3
    for name in ("00000001.json: cannot be read", "00000002.json: is missing", "notes.txt: is no part"):
        assert sum(name in text for text in pages.problems) == 1
    fill_from = pages.last + 1
    assert store.journal("log", dict[str, int]).append(fill_from, {"value": 40})
    assert store.journal("log", dict[str, int]).append(fill_from + 1, {"value": 50})
    assert list(store.journal("log", dict[str, int]).read().documents) == [3, 4, 5], (
        "nothing packs a damaged block"
    )


@pytest.mark.usefixtures("small_blocks")
def test_several_drivers_write_one_journal(open_store: OpenStore):
    def write(driver: int) -> None:
        log = open_store().journal("log", dict[str, int])
        for value in range(5):
            while not log.append(log.read().last + 1, {"driver": driver, "value": value}):
                pass

    threads = [threading.Thread(target=write, args=(driver,)) for driver in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = open_store().journal("log", dict[str, int]).read()
    assert (pages.last, pages.problems) == (20, ())
    for driver in range(4):
        assert [one["value"] for one in pages.documents.values() if one["driver"] == driver] == list(range(5))


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
def test_uris_that_are_not_understood(uri: str, message: str):
    with pytest.raises(StoreError, match=message) as error:
        ArtifactStore.open(uri)
    assert "cret" not in str(error.value)
    assert error.value.__suppress_context__


def test_an_aws_profile_is_used(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    assert store.has(number(1))


def test_default_cache_is_one_per_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NLGRAFT_CACHE", str(tmp_path))
    stores = [ArtifactStore.open(f"s3://bucket/{name}?region=us-east-1") for name in ("a", "b")]
    assert len({store.new_scratch(number(1)).parent for store in stores}) == 2
    assert len(list(tmp_path.iterdir())) == 2
