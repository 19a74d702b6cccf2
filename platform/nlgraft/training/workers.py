"""Communication between the processes of one training; a single worker sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nlgraft.basics.errors import ContractError

Value = TypeVar("Value")


class Workers:
    """The worker group of a training.

    **Determinism**: every worker must call the same methods in the same order.

    Attributes:
        rank: This process's number.
        size: Number of processes.
        device: Device of tensors to send: the CPU for gloo, the GPU for nccl.

    Raises:
        ContractError: There are several workers but no process group.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
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
        """True in the process that evaluates, decides and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor of any shape [...] over all workers, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def compute_on_first(self, compute: Callable[[], Value]) -> Value:
        """Compute a value on the first worker and return it on every worker.

        Raises:
            Exception: Whatever the computation raised, on every worker, so that none is left waiting.
        """
        if self.size == 1:
            return compute()
        answer: list[tuple[Value | None, Exception | None] | None] = [None]
        if self.is_first:
            try:
                answer = [(compute(), None)]
            except Exception as error:
                answer = [(None, error)]
        dist.broadcast_object_list(answer, device=self.device)
        received = answer[0]
        assert received is not None
        value, error = received
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors [...] with those of the first worker."""
        if self.size == 1:
            return
        for tensor in tensors:
            on_device = tensor.detach().to(self.device)
            dist.broadcast(on_device, 0)
            with torch.no_grad():
                tensor.copy_(on_device)
