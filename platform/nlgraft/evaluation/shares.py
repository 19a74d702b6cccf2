"""Evaluation by a group of workers: each computes some of the batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """What a worker computes of an evaluation: every ``size``-th batch, so that batches stay the same.

    Attributes:
        rank: Number of the worker.
        size: Number of workers.
    """

    rank: int = 0
    size: int = 1

    def of(self, batches: Iterable[T]) -> Iterator[T]:
        """Select this worker's batches."""
        return islice(batches, self.rank, None, self.size)

    def gather(self, part: T) -> list[T]:
        """Collect the parts of all workers on each of them; every worker must call it."""
        parts = [part] * self.size
        if self.size > 1:
            dist.all_gather_object(parts, part)
        return parts

    def gather_rows(self, rows: dict[int, T]) -> list[T]:
        """Collect what all workers computed, by the number of its row; return it in the order of the rows."""
        whole = {number: row for part in self.gather(rows) for number, row in part.items()}
        return [whole[number] for number in range(len(whole))]


_WHOLE = Share()
SHARE: ContextVar[Share] = ContextVar("share", default=_WHOLE)
"""Set where all workers evaluate the same; outside of that each evaluation is whole."""
