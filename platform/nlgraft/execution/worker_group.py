"""Shape of a worker group; apart from `distributed_stages`, which imports torch as a driver need not."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerGroup:
    """Shape of the processes that train one trial.

    Attributes:
        cpus_per_worker: CPUs of each worker; also its number of threads.
        max_failures: How often a lost worker is replaced; an error of the training itself is not retried.
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
        """Use one thread per requested CPU: spinning threads slow every other trial on the machine.

        PyTorch is not imported for this: that takes seconds which a trial of stored stages need not pay.
        """
        num_threads = max(1, int(self.cpus_per_worker))
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # read when torch is imported
        if "torch" in sys.modules:
            import torch

            torch.set_num_threads(num_threads)
