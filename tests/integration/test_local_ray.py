"""A local Ray beside others on one host: its ports, its start on a busy machine, its end."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray

from nlgraft.basics.errors import ClusterError
from nlgraft.execution import cluster
from nlgraft.execution.cluster import LocalRay
from tests.processes import descendants, listening, wait_until

DEFAULT_PORTS = {6379, 8265, 10001, 52365}
"""Of the GCS, the dashboard, the client server and the agent that a head needs to accept jobs."""


@pytest.fixture
def short_tmp(monkeypatch):
    directory = Path(tempfile.mkdtemp(prefix="nlg-t-"))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_a_local_ray_takes_no_port_that_a_head_needs(ray_cluster):
    assert ray.get(ray.remote(lambda: os.getpid()).remote()) != os.getpid()
    ports = {port for _, port in listening(os.getpid())}
    logs = "".join(path.read_text() for path in ray_cluster.rglob("dashboard_agent.log"))
    assert ports
    assert not DEFAULT_PORTS & ports
    assert "failed to bind" not in logs, "it wanted a port that somebody else has"


def test_a_local_ray_has_the_environment_of_a_driver_that_uv_runs_and_ends_with_it(short_tmp):
    """Ray looks for `uv run` among the ancestors of the driver, and would have uv start each worker."""
    project = short_tmp / "project"  # apart from Ray's files, since Ray would send it to the workers
    project.mkdir()
    (project / "driver.py").write_text(
        "import os, time\n"
        "from nlgraft.execution.cluster import connected\n"
        "from nlgraft.study.data.study import Resources\n"
        "with connected(None, Resources()):\n"
        "    import ray\n"
        "    command = ray.get_runtime_context().runtime_env.get('py_executable')\n"
        "    print(os.getpid(), 'command of workers:', command, flush=True)\n"
        "    time.sleep(600)\n"
    )
    # Python under the name of uv, whose argument `run` is a script.
    (project / "run").write_text("import subprocess, sys; subprocess.run(sys.argv[1:])")
    with subprocess.Popen(
        ["uv", "run", sys.executable, "driver.py"],
        executable=sys.executable,
        cwd=project,
        env={**os.environ, "UV": "/usr/bin/uv", "TMPDIR": str(short_tmp)},
        stdout=subprocess.PIPE,
        text=True,
    ) as uv:
        pid, _, printed = uv.stdout.readline().strip().partition(" ")
        assert printed == "command of workers: None"
        started = [*descendants(int(pid))]
        os.kill(int(pid), signal.SIGKILL)
    assert len(started) > 2
    wait_until(
        lambda: (
            not any(Path(f"/proc/{process}").exists() for process in started)
            and not any(short_tmp.glob("nlg-*"))
        )
    )


@pytest.mark.parametrize(("load", "num_starts"), [(0.0, 3), (8.0, 7), (1000.0, 12)])
def test_a_busier_machine_gets_more_attempts_and_each_is_told(
    tmp_path, monkeypatch, caplog, load, num_starts
):
    attempts = []

    def fail(*_):
        attempts.append(1)
        raise RuntimeError("timed out during startup")

    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(cluster, "_QUICK_S", 0.0)
    monkeypatch.setattr(LocalRay, "_start_once", fail)
    local = LocalRay(tmp_path, {"CPU": 2.0, "GPU": 0.0})
    with caplog.at_level(logging.WARNING), pytest.raises(ClusterError, match=f"in {num_starts} attempts"):
        # Not the real one: between attempts it ends the connection that other tests of this process use.
        local.start(Mock(), {})
    assert len(attempts) == num_starts
    assert [record.getMessage()[:38] for record in caplog.records] == [
        f"Ray did not start, attempt {attempt} of {num_starts} ({load / 2:.1f} processes"[:38]
        for attempt in range(1, num_starts)
    ]
