"""The threads that this process computes with: set here, and counted for the manifests of its stages."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Threads:
    """Number of threads of PyTorch in this process: its own ones, and those that a stage borrows.

    PyTorch keeps the number for each thread of Python, so the thread that computes has to set it.

    Attributes:
        stage: Fingerprint of the stage that is computed; empty between stages.
        now: The number now; None as long as it was not set here.
    """

    def __init__(self) -> None:
        self.stage = ""
        self.now: int | None = None
        self._own: int | None = None
        self._most: int | None = None
        self._give_back: Callable[[], None] | None = None

    def set(self, num_threads: int) -> None:
        """Compute with so many threads from now on.

        PyTorch is not imported for this: that takes seconds which a trial of stored stages need not pay.
        """
        self._own = num_threads
        self._apply(num_threads)

    def borrow(self, num_threads: int, give_back: Callable[[], None]) -> None:
        """Compute with so many threads until the stage ends; ``give_back`` is called then."""
        self._give_back = give_back
        self._apply(num_threads)

    @contextmanager
    def of_stage(self, fingerprint: str) -> Iterator[None]:
        """Count the threads of a stage, and return at its end those that it has borrowed."""
        self.stage, self._most = fingerprint, self.now
        try:
            yield
        finally:
            self.stage = ""
            give_back, self._give_back = self._give_back, None
            if give_back is not None and self._own is not None:
                self._apply(self._own)
                give_back()

    def most(self) -> int | None:
        """Return the most threads since the stage began; None if it is not known."""
        if self._most is not None:
            return self._most
        torch = sys.modules.get("torch")
        return None if torch is None else torch.get_num_threads()

    def _apply(self, num_threads: int) -> None:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # read when torch is imported
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(num_threads)
        self.now = num_threads
        self._most = max(num_threads, self._most or 0)


THREADS = Threads()


def num_idle_cpus(seconds: float = 0.5) -> float:
    """Measure how many CPUs of this machine compute nothing; infinite where the kernel does not tell."""
    before = _idle_s()
    time.sleep(seconds)
    after = _idle_s()
    return math.inf if before is None or after is None else (after - before) / seconds


def _idle_s() -> float | None:
    """Seconds that all CPUs together have been idle since the machine started."""
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
