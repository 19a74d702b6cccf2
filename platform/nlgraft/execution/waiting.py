"""What a run waits for, told while that lasts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from nlgraft.basics.wording import count, duration

_PAUSE_S = 30.0


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
            self._since_s, self._next_s = now_s, now_s + _PAUSE_S
        if now_s >= self._next_s:
            self._next_s = now_s + _PAUSE_S
            self._tell(f"waiting for {duration(now_s - self._since_s)}: {reason}")
        return now_s - self._since_s


def unplaced(groups: Mapping[str, Mapping[str, Any]], shape: Mapping[str, float], num_waiting: int) -> int:
    """Count the trials of a sweep that wait for their place.

    Args:
        groups: Ray's table of the placement groups of all jobs.
        shape: Resources of each of their bundles.
        num_waiting: Trials of this sweep whose process, or whose worker group, has not begun. One with a
            range of workers has not even a placement group before there is room for the fewest.
    """
    bundle_shape = {name: amount for name, amount in shape.items() if amount}
    states = Counter(
        group["state"]
        for group in groups.values()
        if all(bundle == bundle_shape for bundle in group["bundles"].values())
    )
    num_pending = states["PENDING"] + states["RESCHEDULING"]
    return min(num_waiting, max(num_pending, num_waiting - states["CREATED"]))


def place_text(num_trials: int, shape: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Describe what trials wait for that have no place on the cluster."""
    each = ", ".join(f"{amount:g} {name}" for name, amount in shape.items() if amount)
    free_text = ", ".join(f"{free.get(name, 0.0):g} {name}" for name, amount in shape.items() if amount)
    return (
        f"{count(num_trials, 'trial')} without a place on the cluster: each worker needs {each}, free are "
        f"{free_text} in all; other jobs hold the rest, or no node has so much at once (`ray status`)"
    )
