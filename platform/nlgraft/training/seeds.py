"""Random numbers that depend only on a seed and their purpose.

Every random draw of a training depends on the stage's seed and its place (step, epoch, example) alone; no
generator carries state. A resumed training, another number of workers or an evaluation in between
therefore changes no draw, and no generator state needs saving.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *place: int | str) -> int:
    """Derive a seed of 63 bits for one place of a program, e.g. ``derive_seed(seed, "step", 12)``."""
    text = repr((seed, *place)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator_for(seed: int, *place: int | str) -> np.random.Generator:
    """Make a numpy generator for one place of a program."""
    return np.random.default_rng(derive_seed(seed, *place))
