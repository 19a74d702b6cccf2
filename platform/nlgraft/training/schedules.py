"""Learning-rate schedules as exact formulas.

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

from nlgraft.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Compute the learning rate of a step, counted from 1, before group multipliers.

    Source: Vaswani et al. (2017), section 5.3, with a free peak.
    """
    warmup = config.warmup_steps
    if step <= warmup:
        return config.initial_lr + (config.peak_lr - config.initial_lr) * step / warmup
    if config.lr_schedule == "constant":
        return config.peak_lr
    if config.lr_schedule == "inverse_sqrt":
        return config.peak_lr * math.sqrt(max(warmup, 1) / step)
    assert config.max_steps is not None, "the training loop turns epochs into steps"
    progress = (step - warmup) / (config.max_steps + 1 - warmup)
    fall = 1 - progress if config.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.peak_lr * (config.final_lr_ratio + (1 - config.final_lr_ratio) * fall)
