"""Groups of gloo workers on loopback: forks of a process that has not used autograd."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp  # forks need not import it again

from nlgraft.training import loop


def run_groups_apart(module: str, root: Path) -> None:
    """Call ``run_groups(root)`` of a module of tests in a new process."""
    repository = Path(__file__).parents[1]
    path = os.pathsep.join([str(repository), str(repository / "platform"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    code = f"import pathlib, {module} as groups; groups.run_groups(pathlib.Path({str(root)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr


def run_group(size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, size, *arguments)`` in each worker of a group and wait for all."""
    fork = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [
        fork.Process(target=_be_worker, args=(rank, size, port, work, arguments)) for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not any(worker.exitcode for worker in workers)


def _be_worker(
    rank: int, size: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    loop.REPORT_EVERY_STEPS = 1
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    work(rank, size, *arguments)
    dist.barrier()
    dist.destroy_process_group()
