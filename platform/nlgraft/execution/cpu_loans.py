"""CPUs of idle workers that a running trial computes with, while all that is left waits for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from nlgraft.execution.events import SweepTrial
from nlgraft.execution.stage_claims import StageClaims

_PAUSE_S = 1.0
"""How long trials wait before CPUs are lent: a worker that lends can start nothing at once."""

_REFUSED_PAUSE_S = 60.0


class CpuLoans:
    """Decides which trial may borrow, and how long.

    Args:
        stages: The stages of the sweep.
        clock: Monotonic seconds.

    Attributes:
        num: Workers that lend their CPUs now.
    """

    def __init__(self, stages: StageClaims, clock: Callable[[], float]) -> None:
        self.num = 0
        self._stages = stages
        self._clock = clock
        self._not_before_s = math.inf
        self._is_refused = False

    def choose(self, waiting: Iterable[SweepTrial], *, is_idle: bool) -> tuple[str, str] | None:
        """Return the key of the running trial that most others wait for, and the fingerprint of its stage.

        Args:
            waiting: Trials that cannot start.
            is_idle: True if a worker is idle, and every trial that is left is among those.

        Returns:
            None if no CPUs should be lent now.
        """
        awaited = self._awaited(waiting) if is_idle else None
        if not awaited:
            if not self._is_refused:
                self._not_before_s = math.inf
            return None
        # From the first look at which all that is left was waiting, not from the last.
        self._not_before_s = min(self._not_before_s, self._clock() + _PAUSE_S)
        if self._clock() < self._not_before_s:
            return None
        self._is_refused = False
        [(found, _)] = awaited.most_common(1)
        return found

    def begin(self) -> None:
        """Note that a worker lends its CPUs."""
        self.num += 1

    def end(self, *, is_refused: bool) -> None:
        """Note that a worker does so no more; after a refusal (see `SweepBoard.lend`) none does soon."""
        self.num -= 1
        self._not_before_s = self._clock() + _REFUSED_PAUSE_S if is_refused else math.inf
        self._is_refused = is_refused

    def stage_of(self, key: str, waiting: Iterable[SweepTrial]) -> str | None:
        """Return the fingerprint of the stage of a running trial for which most others wait, if any does."""
        stages = [stage for (one, stage), _ in self._awaited(waiting).most_common() if one == key]
        return stages[0] if stages else None

    def _awaited(self, waiting: Iterable[SweepTrial]) -> Counter[tuple[str, str]]:
        stages = [self._stages.awaited(trial) for trial in waiting]
        return Counter(
            (self._stages.claimant(stage), stage.fingerprint) for stage in stages if stage is not None
        )
