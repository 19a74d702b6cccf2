"""How modules are run and built: in evaluation, partly frozen, from random streams of their own; size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# For each new shape of a batch cuDNN makes a plan of its attention, for some 30 ms: on an H100 trainings in
# bf16 took five times as long as with the kernels that torch has beside it (benchmarks/accelerator.py).
torch.backends.cuda.enable_cudnn_sdp(False)


def set_seed(seed: int, device: torch.device | str = "cpu") -> None:
    """Seed torch's draws on the CPU, and on the GPUs if ``device`` is one."""
    # Not torch.manual_seed: it formats the call stack for every kind of accelerator that has not started,
    # which takes 3 ms deep inside a training.
    torch.default_generator.manual_seed(seed)
    if is_accelerator(device):
        torch.get_device_module(torch.device(device)).manual_seed_all(seed)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Draw from a stream of its own inside; the caller's stream goes on as if nothing had been drawn."""
    with forked_rng(device):
        set_seed(seed, device)
        yield


@contextmanager
def forked_rng(device: torch.device | str) -> Iterator[None]:
    """Restore torch's random state at the end, on the CPU and on ``device``."""
    place = torch.device(device)
    if is_accelerator(place):
        with torch.random.fork_rng(devices=[place], device_type=place.type):
            yield
    else:
        with torch.random.fork_rng(devices=[]):
            yield


def is_accelerator(device: torch.device | str) -> bool:
    """True for a GPU of any maker, false for the CPU and for tensors without values."""
    return torch.device(device).type not in ("cpu", "meta")


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has computed all that it was given; a CPU always has."""
    if is_accelerator(device):
        torch.accelerator.synchronize(torch.device(device))


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Initialise from a separate random stream, so that the weights of all other parts stay the same."""
    with torch.random.fork_rng(devices=[]):
        # fork_rng restores the state, so without a new seed the next weights would repeat these draws.
        # Drawn on the CPU, whatever the device of the model.
        set_seed(int(torch.randint(2**62, (), device="cpu")))
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a module in evaluation mode and without gradients; the mode of each of its parts is restored."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, is_training in modes:
            part.training = is_training


def freeze_unused(module: nn.Module, output: Callable[[], Tensor]) -> None:
    """Freeze the parameters of a module on which an output, of any shape [...], does not depend.

    All others are trained, but for those that are frozen already, such as a Marian's sinusoids: each of them
    gets a gradient, as DDP requires. torch's random state does not change.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # Tensors on the meta device have no values to run.
    if not parameters or parameters[0].device.type == "meta":
        return
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        gradients = torch.autograd.grad(output().float().sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Count the parameters of a model, tied ones once: all, and those that learn."""
    parameters = list(model.parameters())
    return (
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )
