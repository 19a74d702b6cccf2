"""Several real processes on one local store."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pipeline_stages import alone

from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore, Decision
from nlgraft.pipeline.trial import finished_record

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
    store: ArtifactStore,
    log: Path,
    *,
    pause_s: float,
    expiry_s: float = 60.0,
    function: str = "slow",
    within: Sequence[str] = (),
) -> subprocess.Popen:
    arguments = [store.uri, str(log), str(pause_s), str(expiry_s), function]
    command = [*within, sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def slow(log: Path, pause_s: float) -> StageGraph:
    return alone("slow", log=str(log), pause_s=pause_s)


def wait_for_line(log: Path, num_lines: int = 1) -> None:
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().split()) < num_lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_computed_once(store: ArtifactStore, tmp_path: Path):
    log = tmp_path / "log"
    processes = [start(store, log, pause_s=1.0) for _ in range(4)]
    outputs = sorted(process.communicate(timeout=60)[0].split() for process in processes)
    assert len(log.read_text().split()) == 1
    assert [state for state, _ in outputs] == ["finished"] * 4
    # A late starter may find the trial finished, whose record then says "run" for the process that ran it.
    assert {decision for _, decision in outputs} <= {"run", "wait", "hit"}
    assert finished_record(slow(log, 1.0), store) is not None
    assert store.leases.busy() == set()


def test_killed_owner_is_taken_over(store: ArtifactStore, tmp_path: Path):
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


def test_frozen_owner_is_taken_over_and_harmless(store: ArtifactStore, tmp_path: Path):
    """It wakes after another has published; what it then publishes is dropped, and it succeeds too."""
    log = tmp_path / "log"
    result = alone("gated", log=str(log), pause_s=0.0).result
    first = start(store, log, pause_s=0.0, expiry_s=1.0, function="gated")
    wait_for_line(log)
    os.kill(first.pid, signal.SIGSTOP)
    (tmp_path / "gate").touch()
    second = start(store, log, pause_s=0.0, expiry_s=1.0, function="gated")
    assert second.communicate(timeout=60)[0].split()[0] == "finished"
    path = store.fetch(result)
    stamp = (path.parent / "manifest.json").stat().st_mtime_ns
    os.kill(first.pid, signal.SIGCONT)
    assert first.communicate(timeout=60)[0].split()[0] == "finished"
    assert len(log.read_text().split()) == 2
    assert (path.parent / "manifest.json").stat().st_mtime_ns == stamp
    assert len(list(path.parent.iterdir())) == 2
    assert store.verify(result).decision is Decision.HIT


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_killed_at_any_moment(store: ArtifactStore, tmp_path: Path, delay_s: float):
    """Whatever it leaves, the next run finishes and nothing half-made is ever taken for whole."""
    log = tmp_path / "log"
    graph = slow(log, 0.05)
    process = start(store, log, pause_s=0.05)
    deadline = time.monotonic() + 60
    while not Path(store.uri).exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay_s)
    process.kill()
    process.communicate()
    assert store.verify(graph.result).decision in (Decision.HIT, Decision.MISS)
    again = start(store, log, pause_s=0.05)
    assert again.communicate(timeout=60)[0].split()[0] == "finished"
    store.remove_abandoned()
    assert not list(Path(store.uri).glob("tmp/[!.]*"))


def test_a_job_in_a_process_namespace_keeps_its_scratch_until_it_ends(store: ArtifactStore, tmp_path: Path):
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
    assert kept.communicate(timeout=60)[0].split()[0] == "finished"
    deadline = time.monotonic() + 30
    while list(Path(store.uri).glob("tmp/[!.]*")):  # the kernel ends the killed job in its own time
        assert time.monotonic() < deadline
        store.remove_abandoned()
