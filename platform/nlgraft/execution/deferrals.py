"""Trials that found one of their stages being computed by another sweep, and are tried again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from nlgraft.execution.events import SweepTrial

_PAUSE_S = 5.0
_LOOK_S = 15.0
"""A deferred trial that runs again for less than this may find its stage busy once more."""


class Deferrals:
    """Remembers when trials were deferred, and for whom.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._not_before_s: dict[str, float] = {}
        self._last = ""

    def add(self, trial: SweepTrial, owner: str) -> str | None:
        """Note that ``owner`` computes a stage of a trial; return that as text if it is news."""
        self._not_before_s[trial.key] = self._clock() + _PAUSE_S
        before, self._last = self._last, f"{trial.name} waits for a stage that {owner} is computing"
        return None if self._last == before else self._last

    def is_over(self, trial: SweepTrial) -> bool:
        """Tell if a trial may be tried."""
        return self._not_before_s.get(trial.key, -math.inf) <= self._clock()

    def awaited(self, running: Iterable[str]) -> str | None:
        """Describe what is waited for, given the keys of the trials that run; None if one computes."""
        # Each deferred trial runs for a moment again and again, to find its stage still busy.
        latest_s = self._clock() - _LOOK_S
        is_waiting = all(self._not_before_s.get(key, -math.inf) > latest_s for key in running)
        return self._last if is_waiting and self._last else None
