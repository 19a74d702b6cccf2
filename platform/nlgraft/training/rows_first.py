"""Steps that train only the new rows of an exchanged vocabulary, before the whole model is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError


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

    def mask_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Remove the gradients of everything but the rows."""
        for name, parameter, _ in _parameters(optimizer):
            if name not in self.rows:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad[~self._of(name, parameter)] = 0.0

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step of AdamW whose weight decay acts on the rows alone.

        The decay is decoupled from the gradient, so it can be applied before the update.
        """
        # AdamW would decay whole tables, so it runs without decay here.
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
