"""The threads that this process computes with: set here, and counted for the manifests of its stages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Threads:
    """Number of threads of PyTorch in this process.

    PyTorch keeps the number for each thread of Python, so the thread that computes has to set it.

    Attributes:
        stage: Fingerprint of the stage that is computed; empty between stages.
    """

    def __init__(self) -> None:
        self.stage = ""
        self._number: int | None = None

    def set(self, num_threads: int) -> None:
        """Compute with so many threads from now on.

        PyTorch is not imported for this: that takes seconds which a trial of stored stages need not pay.
        """
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # read when torch is imported
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(num_threads)
        self._number = num_threads

    @contextmanager
    def of_stage(self, fingerprint: str) -> Iterator[None]:
        """Say which stage is computed."""
        self.stage = fingerprint
        try:
            yield
        finally:
            self.stage = ""

    def number(self) -> int | None:
        """Return the number of threads; None if it is not known."""
        if self._number is not None:
            return self._number
        torch = sys.modules.get("torch")
        return None if torch is None else torch.get_num_threads()


THREADS = Threads()
