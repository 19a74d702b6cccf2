"""The choice between fp32 and bf16 by a short measurement, for trainings with ``precision: auto``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Memory
from nlgraft.nn.fusion import Fusion
from nlgraft.nn.layers import EncoderLayer
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import forked_rng, is_accelerator, seeded, synchronize
from nlgraft.pipeline.stage import StageContext
from nlgraft.text.files import read_json, write_json
from nlgraft.training.train_config import PRECISION_INPUT, TrainConfig

TrainT = TypeVar("TrainT", bound=TrainConfig)

CHOICE_FILE = "precision.json"
MIN_GAIN = 1.2
"""Speed of bf16, by that of fp32, from which it is chosen: less would not pay for its lost digits."""
_NUM_ROUNDS = 3
_HOPELESS_GAIN = 0.5
"""Gain of the first round below which the others are left out: bf16 without instructions takes seconds."""
_WIDTH = {False: 256, True: 1024}
"""Width of the measured layer on a CPU and on a GPU, as usual there; the wider, the more bf16 gains."""
_BATCH = {False: (64, 16), True: (64, 64)}
"""Sentences and tokens of the measured batch, likewise."""


def measure_gain(device: str) -> float:
    """Measure how much faster a layer is trained in bf16 than in fp32, in less than a second.

    Args:
        device: Where it is measured: on a CPU in CPU time, in which other processes have no share.

    Returns:
        Ratio of median speeds; 0 where the device has no instructions for bf16.
    """
    if not has_bf16(device):
        return 0.0
    step = _training_step(device)
    # Kernels are made at their first use: on a GPU in seconds, on a CPU in no time where bf16 may be chosen.
    for is_bf16 in (False, True) if is_accelerator(device) else (False,):
        step(is_bf16)
    seconds = {False: [], True: []}
    for number in range(_NUM_ROUNDS + 1):
        taken = {is_bf16: _timed(step, is_bf16, device) for is_bf16 in seconds}
        if number == 0 and taken[False] < _HOPELESS_GAIN * taken[True]:
            return taken[False] / taken[True]
        if number:
            for is_bf16, value in taken.items():
                seconds[is_bf16].append(value)
    return statistics.median(seconds[False]) / statistics.median(seconds[True])


def has_bf16(device: str) -> bool:
    """Tell if a device has instructions for bfloat16; without them it was twenty times slower on a CPU."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if is_accelerator(device):
        return getattr(torch.get_device_module(kind), "is_bf16_supported", lambda: False)()
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _training_step(device: str) -> Callable[[bool], None]:
    """Make the function that trains a layer on random states, in bf16 or not.

    Neither torch's random numbers nor anything else of the process is changed.
    """
    kind = torch.device(device).type
    is_gpu = is_accelerator(device)
    width, shape = _WIDTH[is_gpu], _BATCH[is_gpu]
    config = TransformerConfig(d_model=width, num_heads=width // 64, ffn_dim=4 * width)
    with seeded(0, device):
        layer = EncoderLayer(config, Fusion(config, [])).to(device)
        states = torch.randn(*shape, width, device=device, requires_grad=True)
    valid = torch.ones(*shape, dtype=torch.bool, device=device)
    memory = Memory(states, valid, has_padding=False, has_absent=False)

    def step(is_bf16: bool) -> None:
        with (
            forked_rng(device),
            torch.autocast(kind, dtype=torch.bfloat16, enabled=is_bf16),
        ):
            loss = layer(memory, []).float().square().mean()
        loss.backward()
        nn.Module.zero_grad(layer)

    return step


def _timed(
    step: Callable[[bool], None],
    is_bf16: bool,
    device: str,
) -> float:
    clock = time.perf_counter if is_accelerator(device) else time.process_time
    synchronize(device)
    began_s = clock()
    step(is_bf16)
    synchronize(device)
    return clock() - began_s


def write_choice(directory: Path, gain: float) -> bool:
    """Write the precision that a measured gain leads to; returns whether it is bf16."""
    is_bf16 = gain >= MIN_GAIN
    choice = {"precision": "bf16" if is_bf16 else "fp32", "bf16_gain": gain, "min_gain": MIN_GAIN}
    write_json(directory / CHOICE_FILE, choice)
    return is_bf16


def with_precision(config: TrainT, context: StageContext) -> TrainT:
    """Replace ``precision: auto`` of a training by what was measured.

    Raises:
        ContractError: The stage does not have the measurement among its inputs.
    """
    if config.precision != "auto":
        return config
    directory = context.inputs.get(PRECISION_INPUT)
    if directory is None:
        raise ContractError(
            f"stage {context.stage.name}: precision is auto, but the stage has no input '{PRECISION_INPUT}'; "
            "derive its settings from TrainingSettings, or set precision to fp32 or bf16"
        )
    choice = read_json(directory / CHOICE_FILE)
    return config.model_copy(update={"precision": choice["precision"]})
