"""The actor that trials and their driver share; apart from `trainable`, so that it loads no ray.tune."""

from __future__ import annotations

import ray


@ray.remote(num_cpus=0)
class SweepBoard:
    """Specs and stop requests of the trials that run, readable from every worker.

    Specs are no part of the Tune configs, since Tune keeps several copies of the config of every trial that
    it ran.
    """

    def __init__(self) -> None:
        self._specs: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def add(self, trial_id: str, spec: str) -> None:
        """Keep the spec of a trial that is about to run."""
        self._specs[trial_id] = spec

    def spec(self, trial_id: str) -> str:
        """Return the spec of a trial."""
        return self._specs[trial_id]

    def remove(self, trial_id: str) -> None:
        """Forget a trial that has ended."""
        self._specs.pop(trial_id, None)
        self._reasons.pop(trial_id, None)

    def request_stop(self, trial_id: str, reason: str) -> None:
        """Ask a trial to end itself; for a `KillReason`, to be run again later."""
        self._reasons[trial_id] = reason

    def stop_reason(self, trial_id: str) -> str | None:
        """Return why a trial should end, or None."""
        return self._reasons.get(trial_id)
