"""What a sweep tells every few seconds: what waits for what, and how long it all takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from nlgraft.execution.events import Outlook, SweepTrial
from nlgraft.execution.forecast import Forecast
from nlgraft.execution.stage_claims import LOOK_SHARE, StageClaims

_PAUSE_S = 2.0


class Outlooks:
    """Takes outlooks, as often as their cost allows.

    Args:
        forecast: Durations.
        stages: The stages of the sweep.
        clock: Monotonic seconds.
    """

    def __init__(self, forecast: Forecast, stages: StageClaims, clock: Callable[[], float]) -> None:
        self._forecast = forecast
        self._stages = stages
        self._clock = clock
        self._next_s = -math.inf

    def take(
        self, running: Sequence[SweepTrial], waiting: Sequence[SweepTrial], num_unproposed: int
    ) -> Outlook | None:
        """Return the outlook; None while the last one is young.

        Args:
            running: Trials that run.
            waiting: Trials that are queued.
            num_unproposed: Trials whose configs are not known yet.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return None
        left_s = self._forecast.left(running, waiting, self._stages.present, num_unproposed, now_s)
        awaited = [self._stages.awaited(trial) for trial in waiting]
        held_back = Counter(stage.name for stage in awaited if stage is not None)
        took_s = self._clock() - now_s
        self._next_s = self._clock() + max(_PAUSE_S, took_s / LOOK_SHARE)
        return Outlook(len(running), held_back, left_s)
