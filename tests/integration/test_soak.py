"""A study on two hosts with S3 and PostgreSQL, all of which are killed and stopped in random order."""

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from tests.hosts import joined_hosts
from tests.integration.test_databases import running_database
from tests.integration.test_two_hosts import Cluster, finish, toy
from tests.processes import descendants, patient, suspend
from tests.random_faults import Driver, MlflowServer, disturb, search_of
from tests.servers import free_port

MINUTES = float(os.environ.get("NLGRAFT_SOAK_MINUTES", "2"))
SEED = int(os.environ.get("NLGRAFT_SOAK_SEED", "7"))
STOP_S = 3.0

Fault = Callable[[], bool | None]


def end_one(find):
    pids = find()
    if pids:
        os.kill(pids[0], signal.SIGKILL)
    return bool(pids)


def stop_one(find):
    pids = find()
    suspend(pids[:1], STOP_S)
    return bool(pids)


def faults_of(cluster, driver, server, database):
    """All but the head's own Ray, with which a cluster ends (F07), and the S3 server."""

    def workers():  # the processes of trials, by Tune's name for them
        return [pid for host in (cluster.worker, cluster.head) for pid in host.find("ray::ImplicitFunc")]

    def raylets():
        return cluster.worker.find(r"[^\0]*/raylet\0")

    def kill_database():
        database.kill()
        database.start()

    return {
        "driver killed": driver.kill,
        "driver stopped": driver.stop,
        "worker killed": partial(end_one, workers),
        "worker stopped": partial(stop_one, workers),
        "raylet killed": partial(end_one, raylets),
        "raylet stopped": partial(stop_one, raylets),
        "node lost": partial(cluster.replace_worker, is_awaited=False),
        "node stopped": lambda: suspend(cluster.worker.find(""), STOP_S),
        "server killed": server.kill,
        "server stopped": lambda: suspend(descendants(server.process.pid), STOP_S),
        "database killed": kill_database,
        "database stopped": lambda: suspend(descendants(database.process.pid), STOP_S),
    }


@pytest.mark.slow
@pytest.mark.timeout(1800 + 240 * MINUTES)
def test_random_faults_on_two_hosts_change_no_result(tmp_path, monkeypatch, request):
    """With NLGRAFT_SOAK_MINUTES=10 the long one; NLGRAFT_SOAK_SEED gives another order of faults."""
    with joined_hosts() as (head, worker), running_database(head.on_network()) as database:
        cluster = Cluster(head, worker)
        request.addfinalizer(lambda: cluster.worker.end())  # another one than that which joined first
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, cluster.environment[name])
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://{head.address}:9000")
        place = (head.address, free_port())
        server = MlflowServer(tmp_path, place, database.uri, "s3://bucket/mlflow", head.on_network())
        request.addfinalizer(server.end)
        head.await_port(place[1], server.process, patient(180))  # killed before, it would leave half a schema
        study = toy("soak")
        cluster.write(search_of(study, MINUTES * 60 / 120), "soak")
        command = [*cluster.words("run", "soak", server.uri), "--address", f"{head.address}:6379"]
        driver = Driver(tmp_path, head.command(*command), cluster.environment)
        request.addfinalizer(driver.end)
        faults = faults_of(cluster, driver, server, database)
        disturb(driver, faults, seconds=60 * MINUTES, seed=SEED)
        head.await_port(place[1], server.process, patient(180))
        cluster.verify("soak", server.uri)
        quiet, _ = finish(cluster.run(search_of(study, 0.0), "quiet"), patient(600))
    assert driver.result()["cells"] == quiet["cells"]
    assert quiet["trials"] == {"run": 82, "reused": 0, "failed": 0}
