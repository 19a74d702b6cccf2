"""Trials whose workers follow the cluster: nodes are lost under them, or taken away with notice."""

import json
import subprocess
import sys
import tempfile
from contextlib import suppress

import pytest

from nlgraft.study.reading.documents import write_yaml
from tests.integration.test_shared_cluster import Cluster, result_of, run, wait_until
from tests.processes import patient


class Nodes(Cluster):
    """A head without CPUs and nodes with one each, of which the last can be drained and killed.

    Args:
        directory: Of its own.
        number: How many nodes there are before another one is added.
    """

    code = """
import os, subprocess, sys
os.environ["RAY_TMPDIR"] = sys.argv[1]  # else it would become the cluster of this machine that "auto" means
os.mkdir(f"{sys.argv[1]}/ray")
from ray.cluster_utils import Cluster
common = {"include_dashboard": False, "node_ip_address": "127.0.0.1"}
cluster = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1, **common) for _ in range(NUM_NODES)]
print("ADDRESS", cluster.address, flush=True)
for line in sys.stdin:
    if line == "drain\\n":
        command = f"{sys.argv[2]} drain-node --address {cluster.address} --node-id {nodes[-1].node_id}"
        reason = "--reason DRAIN_NODE_REASON_PREEMPTION --reason-message spot --deadline-remaining-seconds 60"
        subprocess.run(f"{command} {reason}".split(), check=True)
    elif line == "add\\n":
        nodes.append(cluster.add_node(num_cpus=1, **common))
    else:
        cluster.remove_node(nodes.pop(), allow_graceful=False)
cluster.shutdown()
"""

    def __init__(self, directory, number):
        self.number = number
        self.code = f"NUM_NODES = {number}\n{self.code}"
        super().__init__(directory)

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()


@pytest.fixture
def nodes(request, toy_on_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # 127.0.0.1 is meant as it is
    with tempfile.TemporaryDirectory(prefix="nlg-") as directory:
        ray_nodes = Nodes(directory, getattr(request, "param", 2))
        try:
            yield ray_nodes
        finally:
            ray_nodes.close()


@pytest.fixture
def study_file(toy_document, tmp_path):
    """One trial of a minute; were the loss of its node a failure, it would fail."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 120, "pause_s": 0.5, "hold": str(tmp_path / "hold")}
    toy_document["seeds"] = [1]
    toy_document["resources"] = {"workers": {"min": 1, "max": 2}, "max_failures": 0}
    path = tmp_path / "toy.yaml"
    with path.open("w") as file:
        file.write(write_yaml(toy_document))
    return path


def log(directory):
    return [line.split() for line in (directory / "log").read_text().splitlines()]


def starts(directory):
    """Number of workers and first step of each time that the training was begun."""
    return [(int(line[0][3:]), int(line[-1])) for line in log(directory) if line[0].startswith("of-")]


def last_step(directory):
    """Step of the newest training state in the store; 0 where one was replaced while it was looked for."""
    steps = []
    with suppress(FileNotFoundError):
        steps += [path.parent.parent.name for path in directory.glob("store/**/state.json")]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def stops(directory):
    """Last step of each worker of a group that was asked to end and did, its training state saved."""
    return [int(line[-1]) for line in log(directory) if line[0] == "stopped"]


def verify_against_undisturbed(study_file, nodes, result, num_preemptions):
    """Look at what is stored and at what is said of it, and compare with a run that nothing interrupts."""
    assert result["trials"] == {"run": 1, "reused": 0, "failed": 0}
    command = [sys.executable, "-m", "nlgraft"]
    status = json.loads(subprocess.check_output([*command, "status", study_file, "--json"]))
    assert (status["workers"], status["preemptions"]) == ([1, 2], num_preemptions)
    subprocess.run([*command, "verify", study_file], check=True)
    options = [
        "base.pause_s=0",
        "--address",
        nodes.address,
        "--storage",
        str(study_file.parent / "undisturbed"),
    ]
    undisturbed = result_of(run(study_file, *options), patient(200))
    assert result["cells"][0]["metrics"] == undisturbed["cells"][0]["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_trial_goes_on_with_fewer_workers_when_a_node_is_lost(study_file, tmp_path, nodes, is_announced):
    """If that is announced, the group has saved its state and ended before."""
    driver = run(study_file, "--address", nodes.address)
    wait_until(lambda: last_step(tmp_path) > 3, driver, patient(200))
    assert starts(tmp_path) == [(2, 1)]
    if is_announced:
        nodes.tell("drain")
        wait_until(lambda: len(stops(tmp_path)) == 2, driver, 50)  # the node goes after 60
    nodes.tell("kill")
    result = result_of(driver, patient(400))
    [_, (num_workers, first_step)] = starts(tmp_path)
    assert num_workers == 1
    assert first_step > 3, "it went on from its training state"
    assert not is_announced or stops(tmp_path) == [first_step - 1] * 2, "no step was taken twice"
    verify_against_undisturbed(study_file, nodes, result, num_preemptions=1)


IMPATIENT = """
from functools import partial
from nlgraft.execution import sweep
sweep.WorkerGroup = partial(sweep.WorkerGroup, growth_s=5.0)
from nlgraft.commands.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_a_trial_goes_on_with_more_workers_when_a_node_joins(study_file, tmp_path, nodes):
    """Within seconds, for which a study would wait five minutes."""
    hold = tmp_path / "hold"
    driver = run(study_file, "--address", nodes.address, program=("-c", IMPATIENT))
    wait_until(lambda: last_step(tmp_path) > 3, driver, patient(200))
    assert starts(tmp_path) == [(1, 1)]
    hold.touch()
    nodes.tell("add")
    wait_until(lambda: len(starts(tmp_path)) == 2, driver, patient(200))
    hold.unlink()
    result = result_of(driver, patient(400))
    [_, (num_workers, first_step)] = starts(tmp_path)
    assert num_workers == 2
    assert first_step > 3, "it went on from its training state"
    verify_against_undisturbed(study_file, nodes, result, num_preemptions=0)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 2], indirect=True)
def test_a_group_goes_on_without_a_host_whose_disk_is_full_where_others_have_place(
    nodes, study_file, tmp_path
):
    options = ["base.behaviour=full", "base.pause_s=0", "base.steps=8", f"base.log={tmp_path / 'log'}"]
    workers = ["resources.workers=2", "--address", nodes.address]
    driver = run(study_file, *options, *workers)
    out, err = driver.communicate(timeout=patient(400))
    if nodes.number == 2:
        assert driver.returncode == 1
        assert f"host {(tmp_path / 'log.full').read_text()} cannot use /cache: No space left" in err
        return
    assert driver.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["trials"] == {"run": 1, "reused": 0, "failed": 0}
    assert starts(tmp_path) == [(2, 1), (2, 3)], "it went on from its training state"


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3], indirect=True)
def test_a_divided_training_goes_on_with_fewer_workers(study_file, toy_document, tmp_path, nodes):
    """Each of them has lost a third of the model, which the training state in the store has whole."""
    resources = {"workers": {"min": 2, "max": 3}, "sharding": "full", "max_failures": 0}
    objective = {"metric": "dev/loss", "direction": "minimize"}
    toy_document |= {"system": "sharded_toy", "resources": resources, "objective": objective}
    toy_document["base"] = {"log": str(tmp_path / "log"), "pause_s": 0.5}
    with study_file.open("w") as file:
        file.write(write_yaml(toy_document))

    def states():
        return list(tmp_path.glob("store/**/optimizer.safetensors"))

    driver = run(study_file, "--address", nodes.address)
    wait_until(lambda: len(states()) > 1, driver, patient(200))
    assert log(tmp_path) == [["of-3", "True", "1"]]
    nodes.tell("kill")
    result = result_of(driver, patient(400))
    [_, (size, is_sharded, first_step)] = log(tmp_path)
    assert (size, is_sharded) == ("of-2", "True")
    assert int(first_step) > 3, "it went on from its training state"
    single = ["resources.workers=1", "resources.sharding=none", "--storage", str(tmp_path / "single")]
    alone = result_of(run(study_file, *single, "--address", nodes.address), patient(200))
    assert log(tmp_path)[-1] == ["of-1", "False", "1"]
    [divided, undivided] = [each["cells"][0]["metrics"]["dev/loss"]["mean"] for each in (result, alone)]
    assert divided == pytest.approx(undivided, rel=1e-9)
