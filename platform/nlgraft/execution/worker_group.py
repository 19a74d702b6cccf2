"""The shape of a worker group. Not where one is run: that imports torch, which other sweeps do not need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerGroup:
    """Shape of the processes that train one trial.

    Attributes:
        num_workers: Processes.
        cpus_per_worker: CPUs of each; also its number of threads.
        gpus_per_worker: GPUs of each.
        max_failures: How often a lost worker may be replaced; an error of the training itself never is.
        run_directory: Where Ray Train keeps its own small files.
    """

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    max_failures: int
    run_directory: str

    @property
    def device(self) -> str:
        """The torch device of a worker."""
        return "cuda" if self.gpus_per_worker else "cpu"

    def limit_threads(self) -> None:
        """Use as many threads as CPUs were asked for: spinning threads slow every trial on the machine."""
        import torch

        torch.set_num_threads(max(1, int(self.cpus_per_worker)))
