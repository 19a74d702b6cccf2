"""Work that is repeated as often as its cost allows, and waits that are told while they last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nlgraft.basics.wording import duration

_TELL_PAUSE_S = 30.0


class Pacer:
    """Repeats work after a pause, and lets it have no more than a share of the time.

    Args:
        pause_s: Shortest time from the end of the work to its repetition.
        share: Share of the time that the work may take.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        pause_s: float,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
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


class Wait:
    """Tells every 30 s what is waited for.

    Args:
        tell: Receives a line.
        clock: Monotonic seconds; replaced in tests.
    """

    def __init__(self, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._since_s: float | None = None
        self._next_s = 0.0

    def poll(self, reason: str | None) -> float:
        """Return for how many seconds has been waited; called often.

        Args:
            reason: What is waited for; None if for nothing.
        """
        now_s = self._clock()
        if reason is None:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s, self._next_s = now_s, now_s + _TELL_PAUSE_S
        if now_s >= self._next_s:
            self._next_s = now_s + _TELL_PAUSE_S
            self._tell(f"waiting for {duration(now_s - self._since_s)}: {reason}")
        return now_s - self._since_s
