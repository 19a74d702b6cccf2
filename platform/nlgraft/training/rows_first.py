"""Training that begins with some rows of some tables alone: those that a pretrained model did not learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nlgraft.errors import ContractError


@dataclass(frozen=True)
class RowsFirst:
    """In the first steps only some rows learn, then all that learns at all.

    All else stays bit for bit as it was: it has no gradient, so neither moments nor a part in the gradient's
    norm, and no weight decay. The count of steps, and with it the learning rate, goes on where all join in.

    Attributes:
        num_steps: Steps in which only these rows learn.
        rows: Which rows learn, bool [V], by name of the parameter, whose first axis has length V.
    """

    num_steps: int
    rows: Mapping[str, Tensor]

    def check(self, model: nn.Module) -> None:
        """Make sure that the rows can learn.

        Args:
            model: On which ``choose_trained`` has run.

        Raises:
            ContractError: A parameter does not exist, does not learn or has another number of rows, or no row
                is left to learn.
        """
        parameters = dict(model.named_parameters())
        for name, rows in self.rows.items():
            if name not in parameters or not parameters[name].requires_grad:
                raise ContractError(
                    f"rows of '{name}' are to learn first, but it does not learn at all; leave it out of "
                    "train.freeze, and name it in train.train_only if that is given"
                )
            if len(rows) != len(parameters[name]):
                raise ContractError(f"'{name}' has {len(parameters[name])} rows, {len(rows)} were named")
        if not any(bool(rows.any()) for rows in self.rows.values()):
            raise ContractError("no row is new, so none can learn first; ask for 0 such steps")

    def mask_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the gradients of all but the rows away.

        Args:
            optimizer: AdamW of ``make_optimizer``.
        """
        for name, parameter, _ in _parameters(optimizer):
            if name not in self.rows:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad[~self._of(name, parameter)] = 0.0

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimiser step whose weight decay is that of the rows alone.

        Args:
            optimizer: AdamW of ``make_optimizer``; its decay is decoupled, so it may act before the update.
        """
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for name, parameter, group in _parameters(optimizer):
            if name in self.rows and group["weight_decay"]:
                parameter[self._of(name, parameter)] *= 1 - group["lr"] * group["weight_decay"]
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        optimizer.step()
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def _of(self, name: str, parameter: Tensor) -> Tensor:
        return self.rows[name].to(parameter.device)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, dict[str, float]]]:
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            yield name, parameter, group
