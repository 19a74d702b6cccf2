"""What one trial, and all trials of a study, may hold of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nlgraft.basics.wording import count
from nlgraft.study.data.part import Duration, Part


class WorkerRange(Part):
    """A number of workers that follows what the cluster has."""

    min: int = Field(ge=1)
    """A trial waits until it can have so many."""
    max: int = Field(ge=1)
    """It takes no more."""


class Resources(Part):
    """Resources of one trial."""

    workers: Annotated[int, Field(ge=1)] | WorkerRange = 1
    """Processes that train one trial together; or ``{min: 1, max: 4}``: as many of them as there is room for,
    fewer when a node is lost, more when one joins. Results do not depend on their number."""
    cpus_per_worker: int = Field(default=1, ge=1)
    """CPU cores of a worker."""
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """GPUs of a worker; a fraction shares one GPU between trials of one worker."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Most trials at once; none: as many as fit."""
    max_cpus: int | None = Field(default=None, ge=1)
    """Most CPUs that all trials hold at once, so that others find room on a shared cluster; none: all."""
    max_gpus: float | None = Field(default=None, gt=0)
    """The same for GPUs."""
    max_failures: int = Field(default=2, ge=0)
    """Number of times that a trial is tried again after the loss of its worker. Losses of a whole node, as of
    a spot machine, are counted apart; a trial survives fifty of them."""
    stall_timeout: Duration | None = None
    """Longest time that a training may report nothing (it reports every 50 steps and after an evaluation):
    seconds, ``30m`` or ``PT30M``. Its trial then fails, with the stacks of its threads; none: no limit."""

    @property
    def min_workers(self) -> int:
        """Fewest processes that train one trial."""
        return self.workers.min if isinstance(self.workers, WorkerRange) else self.workers

    @property
    def max_workers(self) -> int:
        """Most processes that train one trial."""
        return self.workers.max if isinstance(self.workers, WorkerRange) else self.workers

    @property
    def workers_text(self) -> str:
        """The number of workers of a trial, for people: ``1 to 4 workers``."""
        is_range = self.min_workers < self.max_workers
        return (f"{self.min_workers} to " if is_range else "") + count(self.max_workers, "worker")

    @property
    def per_trial(self) -> dict[str, float]:
        """Most resources that one trial holds while it runs, by Ray's names."""
        return self.of_workers(self.max_workers)

    def of_workers(self, number: int) -> dict[str, float]:
        """Resources of so many workers, by Ray's names."""
        return {"CPU": float(number * self.cpus_per_worker), "GPU": number * self.gpus_per_worker}

    @property
    def caps(self) -> dict[str, float]:
        """Most that all trials of the study hold at once, by Ray's names; a name left out has no limit."""
        caps = {"CPU": self.max_cpus, "GPU": self.max_gpus}
        return {kind: float(cap) for kind, cap in caps.items() if cap is not None}
