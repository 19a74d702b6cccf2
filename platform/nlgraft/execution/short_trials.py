"""How many trials a worker may be handed at once: several if they are short."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nlgraft.execution.events import SweepTrial
from nlgraft.pipeline.stage import Work

BATCH_S = 0.5
"""Time that a batch may take: what the driver learns of a sweep, and when it can stop it, is as old."""

MAX_BATCH = 32
_NUM_TIMED = 4

_Kind = tuple[tuple[str, Work | None], ...]


class ShortTrials:
    """Durations of the newest trials by kind: the names of their stages and the sizes of their trainings.

    Starting a Tune trial takes some 15 ms of CPU time, in the driver, the worker and Ray, whatever it does.
    """

    def __init__(self) -> None:
        self._newest_s: dict[_Kind, deque[float]] = {}

    def note(self, trial: SweepTrial, seconds: float) -> None:
        """Note how long a finished trial took."""
        self._newest_s.setdefault(_kind(trial), deque(maxlen=_NUM_TIMED)).append(seconds)

    def num_at_once(self, trial: SweepTrial) -> int:
        """Return how many trials like this one fit into a batch; 1 until some of them were timed."""
        newest_s = self._newest_s.get(_kind(trial), ())
        if len(newest_s) < _NUM_TIMED:
            return 1
        # By the slowest, since idle workers get nothing of a batch that takes longer than it should.
        return max(1, min(MAX_BATCH, int(BATCH_S / max(*newest_s, BATCH_S / MAX_BATCH))))

    def like(self, first: SweepTrial, waiting: Sequence[SweepTrial], limit: int) -> list[SweepTrial]:
        """Select the trials next in a queue, ``limit`` at most, that fit into a batch behind its first."""
        num = min(self.num_at_once(first) - 1, limit)
        return [one for one in waiting[: max(0, num)] if (one.kind, _kind(one)) == (first.kind, _kind(first))]


def _kind(trial: SweepTrial) -> _Kind:
    return tuple((stage.name, stage.work) for stage in trial.graph.stages)
