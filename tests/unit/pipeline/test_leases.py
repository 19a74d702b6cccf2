"""Leases and the study lock on a local store."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from nlgraft.basics.errors import StageBusy, StudyLockedError
from nlgraft.pipeline.leases import Leases, PlaceClock
from nlgraft.pipeline.local_files import LocalFiles
from tests.processes import wait_until

FINGERPRINT = "f" * 64


def lease_path(root):
    return root / "leases" / f"stage-{FINGERPRINT}.json"


def open_leases(root, expiry_s=60.0):
    files = LocalFiles(root)
    return Leases(files, PlaceClock(files), expiry_s=expiry_s)


@pytest.fixture
def leases(tmp_path):
    return open_leases(tmp_path)


def write_foreign(root, *, silent_s):
    """A lease of a process on another host, last renewed some time ago."""
    lease_path(root).unlink(missing_ok=True)
    with open_leases(root).acquire(FINGERPRINT, "trial 7") as lease:
        document = asdict(replace(lease.holder, host="elsewhere", token="foreign"))
    lease_path(root).write_text(json.dumps(document))
    stamp = time.time() - silent_s
    os.utime(lease_path(root), (stamp, stamp))


def start_holder(root):
    """Another process that holds the lease until it is killed."""
    code = (
        "import time; from nlgraft.pipeline.store import ArtifactStore; "
        f"leases = ArtifactStore.open({str(root)!r}).leases; "
        f"held = leases.acquire({FINGERPRINT!r}, 'trial 7'), leases.lock_study('abc', 'nlgraft run'); "
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_unreaped_owner_is_dead_too(leases, tmp_path):
    """A killed child stays in the process table until its parent asks for it."""
    process = start_holder(tmp_path)
    process.kill()
    state = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
    leases.acquire(FINGERPRINT).release()
    process.wait()


def test_foreign_owner_is_waited_for_until_silent(leases, tmp_path):
    write_foreign(tmp_path, silent_s=50)
    with pytest.raises(StageBusy, match=r"last sign of life (49|5[0-9]) s ago"):
        leases.acquire(FINGERPRINT)
    write_foreign(tmp_path, silent_s=61)
    leases.acquire(FINGERPRINT).release()


def test_renewing_keeps_a_lease(leases, tmp_path):
    with leases.acquire(FINGERPRINT) as lease:
        stamp = time.time() - 1000
        os.utime(lease_path(tmp_path), (stamp, stamp))
        assert leases.busy() == set()
        lease._renew()
        assert leases.busy() == {FINGERPRINT}
        assert not lease.is_lost


def test_an_owner_that_slept_learns_that_its_lease_was_taken_over(tmp_path):
    """SIGSTOP: the thread that renews slept as well, so the owner must ask before it goes on."""
    asleep = open_leases(tmp_path).lock_study("abc")
    assert asleep.is_held()
    asleep._renewed_s -= 75  # it wakes up and looks at its own clock
    assert asleep.is_held(), "nobody came: it is renewed"
    path = tmp_path / "leases" / "study-abc.json"
    document = json.loads(path.read_text()) | {"token": "another driver"}
    path.write_text(json.dumps(document))
    assert asleep.is_held(), "one that renews in time need not ask"
    asleep._renewed_s -= 75
    assert not asleep.is_held()
    asleep.release()
    assert path.exists()


def test_studies_that_share_a_search_exclude_each_other(leases):
    with leases.lock_study("one", "nlgraft run", covers=["a", "b"]):
        with pytest.raises(StudyLockedError, match=r"shares a search .* nlgraft run \(host"):
            leases.lock_study("two", covers=["b", "c"])
        leases.lock_study("three", covers=["c"]).release()
        leases.lock_study("four").release()
    leases.lock_study("two", covers=["b", "c"]).release()


def test_a_renewal_whose_answer_was_lost_is_no_takeover(leases, tmp_path):
    """An object store may have written what it could not acknowledge."""
    with leases.acquire(FINGERPRINT) as lease:
        lease_path(tmp_path).write_bytes(replace(lease.holder, renewed_at=1.0).encode())
        lease._renew()
        assert (lease.is_lost, lease.holder.renewed_at) == (False, 1.0)
        lease._renew()
        assert lease.holder.renewed_at > 1.0


def test_loser_notices_and_leaves_the_lease_alone(tmp_path):
    leases = open_leases(tmp_path, expiry_s=0.4)
    lease = leases.acquire(FINGERPRINT)
    write = json.loads(lease_path(tmp_path).read_text())
    lease_path(tmp_path).write_text(json.dumps({**write, "token": "other"}))
    wait_until(lambda: lease.is_lost)
    lease.release()
    assert json.loads(lease_path(tmp_path).read_text())["token"] == "other"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"owner": 1}'])
def test_garbage_counts_as_held_until_it_is_old(leases, tmp_path, content):
    lease_path(tmp_path).parent.mkdir()
    lease_path(tmp_path).write_text(content)
    with pytest.raises(StageBusy, match="lease cannot be read"):
        leases.acquire(FINGERPRINT)
    os.utime(lease_path(tmp_path), (time.time() - 100,) * 2)
    leases.acquire(FINGERPRINT).release()


def test_remove_stale(leases, tmp_path):
    write_foreign(tmp_path, silent_s=1000)
    with leases.acquire("0" * 64):
        leases.remove_stale()
        assert leases.busy() == {"0" * 64}


def test_a_later_process_of_the_same_number_is_another(leases):
    with leases.acquire(FINGERPRINT) as lease:
        here = lease.holder
    assert not here.is_dead()
    assert replace(here, process_started="1").is_dead()
    assert not replace(here, host="elsewhere", process_started="1").is_dead()
    assert not replace(here, namespace="another boot", pid=2**22 + 1).is_dead()
