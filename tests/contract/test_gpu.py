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

ARMS = [
    [f"{path}/{arm}" for arm in arms_of(path)]
    for path in SYSTEMS
    if path != "trainables.command"  # its scripts choose a device
]
"""The arms of each system."""
TELLING = ("patt_eg", "prune_extend, focus", "src_ft", "gate, finetuned", "vipi")
FEW = [
    next((arm for arm in arms if arm.endswith(TELLING)), arms[0])
    for arms in ARMS
    if not arms[0].startswith("examples.")
]
"""An arm of each system that has what is its own: generators, vocabularies, language models, flows."""
GROUPS = [arms[start : start + 8] for arms in ARMS for start in range(0, len(arms), 8)]
"""All arms, as many to a process as pays for its imports."""
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
        tolerance = DEVICE_TOLERANCE if IS_REAL else 1e-5
        if IS_REAL and arm in DRAWING:
            continue
        both = result["cpu"], result["gpu"]
        if metrics := differing(arm.partition("/")[0], *both, tolerance, only_losses=IS_REAL):
            unequal[arm] = metrics
    assert not unequal
    assert (finished.returncode, len(results)) == (0, len(arms)), finished.stderr[-3000:]


def test_an_arm_of_each_system_is_equal_on_both():
    assert_equal_on_both(FEW)


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
