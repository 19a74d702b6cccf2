"""Learning-rate schedules against their formulas."""

import math
from typing import get_args

import pytest

from nlgraft.training.train_config import LrSchedule, TrainConfig


def config(**fields):
    return TrainConfig(**{"peak_lr": 8e-4, "warmup_steps": 100, "max_steps": 1000, **fields})


def in_peaks(schedule):
    """The rates of all steps, in units of the peak."""
    return [schedule.learning_rate(step) / schedule.peak_lr for step in range(1, schedule.max_steps + 1)]


def test_inverse_square_root():
    """Invariant F31: step 1, end of warm-up, 4 x warm-up (half the peak), any later step."""
    schedule = config()
    assert schedule.learning_rate(1) == pytest.approx(8e-6)
    assert schedule.learning_rate(50) == pytest.approx(4e-4)
    assert schedule.learning_rate(100) == pytest.approx(8e-4)
    assert schedule.learning_rate(400) == pytest.approx(4e-4)
    assert schedule.learning_rate(777) == pytest.approx(8e-4 * math.sqrt(100 / 777))


def test_warmup_rises_from_the_initial_rate():
    schedule = config(initial_lr=4e-4)
    assert schedule.learning_rate(25) == pytest.approx(5e-4)
    assert schedule.learning_rate(100) == pytest.approx(8e-4)


def test_without_warmup_every_schedule_starts_at_its_peak():
    for kind in ("inverse_sqrt", "constant"):
        assert config(warmup_steps=0, lr_schedule=kind).learning_rate(1) == 8e-4
    assert config(warmup_steps=0, lr_schedule="inverse_sqrt").learning_rate(16) == pytest.approx(2e-4)
    assert config(warmup_steps=0, lr_schedule="linear", max_steps=3).learning_rate(1) == pytest.approx(6e-4)


@pytest.mark.parametrize("kind", get_args(LrSchedule))
def test_every_schedule_is_positive_and_never_rises_after_its_warmup(kind):
    rates = in_peaks(config(lr_schedule=kind, warmup_steps=4, max_steps=40))
    assert rates[3] == max(rates) == 1
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] > 0


def test_linear():
    """w = 1, T = 5: the fall is over after step 6, so steps 1..5 have 5/5, 4/5 ... 1/5 of the peak."""
    schedule = config(lr_schedule="linear", warmup_steps=1, max_steps=5)
    assert in_peaks(schedule) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    ending = config(lr_schedule="linear", warmup_steps=1, max_steps=5, final_lr_ratio=0.5)
    assert in_peaks(ending) == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])


def test_cosine():
    schedule = config(lr_schedule="cosine", warmup_steps=1, max_steps=4)
    half = (1 + math.cos(math.pi / 4)) / 2
    assert in_peaks(schedule) == pytest.approx([1, half, 0.5, 1 - half])
    floor = config(lr_schedule="cosine", warmup_steps=1, max_steps=4, final_lr_ratio=0.2)
    assert floor.learning_rate(3) / 8e-4 == pytest.approx(0.2 + 0.8 * 0.5)


def test_constant():
    assert config(lr_schedule="constant").learning_rate(999) == 8e-4
