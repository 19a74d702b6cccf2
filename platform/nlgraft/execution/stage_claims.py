"""The stages of a sweep: stored, being computed by a running trial, or failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.plan import SweepTrial

LOOK_SHARE = 0.02
"""Share of the driver's time that may go into looking up what the store holds, and into outlooks: each
goes through every trial that is left."""
_PAUSE_S = 0.5


class StageClaims:
    """Tracks which stages of a sweep are stored, being computed, or failed.

    Attributes:
        present: Fingerprints of the stages that the store is known to hold.

    Args:
        store: The artifact store.
        clock: Monotonic seconds.
    """

    def __init__(self, store: ArtifactStore, clock: Callable[[], float]) -> None:
        self.present: set[str] = set()
        self._store = store
        self._clock = clock
        self._claimed: dict[str, str] = {}
        self._released: list[Stage] = []
        self._failed: dict[str, str] = {}
        self._next_look_s = -math.inf

    def claim(self, trial: SweepTrial) -> None:
        """Note that a trial starts and computes its missing stages."""
        for stage in trial.graph.stages:
            if stage.fingerprint not in self.present:
                self._claimed[stage.fingerprint] = trial.key

    def release(self, trial: SweepTrial) -> None:
        """Note that a trial has ended; what it published is seen by the next look."""
        for stage in trial.graph.stages:
            if self._claimed.get(stage.fingerprint) == trial.key:
                del self._claimed[stage.fingerprint]
                self._released.append(stage)

    def awaited(self, trial: SweepTrial) -> Stage | None:
        """Return the first stage of a trial that a running one is computing."""
        for stage in trial.graph.stages:
            if stage.fingerprint in self._claimed and stage.fingerprint not in self.present:
                return stage
        return None

    def look(self, waiting: Iterable[SweepTrial]) -> None:
        """Look up which claimed or wanted stages have been published since the last look."""
        # What a trial that has ended published is seen at once, everything else after a pause.
        self.present |= {stage.fingerprint for stage in self._released if self._store.has(stage)}
        self._released.clear()
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        fingerprints = {stage.fingerprint for trial in waiting for stage in trial.graph.stages}
        fingerprints |= set(self._claimed)
        self.present |= self._store.finished(fingerprints - self.present)
        took_s = self._clock() - now_s
        self._next_look_s = self._clock() + max(_PAUSE_S, took_s / LOOK_SHARE)

    def remember_failed(self, record: TrialRecord) -> None:
        """Keep the stage that failed: every trial that needs it would fail in the same way."""
        for stage in record.stages:
            if stage["decision"] == "failed":
                self._failed[stage["fingerprint"]] = record.reason

    @property
    def has_failed(self) -> bool:
        """True if a stage has failed."""
        return bool(self._failed)

    def doom(self, trial: SweepTrial) -> str | None:
        """Return why a trial is bound to fail; None if it may succeed, or while a stage of it is computed."""
        stages = [stage.fingerprint for stage in trial.graph.stages]
        doomed = [key for key in stages if key in self._failed]
        is_busy = any(key in self._claimed for key in stages)
        return self._failed[doomed[0]] if doomed and not is_busy else None
