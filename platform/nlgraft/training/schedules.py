"""Learning-rate schedules as exact formulas. No torch here: configs name them.

Steps t count from 1; the rate of step t is the one its update uses. With w warm-up steps, peak p, initial
rate i, T steps in all and final ratio f:

warm-up       t <= w     i + (p - i) * t / w
inverse_sqrt  t > w      p * sqrt(w / t)                                 (w = 0 counts as w = 1)
constant      t > w      p
linear        t > w      p * (f + (1 - f) * (1 - s))                     s = (t - w) / (T + 1 - w)
cosine        t > w      p * (f + (1 - f) * (1 + cos(pi * s)) / 2)

s would reach 1 at step T + 1, so the last step still has a positive rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

LrSchedule = Literal["inverse_sqrt", "linear", "cosine", "constant"]

ENDLESS: Mapping[LrSchedule, Callable[[int, int], float]] = {
    "inverse_sqrt": lambda step, warmup: math.sqrt(max(warmup, 1) / step),
    "constant": lambda step, warmup: 1.0,
}
"""Share of the peak at step t after w warm-up steps, of schedules that know no last step."""
FALLING: Mapping[LrSchedule, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
"""Share of the way between final and peak rate at progress s, of schedules that end at the last step."""
