"""Random numbers that depend on nothing but a seed and what they are for.

Every draw of a training is made from the stage's seed and the place it is made at (step, epoch, example),
never from a generator that remembers earlier draws. A resumed training, another number of workers or an
evaluation in between therefore change no draw, and no generator state needs saving.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *place: int | str) -> int:
    """Derive a seed for one place of a program.

    Args:
        seed: The stage's seed.
        *place: What the numbers are for, e.g. ``"step", 12``.

    Returns:
        A number of 63 bits.
    """
    text = repr((seed, *place)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator_for(seed: int, *place: int | str) -> np.random.Generator:
    """Make a numpy generator for one place of a program.

    Args:
        seed: The stage's seed.
        *place: What the numbers are for.

    Returns:
        A new generator.
    """
    return np.random.default_rng(derive_seed(seed, *place))
