"""Run arms of systems on the CPU and on a GPU, real or simulated, in a process of their own.

``python -m tests.gpu_trials DEVICE FAULT SYSTEM/ARM ...`` prints a JSON object for each arm: the metrics of
either device. Trainings on the GPU are broken off after a first checkpoint and taken up again. DEVICE is
``simgpu:0``, or a device of torch. FAULT is empty, or one of `FAULTS`, which plants a mistake that a GPU
would show. In place of arms, ``doctor`` prints what `nlgraft doctor` finds.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from nlgraft.nn.batch import Tokens
from nlgraft.pipeline.stage import NullReporter
from nlgraft.runs import doctor
from nlgraft.runs.device_trials import trial_in, without_dropout
from nlgraft.study.reading.system_import import load_system
from nlgraft.training import loop
from tests import simulated_gpu
from tests.contract.effects import config_of, graph_of
from tests.contract.toy_arms import arms_of


class BreaksOff(NullReporter):
    """Breaks the trial off at the first report of a training that goes on."""

    has_broken_off = False

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if step > 1 and not self.has_broken_off:
            self.has_broken_off = True
            raise KeyboardInterrupt


def _stays(self: Tokens, device: Any) -> Tokens:
    return self


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *arguments, device=None, **options: make(*arguments, **options)


def _plain_attribute(self: torch.nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
    object.__setattr__(self, name, tensor)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "tokens are not moved": (Tokens, "to", _stays),
    "masks are made on the CPU": (torch, "ones", _on_cpu(torch.ones)),
    "positions are counted on the CPU": (torch, "arange", _on_cpu(torch.arange)),
    "sums begin on the CPU": (torch, "zeros", _on_cpu(torch.zeros)),
    "buffers are not registered": (torch.nn.Module, "register_buffer", _plain_attribute),
}


def main() -> None:
    """Run the arms."""
    device, fault, *arms = sys.argv[1:]
    is_simulated = device == simulated_gpu.DEVICE
    if is_simulated:
        simulated_gpu.register()
    if arms == ["doctor"]:
        if fault:
            setattr(*FAULTS[fault])
        with simulated_gpu.simulated():
            checks = [doctor.check_devices, partial(doctor.check_system, "trainables.lm_augmentation")]
            print(json.dumps([asdict(doctor.run_check("", check)) for check in checks]))
        return
    loop.CHECKPOINT_EVERY_STEPS = 1
    for path, _, arm in (name.partition("/") for name in arms):
        system = load_system(path)
        config = config_of(system, arms_of(path)[arm])
        if not is_simulated:
            config = without_dropout(config)
        graph = graph_of(system, config)
        with tempfile.TemporaryDirectory() as place:
            # Under autocast the simulated device leaves types as they are.
            plain = mock.patch.object(torch, "autocast", return_value=nullcontext())
            with plain if is_simulated else nullcontext():
                on_cpu = trial_in(Path(place, "cpu"), graph)
            if fault:
                setattr(*FAULTS[fault])
            with simulated_gpu.simulated() if is_simulated else nullcontext():
                try:
                    on_gpu = trial_in(Path(place, "gpu"), graph, device=device, reporter=BreaksOff())
                except KeyboardInterrupt:
                    on_gpu = trial_in(Path(place, "gpu"), graph, device=device)
        print(json.dumps({"cpu": on_cpu.metrics, "gpu": on_gpu.metrics}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
