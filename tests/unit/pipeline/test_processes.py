"""Several real processes on one local store."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pipeline_stages import alone

from nlgraft.pipeline.store import ArtifactStore, Decision
from nlgraft.pipeline.trial import finished_record
from tests.processes import patient, wait_until
from tests.store_places import files_of

CODE = """
import sys
from pipeline_stages import alone
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial

store = ArtifactStore.open(sys.argv[1], expiry_s=float(sys.argv[4]))
graph = alone(sys.argv[5], log=sys.argv[2], pause_s=float(sys.argv[3]))
record = run_trial(graph, store, reporter=NullReporter(), config={}, is_waiting=True)
print(record.state, record.stages[0]["decision"])
"""


def start(
    store,
    log,
    *,
    pause_s,
    expiry_s=60.0,
    function="slow",
    within=(),
):
    arguments = [store.uri, str(log), str(pause_s), str(expiry_s), function]
    command = [*within, sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def slow(log, pause_s):
    return alone("slow", log=str(log), pause_s=pause_s)


def wait_for_line(log, num_lines=1):
    wait_until(lambda: log.exists() and len(log.read_text().split()) >= num_lines)


def state_of(process):
    """How its trial ended."""
    return process.communicate(timeout=60)[0].split()[0]


def test_computed_once(store, tmp_path):
    log = tmp_path / "log"
    processes = [start(store, log, pause_s=1.0) for _ in range(4)]
    outputs = sorted(process.communicate(timeout=60)[0].split() for process in processes)
    assert len(log.read_text().split()) == 1
    assert [state for state, _ in outputs] == ["finished"] * 4
    # A late starter may find the trial finished, whose record then says "run" for the process that ran it.
    assert {decision for _, decision in outputs} <= {"run", "wait", "hit"}
    assert finished_record(slow(log, 1.0), store) is not None
    assert store.leases.busy() == set()


def test_killed_owner_is_taken_over(store, tmp_path):
    log = tmp_path / "log"
    first = start(store, log, pause_s=120.0)
    wait_for_line(log)
    second = start(store, log, pause_s=120.0)
    time.sleep(0.5)
    assert len(log.read_text().split()) == 1
    first.kill()
    first.wait()
    try:
        wait_for_line(log, 2)
        assert log.read_text().split() == [str(first.pid), str(second.pid)]
    finally:
        second.kill()
        second.communicate()


def test_frozen_owner_is_taken_over_and_harmless(store, tmp_path):
    """It wakes after another has published; what it then publishes is dropped, and it succeeds too."""
    log = tmp_path / "log"
    result = alone("gated", log=str(log), pause_s=0.0).result
    first = start(store, log, pause_s=0.0, expiry_s=1.0, function="gated")
    wait_for_line(log)
    os.kill(first.pid, signal.SIGSTOP)
    (tmp_path / "gate").touch()
    second = start(store, log, pause_s=0.0, expiry_s=1.0, function="gated")
    assert state_of(second) == "finished"
    path = store.fetch(result)
    stamp = (path.parent / "manifest.json").stat().st_mtime_ns
    os.kill(first.pid, signal.SIGCONT)
    assert state_of(first) == "finished"
    assert len(log.read_text().split()) == 2
    assert (path.parent / "manifest.json").stat().st_mtime_ns == stamp
    assert len(list(path.parent.iterdir())) == 2
    assert store.verify(result).decision is Decision.HIT


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_killed_at_any_moment(store, tmp_path, delay_s):
    """Whatever it leaves, the next run finishes and nothing half-made is ever taken for whole."""
    log = tmp_path / "log"
    graph = slow(log, 0.05)
    process = start(store, log, pause_s=0.05)
    wait_until(Path(store.uri).exists, pause_s=0.001)
    time.sleep(delay_s)
    process.kill()
    process.communicate()
    assert store.verify(graph.result).decision in (Decision.HIT, Decision.MISS)
    again = start(store, log, pause_s=0.05)
    assert state_of(again) == "finished"
    store.remove_abandoned()
    assert not list(Path(store.uri).glob("tmp/[!.]*"))


def test_a_job_in_a_process_namespace_keeps_its_scratch_until_it_ends(store, tmp_path):
    """Jobs of a node as deploy/slurm.sh starts them: the number of one names another process elsewhere."""
    isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*isolated, "true"], check=False).returncode:
        pytest.skip("needs user namespaces")
    jobs = []
    for name in ("kept", "killed"):
        (tmp_path / name).mkdir()
        log = tmp_path / name / "log"
        jobs.append(start(store, log, pause_s=0.0, function="gated", within=isolated))
        wait_for_line(log)
    kept, killed = jobs
    ArtifactStore.open(store.uri).remove_abandoned()  # as each job does when it starts
    killed.kill()
    killed.communicate()
    (tmp_path / "kept" / "gate").touch()
    assert state_of(kept) == "finished"

    def is_empty():
        store.remove_abandoned()
        return not list(Path(store.uri).glob("tmp/[!.]*"))

    wait_until(is_empty)  # the kernel ends the killed job in its own time


STOPPING = """
import os, signal, sys
from pathlib import Path
from nlgraft.pipeline.store import ArtifactStore

read_bytes, num_left = Path.read_bytes, int(sys.argv[2])

def read_and_stop(path):
    global num_left
    data = read_bytes(path)
    num_left -= path.name == "x"
    if num_left == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return data

Path.read_bytes = read_and_stop
files = ArtifactStore.open(sys.argv[1])._files
print(files.replace("leases/x", b"old", b"stopped"))
"""


@pytest.mark.parametrize("num_reads", [1, 2])
def test_a_process_that_is_stopped_in_a_conditional_write_blocks_nobody_and_overwrites_nothing(
    store, num_reads, caplog
):
    """It is stopped between what it reads and what it writes."""
    files = files_of(store)
    files.write("leases/x", b"old")
    files.write("leases/y", b"old")
    command = [sys.executable, "-c", STOPPING, store.uri, str(num_reads)]
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    began_s = time.monotonic()
    assert files.replace("leases/y", b"old", b"other")
    assert time.monotonic() - began_s < patient(2)
    assert files.replace("leases/x", b"old", b"new")
    files.delete("leases/y", b"other")
    assert time.monotonic() - began_s < patient(8)
    assert num_reads == 1 or f"process {stopped.pid} of host" in caplog.text
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.communicate(timeout=60)[0] == "False\n"
    assert files.read("leases/x") == b"new"
    assert files.read("leases/y") is None
    assert not [path for path in (Path(store.uri) / "leases").iterdir() if path.name != "x"]


def test_overlapping_starts_of_a_search_have_one_winner(store):
    """Of studies that share a search, one runs at any time, and one always can."""
    code = (
        "import sys, time; from nlgraft.basics.errors import StudyLockedError; "
        "from nlgraft.pipeline.store import ArtifactStore; store = ArtifactStore.open(sys.argv[1])\n"
        "for line in sys.stdin:\n"
        "    round, at = line.split(); time.sleep(max(0, float(at) - time.time()))\n"
        "    try: lock = store.leases.lock_study(sys.argv[2], covers=['search' + round])\n"
        "    except StudyLockedError: print('refused', flush=True)\n"
        "    else: print('held', flush=True); sys.stdin.readline(); lock.release(); print(flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    drivers = [subprocess.Popen([sys.executable, "-c", code, store.uri, name], **pipes) for name in "abc"]
    time.sleep(1)
    for number in range(10):
        for driver in drivers:
            print(number, time.time() + 0.3, file=driver.stdin, flush=True)
        outcomes = [driver.stdout.readline().strip() for driver in drivers]
        assert sorted(outcomes) == ["held", "refused", "refused"]
        winner = drivers[outcomes.index("held")]
        print(file=winner.stdin, flush=True)
        winner.stdout.readline()
    for driver in drivers:
        driver.communicate(timeout=60)
