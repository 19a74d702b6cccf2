"""Interleaved measurements: contestants alternate step by step, so that other load affects all alike."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nlgraft.nn.modes import is_accelerator, synchronize


@dataclass
class Rates:
    """Work per second of several contestants, measured in turns.

    Attributes:
        unit: What is counted.
        rates: One reading per round, by contestant.
        second: What is a second of work: of a CPU, or of the clock.
    """

    unit: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    second: str = "CPU-s"

    def median(self, name: str) -> float:
        """The median reading of a contestant."""
        return statistics.median(self.rates[name])

    def ratio(self, name: str, peer: str) -> tuple[float, float, float]:
        """Ratio of medians, and the lowest and highest ratio of any one round."""
        rounds = [a / b for a, b in zip(self.rates[name], self.rates[peer], strict=True)]
        return self.median(name) / self.median(peer), min(rounds), max(rounds)


class Finished(Exception):
    """Raised inside a loop that has taken its last turn."""


class Turns:
    """A loop of somebody else's that works in turns, in a thread of its own.

    The loop calls ``pause`` with the amount of work since its last turn, and waits there. Only one of the two
    threads ever runs, so the CPU time of the process between two turns is the loop's.
    """

    def __init__(self, run: Callable[[Callable[[float], None]], object]) -> None:
        """Set up the loop: ``run`` is called with ``pause`` at the first turn."""
        self._run = run
        self._amount, self._is_over = 0.0, False
        self._error: BaseException | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __call__(self) -> float:
        """Let the loop take a turn.

        Returns:
            The amount of work.
        """
        if not self._thread.is_alive():
            self._thread.start()
        self._go.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self._amount

    def close(self) -> None:
        """Let the loop end where it waits."""
        self._is_over = True
        self._go.release()
        self._thread.join()

    def _pause(self, amount: float) -> None:
        self._amount = amount
        self._paused.release()
        self._go.acquire()
        if self._is_over:
            raise Finished

    def _work(self) -> None:
        self._go.acquire()
        try:
            self._run(self._pause)
        except Finished:
            return
        except BaseException as error:
            self._error = error
        else:
            self._error = RuntimeError("the loop ended before its last turn")
        self._paused.release()


def interleave(
    unit: str,
    contestants: Mapping[str, Callable[[], float]],
    num_rounds: int,
    device: str = "cpu",
    *,
    is_closing: bool = True,
) -> Rates:
    """Let every contestant work once per round; the first round warms up and is not counted.

    Args:
        unit: What the contestants count.
        contestants: Each does a portion of work and returns how much it was.
        num_rounds: Counted rounds.
        device: Where they compute.
        is_closing: Whether loops that work in turns end with the last round.

    Returns:
        Amount per CPU-second of this process, or where another device computes, per second until it is done.
    """
    clock, second = (time.perf_counter, "s") if is_accelerator(device) else (time.process_time, "CPU-s")
    rates = Rates(unit, {name: [] for name in contestants}, second)
    for number in range(num_rounds + 1):
        for name, work in contestants.items():
            synchronize(device)
            began_s = clock()
            amount = work()
            synchronize(device)
            if number:
                rates.rates[name].append(amount / (clock() - began_s))
    for work in contestants.values():
        if is_closing and isinstance(work, Turns):
            work.close()
    return rates


def table(rates: Rates, peer: str) -> list[str]:
    """Write readings as a Markdown table, with ratios to a peer."""
    lines = [
        f"| system | {rates.unit} per {rates.second} (range) | ratio to {peer} (range over rounds) |",
        "|---|---|---|",
    ]
    for name, readings in rates.rates.items():
        ratio, low, high = rates.ratio(name, peer)
        lines.append(
            f"| {name} | {rates.median(name):.0f} ({min(readings):.0f}-{max(readings):.0f}) "
            f"| {ratio:.2f} ({low:.2f}-{high:.2f}) |"
        )
    return lines
