"""``nlgraft doctor`` on this machine, and on a cluster of it."""

import json

from nlgraft.basics.shipped import system_names
from nlgraft.runs import device_trials
from nlgraft.runs.doctor import examine
from tests.commands import nlgraft
from tests.servers import free_port


def test_a_sound_machine_has_nothing_wrong_and_a_server_that_is_down_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_trials, "_SPEED_STEPS", 8)
    tracking = f"http://127.0.0.1:{free_port()}"
    done = nlgraft("doctor", "--json", "--tracking-uri", tracking, code=1)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [name for name, check in checks.items() if check["state"] == "wrong"] == ["tracking"]
    assert {path.rpartition(".")[2] for path in system_names()} - {"command"} < set(checks)
    assert min(checks["speed"]["figures"].values()) > 0
    assert str(tmp_path) not in done.stdout


def test_every_node_of_a_cluster_is_examined_and_a_group_trains_as_one_worker(ray_cluster, tmp_path):
    checks = {check.name: check for check in examine(str(tmp_path / "store"), "sqlite:///x.db", "auto")}
    assert [check for check in checks.values() if check.state == "wrong"] == []
    assert {name.rpartition(" ")[2] for name in checks} >= {"versions", "store", "clock", "disk", "tracking"}
    group = checks["worker group"]
    assert (group.figures["unequal"], "2 workers" in group.what) == ({}, True)
    assert list((tmp_path / "store").glob("doctor-*")) == []
