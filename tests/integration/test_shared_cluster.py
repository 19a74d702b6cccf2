"""Drivers on a cluster that outlives them: losing the driver must fail no trial."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

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

    def __init__(self, directory: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.code, directory, str(Path(sys.executable).parent / "ray")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("ADDRESS"))

    def find(self, title: str) -> list[int]:
        """Pids of the cluster's processes whose title begins so."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat, command = (path / "stat").read_text(), (path / "cmdline").read_text()
            except OSError:
                continue
            parents[int(path.name)] = (int(stat.rpartition(")")[2].split()[1]), command)

        def is_ours(pid: int) -> bool:
            while pid in parents and pid != self.process.pid:
                pid = parents[pid][0]
            return pid == self.process.pid

        return [pid for pid, (_, command) in parents.items() if command.startswith(title) and is_ours(pid)]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture
def cluster(toy_on_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(prefix="nlg-") as directory:
        cluster = Cluster(directory)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def token_cluster(
    toy_on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, str]]:
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
def study_file(toy_document: dict[str, Any], tmp_path: Path) -> Path:
    """A search of three trials, one at a time."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 3, "pause_s": 1.0}
    toy_document["seeds"] = [1]
    toy_document["search"] = {
        "sampler": {"name": "tpe", "seed": 1},
        "space": {"gain": {"type": "float", "low": 0.0, "high": 1.0}},
        "trials": 3,
    }
    toy_document["resources"] = {"max_concurrent": 1, "max_failures": 0}
    path = tmp_path / "toy.yaml"
    with path.open("w") as file:
        YAML().dump(toy_document, file)
    return path


def run(study_file: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nlgraft", "run", str(study_file), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def result_of(process: subprocess.Popen[str], timeout_s: float = 200) -> dict[str, Any]:
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def wait_until(is_true: Callable[[], object], process: subprocess.Popen[str], timeout_s: float = 120) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_that_lose_their_driver_are_killed_and_run_again(
    study_file: Path, tmp_path: Path, cluster: Cluster
) -> None:
    log, records = tmp_path / "log", tmp_path / "store/records/trials"

    def num_started() -> int:
        return log.read_text().count("training ") if log.exists() else 0

    def states() -> list[str]:
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


class MlflowServer:
    """An MLflow server that can be killed and started again at one place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
        command += ["--port", str(self.port), "--backend-store-uri", f"sqlite:///{self.directory}/server.db"]
        command += ["--artifacts-destination", str(self.directory / "artifacts")]
        environ = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.directory / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


class Driver:
    """`nlgraft run`, started again whenever it has ended before the study."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.command = [sys.executable, "-m", "nlgraft", "run", *arguments, "--json"]
        self.num_starts = 0
        self.start()

    def start(self) -> None:
        self.num_starts += 1
        with (self.directory / "out").open("w") as out, (self.directory / "err").open("w") as err:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=err, start_new_session=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def kill(self) -> None:
        self.end()
        self.start()

    def suspend(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(self.process.pid, signal.SIGCONT)

    def is_finished(self) -> bool:
        """Start again if it has ended and says so; True if the study is finished."""
        if self.process.poll() is None:
            return False
        if self.process.returncode != 0:
            err = (self.directory / "err").read_text()
            assert "run the same command again to resume" in err.lower(), err
            self.start()
            return False
        return True

    def result(self) -> dict[str, Any]:
        return json.loads((self.directory / "out").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_change_no_result(
    toy_document: dict[str, Any], tmp_path: Path, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """Driver, workers and MLflow server are killed and the driver is suspended, in random order."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 3, "pause_s": SOAK_S / 120}
    toy_document["search"] = {
        # what it proposes depends on no order of results
        "sampler": {"name": "random", "seed": 1},
        "space": {"gain": {"type": "float", "low": 0.0, "high": 1.0}},
        "trials": 80,
    }
    toy_document["resources"] = {"max_concurrent": 2, "max_failures": 20}
    study_file = tmp_path / "toy.yaml"
    with study_file.open("w") as file:
        YAML().dump(toy_document, file)
    server = MlflowServer(tmp_path)
    request.addfinalizer(server.kill)
    common = (str(study_file), "--address", cluster.address, "--tracking-uri")
    driver = Driver(tmp_path, *common, server.uri)
    request.addfinalizer(driver.end)
    draw, faults, kinds = random.Random(7), Counter[str](), list[str]()
    end_s = time.monotonic() + SOAK_S
    while not driver.is_finished():
        time.sleep(draw.uniform(2, 25))  # a driver takes some ten seconds to start
        if time.monotonic() > end_s:
            continue
        workers = cluster.find("ray::ImplicitFunc")  # the processes of trials, by Tune's name for them
        kinds = kinds or draw.sample(["driver", "worker", "server", "suspend"], 4)
        fault = kinds[-1]
        if fault == "driver":
            driver.kill()
        elif fault == "worker" and workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
        elif fault == "server":
            server.kill()
            server.start()
        elif fault == "suspend" and driver.process.poll() is None:
            driver.suspend()
        else:
            continue
        faults[kinds.pop()] += 1
    server.kill()
    assert len(faults) == 4, faults
    records = [json.loads(path.read_text()) for path in tmp_path.glob("store/records/trials/*.json")]
    assert Counter(record["state"] for record in records) == {"finished": 82}, faults
    (tmp_path / "quiet").mkdir()
    tracked = f"sqlite:///{tmp_path / 'quiet' / 'mlflow.db'}"
    quiet = Driver(tmp_path / "quiet", *common, tracked, "--storage", str(tmp_path / "quiet" / "store"))
    request.addfinalizer(quiet.end)
    quiet.process.wait(3 * SOAK_S)
    assert driver.result()["cells"] == quiet.result()["cells"], faults


@pytest.mark.slow
def test_a_cluster_with_tokens_refuses_a_driver_without_one_and_takes_one_that_has_it(
    study_file: Path, token_cluster: tuple[Cluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_of_higher_priority_goes_first(
    toy_document: dict[str, Any], tmp_path: Path, cluster: Cluster
) -> None:
    """Two trials at a time fill the cluster for minutes; a third that comes later does not wait for all."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 2, "pause_s": 4.0}

    def start(name: str, priority: int, num_seeds: int) -> subprocess.Popen[str]:
        resources = {"priority": priority}
        storage = {"path": str(tmp_path / name)}
        seeds = list(range(1, num_seeds + 1))
        document = toy_document | {"name": name, "resources": resources, "storage": storage, "seeds": seeds}
        with (tmp_path / f"{name}.yaml").open("w") as file:
            YAML().dump(document, file)
        tracked = f"sqlite:///{tmp_path / name}.db"
        return run(tmp_path / f"{name}.yaml", "--address", cluster.address, "--tracking-uri", tracked)

    def times(name: str) -> list[tuple[float, float]]:
        records = [json.loads(path.read_text()) for path in tmp_path.glob(f"{name}/records/trials/*.json")]
        return [(record["started_at"], record["ended_at"]) for record in records]

    patient_one = start("patient", 0, 40)
    while not times("patient"):
        assert patient_one.poll() is None, patient_one.communicate()
        time.sleep(1)
    urgent = result_of(start("urgent", 1, 1))
    assert urgent["trials"] == {"run": 1, "reused": 0, "failed": 0}
    out, err = patient_one.communicate(timeout=600)
    assert patient_one.returncode == 0, out + err
    [(_, ended_at)] = times("urgent")
    assert max(started_at for started_at, _ in times("patient")) > ended_at
