"""One and two workers with the same global batches give the same training to floating point."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nlgraft.training.config import TrainConfig
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective, segment_losses
from nlgraft.training.state import load_weights
from tests.unit.training.toy import Recorder, ToyData, ToyModel, make_context

SETTINGS = {
    "max_steps": 14,
    "peak_lr": 0.02,
    "warmup_steps": 4,
    "accumulation": 2,
    "report_every_steps": 1,
    "eval_every_steps": 5,
    "checkpoint_every_steps": 4,
}


def dev_loss(model):
    return {"dev/loss": segment_losses(model, ToyData(num=12, seed=9).in_order(), 12).per_token}


def train_worker(root, rank, world_size, fail_at=None, stop_at=None, **fields):
    # 37 rows in batches of 6 end with a batch of one row: the second worker has none of it
    model = ToyModel(1 + rank).double()  # unlike initial weights: the first worker's count
    context = make_context(
        root,
        Recorder(fail_at=fail_at, stop_at=stop_at if rank == 0 else None),
        rank=rank,
        world_size=world_size,
    )
    config = TrainConfig(**{**SETTINGS, **fields})
    return train(model, Seq2SeqObjective(0.1), ToyData(), config, context, evaluate=dev_loss), model


CHILD = """
import json, os, sys
import torch
import torch.distributed as dist
from tests.invariants.test_training_workers import train_worker
from pathlib import Path
arguments = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
outcome, model = train_worker(Path(arguments.pop("root")), rank, 2, **arguments)
result = [outcome.curves, outcome.num_tokens, model.mix.bias.tolist()]
Path(os.environ["OUTCOME"]).write_text(json.dumps(result))
dist.barrier()
dist.destroy_process_group()
"""


def run_two(root, **arguments):
    """Start two gloo processes on loopback; give their exit codes and what they wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    repository = Path(__file__).parents[2]
    processes, outcomes = [], []
    for rank in range(2):
        outcomes.append(root / f"outcome-{rank}.json")
        root.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "platform")]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "OUTCOME": str(outcomes[-1]),
        }
        command = [sys.executable, "-c", CHILD, json.dumps({"root": str(root), **arguments})]
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=repository)
        )
    errors = [process.communicate(timeout=120)[1] for process in processes]
    codes = [process.returncode for process in processes]
    return codes, errors, [json.loads(path.read_text()) if path.exists() else None for path in outcomes]


def losses(curves, name="train/loss"):
    return [value for _, value, _ in curves[name]]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    codes, errors, outcomes = run_two(root)
    assert codes == [0, 0], errors
    return root, outcomes


def test_two_workers_equal_one(tmp_path, two_workers):
    """Acceptance h: the loss curve, the dev curve, the tokens counted and the weights."""
    one, model = train_worker(tmp_path, 0, 1)
    root, outcomes = two_workers
    for curves, num_tokens, _ in outcomes:
        assert losses(curves) == pytest.approx(losses(one.curves), rel=1e-10)
        assert losses(curves, "dev/loss") == pytest.approx(losses(one.curves, "dev/loss"), rel=1e-10)
        assert num_tokens == one.num_tokens
    weights = load_weights(root / "artifact-0" / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.allclose(weights[name], tensor, rtol=1e-8, atol=1e-10), name


def test_every_worker_ends_with_the_same_weights_and_only_the_first_writes(two_workers):
    root, outcomes = two_workers
    assert outcomes[0][2] == outcomes[1][2]
    assert not list((root / "artifact-1").iterdir())


def test_killed_and_resumed_on_two_workers(tmp_path, two_workers):
    codes, _, _ = run_two(tmp_path, fail_at=10)
    assert 0 not in codes
    codes, errors, outcomes = run_two(tmp_path)
    assert codes == [0, 0], errors
    for resumed, undisturbed in zip(outcomes, two_workers[1], strict=True):
        assert losses(resumed[0]) == losses(undisturbed[0])
        assert resumed[1:] == undisturbed[1:]


def test_the_first_worker_decides_to_stop_for_all(tmp_path):
    codes, errors, _ = run_two(tmp_path, stop_at=6)
    assert 0 not in codes
    assert all("TrialStopped: rung 1" in error for error in errors)
