"""What the processes of one training say to each other. With one worker nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nlgraft.errors import ContractError

Value = TypeVar("Value")


class Workers:
    """The worker group of a training.

    **Determinism**: every worker must call the same methods in the same order.

    Attributes:
        rank: This process's number.
        size: Number of processes.
        device: Where tensors for the others are put: the CPU for gloo, the GPU for nccl.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """Join the worker group.

        Args:
            rank: This process's number.
            size: Number of processes.
            device: Where tensors for the others are put.

        Raises:
            ContractError: There are several workers but no process group.
        """
        if size > 1 and not (dist.is_available() and dist.is_initialized()):
            raise ContractError(
                f"{size} workers but no torch process group; start one before training "
                "(Ray's TorchTrainer does) or use one worker"
            )
        self.rank = rank
        self.size = size
        self.device = device

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, decides and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add numbers over all workers.

        Args:
            values: Any shape [...], the same on each worker, on its device; overwritten.

        Returns:
            The sums [...], on every worker.
        """
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def ask_first(self, question: Callable[[], Value]) -> Value:
        """Let the first worker answer for all.

        Args:
            question: Called on the first worker only.

        Returns:
            Its answer, on every worker.

        Raises:
            Exception: Whatever the question raised, on every worker: none is left waiting.
        """
        if self.size == 1:
            return question()
        answer: list[tuple[Value | None, Exception | None] | None] = [None]
        if self.is_first:
            try:
                answer = [(question(), None)]
            except Exception as error:
                answer = [(None, error)]
        dist.broadcast_object_list(answer, device=self.device)
        received = answer[0]
        assert received is not None
        value, error = received
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def take_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the first worker.

        Args:
            tensors: The same shapes in the same order on each worker.
        """
        if self.size == 1:
            return
        for tensor in tensors:
            on_device = tensor.detach().to(self.device)
            dist.broadcast(on_device, 0)
            with torch.no_grad():
                tensor.copy_(on_device)
