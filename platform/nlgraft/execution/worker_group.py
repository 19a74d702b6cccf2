"""Shape of a worker group; apart from `distributed_stages`, which imports torch as a driver need not."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.pipeline.threads import THREADS


@dataclass(frozen=True)
class WorkerGroup:
    """Shape of the processes that train one trial.

    Attributes:
        num_workers: Their number, or the most of them.
        cpus_per_worker: CPUs of each worker; also its number of threads.
        max_failures: How often a worker is replaced that was lost without its node; an error of the training
            itself is not retried.
        stall_s: Longest time without progress of a training; None: without limit.
        run_directory: Where Ray Train keeps its own small files.
        least_workers: With how few of them a trial goes on; None: only with all.
        growth_s: Time between looks for more of them: to grow costs the steps since the last checkpoint.
    """

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    max_failures: int
    run_directory: str
    stall_s: float | None = None
    least_workers: int | None = None
    growth_s: float = 300.0

    @property
    def shape(self) -> dict[str, float]:
        """Resources of a worker, by Ray's names."""
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    @property
    def device(self) -> str:
        """The torch device of a worker."""
        return "cuda" if self.gpus_per_worker else "cpu"

    @property
    def num_threads(self) -> int:
        """Threads of a worker: one per CPU."""
        return max(1, int(self.cpus_per_worker))

    def limit_threads(self) -> None:
        """Use one thread per requested CPU: spinning threads slow every other trial on the machine."""
        THREADS.set(self.num_threads)
