"""One optimiser step: the gradient of a global batch over all workers, divided by its number of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nlgraft.basics.errors import ContractError, DataError, NlgraftError
from nlgraft.nn.modes import set_seed
from nlgraft.training.losses import Loss, Objective
from nlgraft.training.seeds import derive_seed
from nlgraft.training.sharding import divided_like, is_divided, local, rows_of_part, whole
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, TrainConfig


@dataclass(frozen=True)
class RowsFirst:
    """First steps in which only some rows are trained.

    Everything else stays unchanged to the bit: without a gradient it has no moments, no share in the
    gradient's norm and no weight decay. The step count, and with it the learning rate, continues when the
    rest joins in.

    Attributes:
        num_steps: Steps in which only these rows are trained.
        rows: The trained rows, bool [V], by name of the parameter, whose first axis has length V.
    """

    num_steps: int
    rows: Mapping[str, Tensor]

    def check(self, model: nn.Module) -> None:
        """Verify that the rows can be trained in a model on which ``choose_trained`` has run.

        Raises:
            ContractError: A parameter is missing, frozen or has another number of rows, or no row is
                selected.
        """
        parameters = dict(model.named_parameters())
        for name, rows in self.rows.items():
            if name not in parameters or not parameters[name].requires_grad:
                raise ContractError(
                    f"rows of '{name}' are to be trained first, but it is frozen; let it learn, or set the "
                    "number of such steps to 0"
                )
            if len(rows) != len(parameters[name]):
                raise ContractError(f"'{name}' has {len(parameters[name])} rows, the mask has {len(rows)}")
        if not any(bool(rows.any()) for rows in self.rows.values()):
            raise ContractError(
                "no row is new, so none can be trained first; set the number of such steps to 0"
            )

    @torch.no_grad()
    def mask_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Remove the gradients of everything but the rows."""
        for name, parameter, _ in _parameters(optimizer):
            if name not in self.rows:
                parameter.grad = None
            elif parameter.grad is not None:
                local(parameter.grad)[~self._of(name, parameter)] = 0.0

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step of AdamW whose weight decay acts on the rows alone.

        The decay is decoupled from the gradient, so it can be applied before the update.
        """
        # AdamW would decay whole tables, so it runs without decay here.
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for name, parameter, group in _parameters(optimizer):
            if name in self.rows and group["weight_decay"]:
                decay = group["lr"] * group["weight_decay"]
                local(parameter)[self._of(name, parameter)] *= 1 - decay
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        optimizer.step()
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def _of(self, name: str, parameter: Tensor) -> Tensor:
        """Select the rows of this worker's part of a parameter."""
        return rows_of_part(self.rows[name], parameter).to(parameter.device)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, dict[str, float]]]:
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            yield name, parameter, group


Rows = NDArray[np.int64]


class TrainingDiverged(NlgraftError, FloatingPointError):
    """A loss, a gradient or a dev metric is not finite."""


class TrainData(Protocol):
    """Interface of the data that the loop trains on.

    **Determinism**: both methods depend on their arguments alone, not on earlier calls.
    """

    def epoch(self, index: int) -> Sequence[Rows]:
        """Return the rows of each global batch of an epoch, in training order."""
        ...

    def batch(self, rows: Rows, epoch: int) -> Any:
        """Make the batch of some rows; it has ``to(device)``."""
        ...


@dataclass(frozen=True)
class StepSums:
    """Sums over one step and all workers.

    Attributes:
        tokens: Tokens of the global batch.
        losses: Sums over these tokens: ``loss`` and the objective's terms.
        gradient_norm: Norm of the mean gradient before clipping; None if it is not clipped.
    """

    tokens: int
    losses: dict[str, float]
    gradient_norm: float | None


class ObjectiveModule(nn.Module):
    """The objective as a module, so that all computation of a step lies inside its forward."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, batch: Any) -> Loss:
        """Compute the loss of a batch."""
        return self._objective(self.model, batch)


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        model: Initialised from the stage's seed; moved to the context's device and changed in place. It ends
            with the resulting weights on every worker.
        objective: Loss of a batch, summed over tokens, and their number.
        data: Makes the batches.
        config: Length, precision, learning rates, evaluation, selection of the result.
        learned: Parameters that learn, and learning rates of their own.
    """

    model: nn.Module
    objective: Objective
    data: TrainData
    config: TrainConfig
    learned: LearnedParameters = ALL_LEARNED


@dataclass
class Stepper:
    """Takes optimiser steps.

    Attributes:
        module: Objective and model, wrapped for the group of workers.
        training: Batches and settings.
        optimizer: That of ``make_optimizer``.
        workers: The worker group.
        seed: Seed of dropout and any other draw of a forward pass.
        rows_first: Rows that are trained alone in the first steps; None: everything from the start.
    """

    module: nn.Module
    training: Training
    optimizer: torch.optim.Optimizer
    workers: Workers
    seed: int
    rows_first: RowsFirst | None
    _loss_names: Sequence[str] = ()

    def take(self, step: int, batches: Sequence[tuple[int, Rows]]) -> StepSums:
        """Add up the gradients of a step's batches, divide by their tokens, clip, update.

        Args:
            step: Step, counted from 1.
            batches: Epoch and rows of each global batch.

        Raises:
            TrainingDiverged: The loss or the gradient is not finite; the weights were not updated.
            DataError: There was no token to train on.
        """
        sums: dict[str, Tensor] = {}
        my_tokens = 0
        for number, (epoch, rows) in enumerate(batches):
            # Dropout depends on the step alone, so a resumed training draws the same; ranks draw different
            # masks.
            set_seed(derive_seed(self.seed, "step", step, number, self.workers.rank), self.workers.device)
            loss = self._add_gradient(rows, epoch, is_last=number == len(batches) - 1)
            if loss is None:
                continue
            my_tokens += loss.num_tokens
            for name, value in {"loss": loss.loss_sum, **loss.terms}.items():
                sums[name] = sums.get(name, 0.0) + value.detach().double()
        if not self._loss_names:
            # another worker may have no row of the first batch; the first worker always has one
            self._loss_names = self.workers.compute_on_first(lambda: list(sums))
        alone = self.rows_first if self.rows_first and step <= self.rows_first.num_steps else None
        if alone is not None:
            # Before the norm is measured, in which the frozen rows must have no share.
            alone.mask_gradients(self.optimizer)
        seen = self._measure(my_tokens, [sums.get(name, 0.0) for name in self._loss_names], step)
        self._scale_gradient(seen)
        for group in self.optimizer.param_groups:
            rate = self.training.config.learning_rate(step) * group["lr_multiplier"]
            # A checkpoint written before groups could be frozen at first has no such entry.
            group["lr"] = rate if step > group.get("frozen_steps", 0) else 0.0
        if alone is None:
            self.optimizer.step()
        else:
            alone.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        return seen

    def _measure(
        self,
        my_tokens: int,
        my_losses: Sequence[Tensor | float],
        step: int,
    ) -> StepSums:
        """Sum the step's counts and losses over the workers; all numbers leave the device at once."""
        device = self.workers.device
        mine = [
            torch.as_tensor(value, dtype=torch.float64, device=device) for value in (my_tokens, *my_losses)
        ]
        totals = self.workers.sum(torch.stack(mine))
        if self.training.config.clip_norm is not None:
            norm = whole(torch.nn.utils.get_total_norm(self._gradients()))
            totals = torch.cat([totals, norm.to(totals)[None]])
        tokens, *values = totals.tolist()
        losses = dict(zip(self._loss_names, values, strict=False))
        if not math.isfinite(losses["loss"]):
            raise TrainingDiverged(f"the loss is {losses['loss']} at step {step}")
        if not tokens:
            raise DataError(f"the batches of step {step} hold no token to train on")
        # DDP and FSDP divide the sum of the workers' gradients by their number
        norm = values[-1] * self.workers.size / tokens if self.training.config.clip_norm is not None else None
        if norm is not None and not math.isfinite(norm):
            raise TrainingDiverged(f"the gradient's norm is {norm} at step {step}")
        return StepSums(int(tokens), losses, norm)

    def _add_gradient(
        self,
        rows: Rows,
        epoch: int,
        *,
        is_last: bool,
    ) -> Loss | None:
        """Run this worker's rows of a global batch forward and backward; None if it has none."""
        mine = rows[self.workers.rank :: self.workers.size]
        has_rows = len(mine) > 0
        # All wait for a gradient from every worker: one without rows sends that of another's row times zero
        batch = self.training.data.batch(mine if has_rows else rows[:1], epoch).to(self.workers.device)
        is_bf16 = self.training.config.precision == "bf16"
        module = self.module
        is_unsynchronised = isinstance(module, DistributedDataParallel) and not is_last
        with module.no_sync() if is_unsynchronised else nullcontext():  # type: ignore[operator]
            with torch.autocast(self.workers.device.type, dtype=torch.bfloat16, enabled=is_bf16):
                loss: Loss = module(batch)
            (loss.loss_sum if has_rows else loss.loss_sum * 0.0).backward()
        return loss if has_rows else None

    def _gradients(self) -> list[Tensor]:
        parameters = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def _scale_gradient(self, seen: StepSums) -> None:
        """Turn summed gradients into the gradient of the mean over all tokens, and clip it."""
        scale = self.workers.size / seen.tokens
        if self.training.config.clip_norm is not None and seen.gradient_norm is not None:
            # The constant is that of torch's clip_grad_norm_.
            scale *= min(1.0, self.training.config.clip_norm / (seen.gradient_norm + 1e-6))
        # One kernel for all gradients instead of one each.
        torch._foreach_mul_(self._gradients(), scale)  # pyright: ignore[reportPrivateImportUsage]


# Communication between the processes of one training; a single worker sends nothing.


Value = TypeVar("Value")


@dataclass(frozen=True)
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

    rank: int
    size: int
    device: torch.device

    def __post_init__(self) -> None:
        if self.size > 1 and not (dist.is_available() and dist.is_initialized()):
            raise ContractError(
                f"{self.size} workers but no torch process group; start one before training "
                "(Ray's TorchTrainer does) or use one worker"
            )

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

    @torch.no_grad()
    def broadcast(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Overwrite tensors [...], perhaps divided ones, with the first worker's values of the same names."""
        for name, tensor in tensors.items():
            if is_divided(tensor):
                value = values[name] if self.is_first else torch.empty(tensor.shape, dtype=tensor.dtype)
                tensor.copy_(divided_like(tensor, value))
                continue
            if self.is_first:
                tensor.copy_(values[name])
            if self.size > 1:
                on_device = tensor.to(self.device)
                dist.broadcast(on_device, 0)
                tensor.copy_(on_device)

    def gather(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, whole in their own shape, on the first worker; all workers must exhaust it."""
        for name, part in parts.items():
            value = whole(part.detach())
            if self.is_first:
                yield name, value
