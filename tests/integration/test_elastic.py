"""Trials whose workers follow the cluster: nodes are lost under them, or taken away with notice."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.processes import patient

HOLD_NODES = """
import sys
from ray.cluster_utils import Cluster
common = {"temp_dir": sys.argv[1], "include_dashboard": False, "node_ip_address": "127.0.0.1"}
cluster = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1, **common) for _ in range(2)]
print("ADDRESS", cluster.address, *[node.node_id for node in nodes], flush=True)
for _ in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
cluster.shutdown()
"""


class Nodes:
    """A head without CPUs and two nodes with one each; the last goes at a line to its process."""

    def __init__(self, directory: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-c", HOLD_NODES, directory]
        self._process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        line = next(line for line in self._process.stdout if line.startswith("ADDRESS"))
        _, self.address, _, self.last = line.split()

    def remove(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=patient(60))
        self._process.stdout.close()


@pytest.fixture
def nodes(toy_on_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(prefix="nlg-") as directory:
        found = Nodes(directory)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def study_file(toy_document: dict[str, Any], tmp_path: Path) -> Path:
    """One trial of a minute; were the loss of its node a failure, it would fail."""
    del toy_document["factors"]
    toy_document["base"] |= {"steps": 120, "pause_s": 0.5}
    toy_document["seeds"] = [1]
    toy_document["resources"] = {"workers": {"min": 1, "max": 2}, "max_failures": 0}
    path = tmp_path / "toy.yaml"
    with path.open("w") as file:
        YAML().dump(toy_document, file)
    return path


def nlgraft(command: str, study_file: Path, *options: str) -> subprocess.Popen[str]:
    """Start a command of a store and MLflow database beside the study."""
    tracked = f"--tracking-uri=sqlite:///{study_file.parent / 'mlflow.db'}"
    words = [sys.executable, "-m", "nlgraft", command, str(study_file), "--json", *options]
    words += [] if command == "status" else [tracked]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=patient(300))
    assert process.returncode == 0, out + err
    return json.loads(out)


def await_(is_there: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + patient(200)
    while not is_there():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.2)


def starts(study_file: Path) -> list[tuple[int, int]]:
    """Number of workers and first step of each time that the training was begun."""
    log = study_file.parent / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(int(line[0][3:]), int(line[-1])) for line in lines if line[0].startswith("of-")]


def last_step(study_file: Path) -> int:
    """Step of the newest training state in the store."""
    steps = [path.parent.parent.name for path in study_file.parent.glob("store/**/state.json")]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def verify_against_undisturbed(study_file: Path, nodes: Nodes, result: dict[str, Any]) -> None:
    """Compare with a run that nothing interrupts, look at what is stored and at what is said of it."""
    assert result["trials"] == {"run": 1, "reused": 0, "failed": 0}
    status = answer(nlgraft("status", study_file))
    assert (status["workers"], status["preemptions"]) == ([1, 2], 1)
    answer(nlgraft("verify", study_file))
    undisturbed = study_file.parent / "undisturbed" / "toy.yaml"
    undisturbed.parent.mkdir()
    text = study_file.read_text().replace("pause_s: 0.5", "pause_s: 0.0")
    undisturbed.write_text(text.replace(str(study_file.parent / "store"), str(undisturbed.parent / "store")))
    quiet = answer(nlgraft("run", undisturbed, "--address", nodes.address))
    assert result["cells"][0]["metrics"] == quiet["cells"][0]["metrics"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trial_goes_on_with_fewer_workers_when_a_node_is_lost(study_file: Path, nodes: Nodes) -> None:
    run = nlgraft("run", study_file, "--address", nodes.address)
    await_(lambda: last_step(study_file) > 3, run)
    assert starts(study_file) == [(2, 1)]
    nodes.remove()
    result = answer(run)
    [_, (num_workers, first_step)] = starts(study_file)
    assert num_workers == 1
    assert first_step > 3, "it went on from its training state"
    verify_against_undisturbed(study_file, nodes, result)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_saves_its_state_when_its_node_is_about_to_be_taken_away(
    study_file: Path, nodes: Nodes
) -> None:
    run = nlgraft("run", study_file, "--address", nodes.address)
    await_(lambda: last_step(study_file) > 3, run)
    drain = ["drain-node", "--address", nodes.address, "--node-id", nodes.last, "--reason-message", "spot"]
    drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", "60"]
    subprocess.run([Path(sys.executable).parent / "ray", *drain], check=True, capture_output=True)
    time.sleep(patient(20))
    stopped_at = last_step(study_file)
    time.sleep(5)
    assert last_step(study_file) == stopped_at, "the training has ended before its node does"
    nodes.remove()
    result = answer(run)
    [first, (num_workers, first_step)] = starts(study_file)
    assert (first, num_workers) == ((2, 1), 1)
    assert first_step == stopped_at + 1, "no step was taken twice"
    verify_against_undisturbed(study_file, nodes, result)
