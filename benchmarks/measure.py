"""Interleaved measurements: on a busy machine contestants are compared step by step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Rates:
    """Work per CPU-second of several contestants, measured in turns.

    Attributes:
        unit: What is counted.
        rates: One reading per round, by contestant.
    """

    unit: str
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """The median reading of a contestant."""
        return statistics.median(self.rates[name])

    def ratio(self, name: str, peer: str) -> tuple[float, float, float]:
        """Ratio of medians, and the lowest and highest ratio of any one round."""
        rounds = [a / b for a, b in zip(self.rates[name], self.rates[peer], strict=True)]
        return self.median(name) / self.median(peer), min(rounds), max(rounds)


def interleave(unit: str, contestants: Mapping[str, Callable[[], float]], num_rounds: int) -> Rates:
    """Let every contestant work once per round; the first round warms up and is not counted.

    Args:
        unit: What the contestants count.
        contestants: Each does a portion of work and returns how much it was.
        num_rounds: Counted rounds.

    Returns:
        Amount per CPU-second of this process.
    """
    rates = Rates(unit, {name: [] for name in contestants})
    for number in range(num_rounds + 1):
        for name, work in contestants.items():
            began_s = time.process_time()
            amount = work()
            if number:
                rates.rates[name].append(amount / (time.process_time() - began_s))
    return rates


def table(rates: Rates, peer: str) -> list[str]:
    """Write readings as a Markdown table.

    Args:
        rates: The readings.
        peer: Whom the ratios are against.

    Returns:
        Lines.
    """
    lines = [
        f"| system | {rates.unit} per CPU-s (range) | ratio to {peer} (range over rounds) |",
        "|---|---|---|",
    ]
    for name, readings in rates.rates.items():
        ratio, low, high = rates.ratio(name, peer)
        lines.append(
            f"| {name} | {rates.median(name):.0f} ({min(readings):.0f}-{max(readings):.0f}) "
            f"| {ratio:.2f} ({low:.2f}-{high:.2f}) |"
        )
    return lines
