"""Systems on a GPU: they train, resume, decode and are scored there as on the CPU.

The GPU is one in name (`tests.simulated_gpu`) or, with NLGRAFT_TEST_DEVICE=gpu (`make test-gpu`), that of the
machine, whose kernels sum in another order: there losses alone are compared, to 1e-3.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from nlgraft.runs.device_trials import DEVICE_TOLERANCE, differing
from tests import simulated_gpu
from tests.contract.toy_arms import ROOT, SYSTEMS, arms_of
from tests.gpu_trials import FAULTS

FEW = ["trainables.prlm_fusion/gate, finetuned", "trainables.llm_vocabulary/prune_extend, focus"]
"""Arms of an encoder-decoder with a pretrained flow, and of a causal language model."""


GROUPS = [
    arms[start : start + 8]
    for path in sorted({*SYSTEMS} - {"trainables.command"})  # its scripts choose a device
    for arms in [[f"{path}/{arm}" for arm in arms_of(path)]]
    for start in range(0, len(arms), 8)
]
"""All arms, as many to a process as pays for its imports."""
IN_BF16 = {"trainables.prlm_fusion/gate"}
"""Arms whose states are computed in bf16 on the CPU; the simulated device leaves types as they are."""
DRAWING = {"trainables.prlm_fusion/dropnet, finetuned", "trainables.prlm_fusion/four"}
"""Arms that draw on the device itself: DropNet its flow, ELECTRA the replaced tokens."""
IS_REAL = os.environ.get("NLGRAFT_TEST_DEVICE") == "gpu"


def device():
    """The device to compare with the CPU."""
    if not IS_REAL:
        return simulated_gpu.DEVICE
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    assert accelerator is not None, "torch finds no GPU on this machine"
    return f"{accelerator}:0"


def trials(place, *arguments):
    command = [sys.executable, "-m", "tests.gpu_trials", place, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def assert_equal_on_both(arms):
    finished = trials(device(), "", *arms)
    results = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"cpu"')]
    unequal = {}
    for arm, result in zip(arms, results, strict=False):
        tolerance = DEVICE_TOLERANCE if IS_REAL else 1e-4 if arm in IN_BF16 else 1e-5
        system = arm.partition("/")[0]
        if IS_REAL and arm in DRAWING:
            continue
        unequal[arm] = differing(system, result["cpu"], result["gpu"], tolerance, only_losses=IS_REAL)
    assert {arm: metrics for arm, metrics in unequal.items() if metrics} == {}
    assert (finished.returncode, len(results)) == (0, len(arms)), finished.stderr[-3000:]


def test_an_encoder_decoder_with_a_finetuned_prlm_is_equal_on_both():
    assert_equal_on_both(FEW[:1])


@pytest.mark.slow
@pytest.mark.parametrize("arms", GROUPS, ids=lambda arms: f"{arms[0]} and {len(arms) - 1} more")
def test_every_arm_is_equal_on_both(arms):
    assert_equal_on_both(arms)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_that_a_gpu_would_show_is_found(fault):
    finished = trials(simulated_gpu.DEVICE, fault, *FEW)
    assert finished.returncode != 0
    assert "tensors on simgpu:0 and on cpu" in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "tokens are not moved"])
def test_doctor_says_if_a_gpu_computes_what_the_cpu_does(fault):
    finished = trials(simulated_gpu.DEVICE, fault, "doctor")
    assert finished.returncode == 0, finished.stderr[-3000:]
    devices, system = json.loads(finished.stdout.splitlines()[-1])
    assert (devices["state"], devices["figures"]["accelerators"]) == ("ok", 1)
    assert system["state"] == ("wrong" if fault else "ok")
    assert ("tensors on simgpu:0 and on cpu" in system["what"]) == bool(fault)
