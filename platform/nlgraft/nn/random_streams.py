"""Initial weights of what a model has beside another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Draw from a stream of its own, so that all other weights begin as in a model without these."""
    with torch.random.fork_rng(devices=[]):
        # or the next weights would begin as these do; on the CPU, whatever the device of the model
        torch.manual_seed(int(torch.randint(2**62, (), device="cpu")))
        yield
