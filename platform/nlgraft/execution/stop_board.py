"""The actor that keeps stop requests; apart from `trainable`, whose ray.tune its process does not need."""

from __future__ import annotations

import ray


@ray.remote(num_cpus=0)
class StopBoard:
    """Stop requests of a sweep by trial, readable from every worker."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def request_stop(self, trial_id: str, reason: str) -> None:
        """Ask a trial to end itself; for a `KillReason`, to be run again later."""
        self._reasons[trial_id] = reason

    def stop_reason(self, trial_id: str) -> str | None:
        """Return why a trial should end, or None."""
        return self._reasons.get(trial_id)
