"""Systems on a GPU in name: they train, resume, decode and are scored there as on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from nlgraft.study.reading.system_import import load_system
from tests.contract.toy_arms import ROOT, SYSTEMS, arms_of
from tests.simulated_gpu_trials import FAULTS

FEW = ["trainables.prlm_fusion/gate, finetuned", "trainables.llm_vocabulary/prune_extend, focus"]
"""Arms of an encoder-decoder with a pretrained flow, and of a causal language model."""


def trials(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulated_gpu_trials", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def assert_equal_on_both(arms: list[str]) -> None:
    finished = trials("", *arms)
    assert finished.returncode == 0, finished.stderr[-3000:]
    results = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith('{"cpu"')]
    assert len(results) == len(arms)
    for arm, result in zip(arms, results, strict=True):
        metrics = load_system(arm.partition("/")[0]).metrics
        for name, value in result["cpu"].items():
            if not metrics[name].is_time:
                assert math.isclose(result["gpu"][name], value, rel_tol=1e-5, abs_tol=1e-7), (arm, name)


def test_an_encoder_decoder_with_a_finetuned_prlm_is_equal_on_both() -> None:
    assert_equal_on_both(FEW[:1])


@pytest.mark.slow
@pytest.mark.parametrize("path", SYSTEMS)
def test_every_arm_is_equal_on_both(path: str) -> None:
    assert_equal_on_both([f"{path}/{arm}" for arm in arms_of(path)])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_that_a_gpu_would_show_is_found(fault: str) -> None:
    finished = trials(fault, *FEW)
    assert finished.returncode != 0
    assert "tensors on simgpu:0 and on cpu" in finished.stderr
