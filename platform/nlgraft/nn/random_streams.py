"""Separate random streams for the initialisation of a model's optional parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Initialise from a separate random stream, so that the weights of all other parts stay the same."""
    with torch.random.fork_rng(devices=[]):
        # fork_rng restores the state, so without a new seed the next weights would repeat these draws.
        # Drawn on the CPU, whatever the device of the model.
        torch.manual_seed(int(torch.randint(2**62, (), device="cpu")))
        yield
