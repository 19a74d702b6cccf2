"""The number of threads of a worker process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nlgraft.execution.worker_group import WorkerGroup


def test_threads_are_limited_before_and_after_pytorch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    try:
        WorkerGroup(1, 3.5, 0.0, 0, "").limit_threads()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    code = (
        "import os, sys; from nlgraft.execution.worker_group import WorkerGroup\n"
        "WorkerGroup(1, 2.0, 0.0, 0, '').limit_threads()\n"
        "print('torch' in sys.modules, os.environ['OMP_NUM_THREADS'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "2"], "importing PyTorch takes seconds"
