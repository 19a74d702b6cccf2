"""Work that is repeated as often as its cost allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pacer:
    """Repeats work after a pause, and lets it have no more than a share of the time.

    Args:
        pause_s: Shortest time from the end of the work to its repetition.
        share: Share of the time that the work may take.
        clock: Monotonic seconds.
    """

    def __init__(
        self, pause_s: float, share: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pause_s = pause_s
        self._share = share
        self._clock = clock
        self._next_s = -math.inf

    @property
    def is_due(self) -> bool:
        """True once the pause is over."""
        return self._clock() >= self._next_s

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Do the work in this context; the longer it takes, the longer is the pause after it."""
        began_s = self._clock()
        try:
            yield
        finally:
            ended_s = self._clock()
            self._next_s = ended_s + max(self._pause_s, (ended_s - began_s) / self._share)
