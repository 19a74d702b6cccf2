"""Drivers on a cluster that outlives them: losing the driver must fail no trial."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.commands import write_study
from tests.processes import descendants
from tests.random_faults import Driver, MlflowServer, disturb, search_of
from tests.servers import first_answer, free_port
from tests.small_studies import SHARE

HOLD_A_CLUSTER = """
import sys, ray
ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
    _node_ip_address="127.0.0.1", _temp_dir=sys.argv[1],
)
print("ADDRESS", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


class Cluster:
    """A Ray cluster of another process, which ends when its stdin closes."""

    code = HOLD_A_CLUSTER

    def __init__(self, directory):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.code, directory, str(Path(sys.executable).parent / "ray")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("ADDRESS"))

    def find(self, title):
        """Pids of the cluster's processes whose title begins so."""
        processes = descendants(self.process.pid).items()
        return [pid for pid, command in processes if command.startswith(title)]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture
def cluster(toy_on_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(prefix="nlg-") as directory:
        cluster = Cluster(directory)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def token_cluster(toy_on_path, tmp_path, monkeypatch):
    """A cluster with token authentication and its token; this process has neither token nor mode."""
    token = secrets.token_hex(32)
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray looks for a token there
    with tempfile.TemporaryDirectory(prefix="nlg-") as directory:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", token)
            cluster = Cluster(directory)
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        try:
            yield cluster, token
        finally:
            cluster.close()


@pytest.fixture
def study_file(toy_document, tmp_path):
    """A search of three trials, one at a time."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 3, "pause_s": 1.0}
    toy_document["seeds"] = [1]
    toy_document["search"] = {
        "sampler": {"name": "tpe", "seed": 1},
        "space": {"gain": SHARE},
        "trials": 3,
    }
    toy_document["resources"] = {"max_concurrent": 1, "max_failures": 0}
    return write_study(tmp_path / "toy.yaml", toy_document)


def run(study_file, *options, program=("-m", "nlgraft")):
    return subprocess.Popen(
        [sys.executable, *program, "run", str(study_file), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def result_of(process, timeout_s=200):
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def wait_until(is_true, process, timeout_s=120):
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.slow
def test_trials_that_lose_their_driver_are_killed_and_run_again(study_file, tmp_path, cluster):
    log, records = tmp_path / "log", tmp_path / "store/records/trials"

    def num_started():
        return log.read_text().count("training ") if log.exists() else 0

    def states():
        return sorted(json.loads(path.read_text())["state"] for path in records.glob("*.json"))

    driver = run(study_file, "--address", cluster.address)
    wait_until(num_started, driver)
    # The board of a driver dies with it; a trial may notice before it is ended itself.
    [board] = cluster.find("ray::SweepBoard")
    os.kill(board, signal.SIGKILL)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert "lost contact with the driver" in err
    assert "run the same command again to resume" in err
    assert states() == ["killed"]

    disturbed = result_of(run(study_file, "--address", cluster.address))
    undisturbed = result_of(run(study_file, "--address", cluster.address, "--storage", str(tmp_path / "2")))
    assert disturbed["cells"] == undisturbed["cells"]


SOAK_S = 600.0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_change_no_result(toy_document, tmp_path, cluster, request):
    """Driver, workers and MLflow server are killed and the driver is stopped, in random order."""

    def command(pause_s, tracking_uri, store):
        study = search_of(toy_document, pause_s) | {"storage": {"path": str(tmp_path / store)}}
        (tmp_path / f"{store}.yaml").write_text(json.dumps(study))
        options = ["--address", cluster.address, "--tracking-uri", tracking_uri, "--json"]
        return [sys.executable, "-m", "nlgraft", "run", str(tmp_path / f"{store}.yaml"), *options]

    def kill_worker():
        workers = cluster.find("ray::ImplicitFunc")  # the processes of trials, by Tune's name for them
        if workers:
            os.kill(workers[0], signal.SIGKILL)
        return bool(workers)

    server = MlflowServer(
        tmp_path, ("127.0.0.1", free_port()), f"sqlite:///{tmp_path}/server.db", str(tmp_path / "artifacts")
    )
    request.addfinalizer(server.end)
    # Killed before, it would leave half a schema.
    first_answer(f"{server.uri}/health", server.process, tmp_path / "server.log")
    driver = Driver(tmp_path, command(SOAK_S / 120, server.uri, "store"))
    request.addfinalizer(driver.end)
    kinds = {"driver": driver.kill, "worker": kill_worker, "server": server.kill, "stop": driver.stop}
    faults = disturb(driver, kinds, seconds=SOAK_S, seed=7)
    assert len(faults) == 4, faults
    server.end()
    records = [json.loads(path.read_text()) for path in tmp_path.glob("store/records/trials/*.json")]
    assert Counter(record["state"] for record in records) == {"finished": 82}, faults
    (tmp_path / "quiet").mkdir()
    quiet = Driver(tmp_path / "quiet", command(0.0, f"sqlite:///{tmp_path}/quiet.db", "quiet-store"))
    request.addfinalizer(quiet.end)
    quiet.process.wait(SOAK_S)
    assert driver.result()["cells"] == quiet.result()["cells"], faults


@pytest.mark.slow
def test_a_cluster_with_tokens_refuses_a_driver_without_one_and_takes_one_that_has_it(
    study_file, token_cluster, monkeypatch
):
    cluster, token = token_cluster
    refused = run(study_file, "--address", cluster.address)
    _, err = refused.communicate(timeout=120)
    assert refused.returncode == 1, err
    assert "Traceback" not in err
    assert f"cannot join the Ray cluster at {cluster.address}" in err
    assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH" in err
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)  # the mode follows from it
    result = result_of(run(study_file, "--address", cluster.address))
    assert result["trials"] == {"run": 4, "reused": 0, "failed": 0}
