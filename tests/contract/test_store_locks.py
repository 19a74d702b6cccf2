"""Leases and the lock of a study over every kind of store, see `conftest.py`."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline_stages import number
from pydantic import TypeAdapter

from nlgraft.basics.errors import StageBusy, StudyLockedError
from nlgraft.pipeline.fence import Fence, Superseded
from nlgraft.pipeline.leases import Leases
from nlgraft.pipeline.object_files import ObjectFiles
from tests.processes import at_once
from tests.store_places import files_of, publish

STAGE = "a" * 64
ANY = TypeAdapter(dict[str, Any])


def test_leases(open_store):
    first, second = open_store(), open_store()
    with first.leases.acquire(STAGE, "trial 7"):
        with pytest.raises(StageBusy, match="trial 7"):
            second.leases.acquire(STAGE)
        assert second.leases.busy() == {STAGE}
        second.leases.acquire("b" * 64).release()
    assert second.leases.busy() == set()
    second.leases.acquire(STAGE).release()


def test_study_lock(open_store):
    first, second = open_store(), open_store()
    assert not second.leases.is_study_locked("abc")
    with first.leases.lock_study("abc", "nlgraft run"):
        with pytest.raises(StudyLockedError, match=f"nlgraft run .*pid {os.getpid()}"):
            second.leases.lock_study("abc")
        assert second.leases.is_study_locked("abc")
    second.leases.lock_study("abc").release()


def forsaken(store, lease, **changes):
    """The key of a lease that its owner, which is another one now, neither renews nor gives back."""
    with lease:
        data = json.loads(files_of(store).read(lease.key))
    files_of(store).write(lease.key, json.dumps(data | changes).encode())
    return lease.key


def silent_lease(store):
    return forsaken(store, store.leases.acquire(STAGE), host="elsewhere")


def shift_clock(store, key, monkeypatch, *, by_s):
    """Let the store's clock say that a key was written some time ago."""
    written_at = files_of(store).modified_at(key)
    monkeypatch.setattr(store.leases._clock, "now", lambda: written_at + by_s)


def stored(store):
    """Everything that a store holds for others than the process that wrote it."""
    files = files_of(store)
    return {key: files.read(key) for key in files.sizes("") if not key.startswith("tmp/")}


def test_who_has_lost_the_lock_of_a_study_writes_nothing(open_store):
    lock = open_store().leases.lock_study("study")
    older = open_store(fence=lock.fence)
    publish(older, 1)
    older.records.write("trials", "a", {"by": "older"})
    older.checkpoints(number(2)).save(1, lambda path: (path / "state").write_text("older"))
    stage = older.leases.acquire("c")
    assert older.is_writable()
    files_of(open_store()).delete(lock.key)
    newer = open_store().leases.lock_study("study")
    before = stored(open_store())
    writes = [
        lambda: publish(older, 3),
        lambda: older.discard(number(1)),
        lambda: older.records.write("trials", "a", {"by": "older, later"}),
        lambda: older.records.write("proposals", "b", {"by": "older"}),
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
    assert older.records.read("trials", "a", ANY) == {"by": "older"}
    stage.release()  # its own lease it may give back, for the newer one to compute the stage
    open_store(fence=newer.fence).leases.acquire("c").release()
    newer.release()
    assert not older.is_writable()


@pytest.mark.parametrize("before", [None, {"by": "older"}])
def test_a_write_that_slept_after_its_look_at_the_lock_replaces_nothing_newer(
    open_store, monkeypatch, before
):
    """SIGSTOP between the look and the write: a look alone would let it through."""
    lock = open_store().leases.lock_study("study")
    older = open_store(fence=lock.fence)
    if before is not None:
        older.records.write("trials", "a", before)
    look = Fence.is_held
    taken = []

    def sleep_after(fence, files):
        is_held = look(fence, files)
        monkeypatch.setattr(Fence, "is_held", look)
        files_of(open_store()).delete(lock.key)
        newer = open_store().leases.lock_study("study")
        taken.append(newer)
        open_store(fence=newer.fence).records.write("trials", "a", {"by": "newer"})
        return is_held

    monkeypatch.setattr(Fence, "is_held", sleep_after)
    with pytest.raises(Superseded):
        older.records.write("trials", "a", {"by": "older, later"})
    assert open_store().records.read("trials", "a", ANY) == {"by": "newer"}
    taken[0].release()


def test_silent_lease_expires(open_store, monkeypatch):
    store = open_store(expiry_s=60.0)
    key = silent_lease(store)
    shift_clock(store, key, monkeypatch, by_s=59.0)
    with pytest.raises(StageBusy, match="last sign of life 59 s ago"):
        store.leases.acquire(STAGE)
    shift_clock(store, key, monkeypatch, by_s=61.0)
    store.leases.acquire(STAGE).release()


def test_the_clock_is_that_of_the_place(open_store):
    """S3 keeps times to the second."""
    store, began_s = open_store(), time.monotonic()
    before = store.leases._clock.now()
    probed_s = time.monotonic() - began_s  # at some moment of which its file was stamped
    files_of(store).write("leases/x", b"")
    stamp = files_of(store).modified_at("leases/x")
    assert before - 2 < stamp < store.leases._clock.now() + 2 + probed_s


def test_only_one_of_many_takes_over(open_store, monkeypatch):
    """All see that the owner is silent before the first of them writes."""
    key = silent_lease(open_store())
    barrier = threading.Barrier(6, timeout=60)

    def grab(_):
        store = open_store()
        shift_clock(store, key, monkeypatch, by_s=1000.0)
        find = store.leases._find

        def find_and_wait(key):
            monkeypatch.setattr(store.leases, "_find", find)
            lease = find(key)
            barrier.wait()
            return lease

        monkeypatch.setattr(store.leases, "_find", find_and_wait)
        with contextlib.suppress(StageBusy):
            return store.leases.acquire(STAGE)

    [lease] = filter(None, at_once(grab, range(6)))
    lease.release()


@pytest.mark.parametrize("is_taken", [False, True])
def test_conditional_writes_have_one_winner(open_store, is_taken):
    if is_taken:
        files_of(open_store()).write("leases/x", b"before")
    barrier = threading.Barrier(6, timeout=60)

    def has_written(data):
        files = files_of(open_store())
        barrier.wait()
        return files.replace("leases/x", b"before", data) if is_taken else files.create("leases/x", data)

    texts = [str(index).encode() for index in range(6)]
    winners = [text for text, has_won in zip(texts, at_once(has_written, texts), strict=True) if has_won]
    assert winners == [files_of(open_store()).read("leases/x")]
    assert not files_of(open_store()).replace("leases/x", b"before", b"late")
    assert not files_of(open_store()).create("leases/x", b"late")
    assert not files_of(open_store()).replace("leases/missing", b"", b"late")


@pytest.mark.parametrize("act", [Leases.remove_stale, lambda leases: leases.lock_study("abc")])
def test_a_lock_that_is_taken_over_meanwhile_stays(open_store, monkeypatch, act):
    """A driver has died; while one process cleans up or starts, another one takes its lock over."""
    store, other = open_store(), open_store()
    forsaken(store, store.leases.lock_study("abc"), process_started="1")
    pending, taken = [other], []

    def after_the_other(call):
        def call_late(*arguments, **options):
            if pending:
                taken.append(pending.pop().leases.lock_study("abc"))
            return call(*arguments, **options)

        return call_late

    # Before the very request, behind all looks of this process.
    files = files_of(store)
    if isinstance(files, ObjectFiles):
        looks = {name: getattr(files._objects, name) for name in ("get", "head", "list_with_delimiter")}
        changes = {name: after_the_other(getattr(files._objects, name)) for name in ("put", "delete")}
        monkeypatch.setattr(files, "_objects", SimpleNamespace(**looks, **changes))
    else:
        monkeypatch.setattr(Path, "rename", after_the_other(Path.rename))
    with contextlib.suppress(StudyLockedError):
        act(store.leases)
    [lock] = taken
    assert lock.is_held()
    assert open_store().leases.is_study_locked("abc")
    with pytest.raises(StudyLockedError):
        open_store().leases.lock_study("abc")
    lock.release()


def test_lease_of_a_dead_process_of_this_host(open_store):
    store = open_store()
    forsaken(store, store.leases.acquire(STAGE), process_started="1")
    assert store.leases.busy() == set()
    store.leases.acquire(STAGE).release()
