"""Modes of modules: frozen parameters that an output does not depend on, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
