"""Selection of the trained parameters and of their learning rates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from nlgraft.basics.errors import ContractError
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, TrainConfig

MOMENTUM = 0.99
"""Nesterov momentum of the language models of Edunov et al. (2019), section 3.2."""


@runtime_checkable
class _HasMultipliers(Protocol):
    def lr_multipliers(self) -> dict[str, float]: ...


def match_names(patterns: Sequence[str], names: Sequence[str], purpose: str) -> set[str]:
    """Find the names that any of the regular expressions matches anywhere; ``purpose`` goes into the message.

    Raises:
        ContractError: A pattern matches nothing.
    """
    matched: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if re.search(pattern, name)}
        if not matching:
            modules = sorted({name.split(".")[0] for name in names})
            raise ContractError(
                f"{purpose}: pattern '{pattern}' matches no parameter. Names begin with: {', '.join(modules)}"
            )
        matched |= matching
    return matched


def choose_trained(model: nn.Module, learned: LearnedParameters) -> list[str]:
    """Set ``requires_grad`` of every parameter; returns the names of those that are trained.

    Parameters frozen by the model itself (a frozen contextual encoder) stay frozen.

    Raises:
        ContractError: A pattern matches nothing, or no parameter is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = match_names(learned.frozen, names, "frozen")
    chosen = match_names(learned.only, names, "only") if learned.only else set(names)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in chosen and name not in frozen)
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise ContractError(
            f"no parameter is left to train: frozen={list(learned.frozen)} and "
            f"only={list(learned.only)} leave none of {len(names)}"
        )
    return trained


def parameter_groups(
    model: nn.Module, config: TrainConfig, learned: LearnedParameters = ALL_LEARNED
) -> list[dict[str, Any]]:
    """Group the trained parameters by learning-rate multiplier and weight decay, for a torch optimiser.

    A model may have multipliers of its own (``lr_multipliers()``, by prefix of names: finetuned contexts);
    they and those of ``learned`` multiply. Each group carries its ``lr_multiplier``, the number of its
    ``frozen_steps`` and the ``names`` of its parameters.

    Raises:
        ContractError: A group's pattern matches no trained parameter.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    multipliers, frozen_steps = dict.fromkeys(trained, 1.0), dict.fromkeys(trained, 0)
    for group in reversed(learned.groups):  # the first matching group is applied last
        for name in match_names([group.pattern], list(trained), "groups"):
            multipliers[name], frozen_steps[name] = group.lr_multiplier, group.num_frozen_steps
    model_multipliers = model.lr_multipliers() if isinstance(model, _HasMultipliers) else {}
    for prefix, multiplier in model_multipliers.items():
        for name in trained:
            if name.startswith(prefix):
                multipliers[name] *= multiplier
    groups: dict[tuple[float, int, float], dict[str, Any]] = {}
    for name, parameter in trained.items():
        # Biases and the gains of norms are vectors, and decay would only pull norms towards zero.
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        group = groups.setdefault(
            (multipliers[name], frozen_steps[name], decay),
            {
                "params": [],
                "names": [],
                "lr": config.peak_lr * multipliers[name],
                "lr_multiplier": multipliers[name],
                "frozen_steps": frozen_steps[name],
                "weight_decay": decay,
            },
        )
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def make_optimizer(
    model: nn.Module, config: TrainConfig, learned: LearnedParameters = ALL_LEARNED
) -> torch.optim.Optimizer:
    """Make the optimiser of the parameters that ``choose_trained`` selected, with a fused kernel if possible.

    Raises:
        ContractError: A group's pattern matches no trained parameter.

    Source: Loshchilov and Hutter (2019); Sutskever et al. (2013).
    """
    groups = parameter_groups(model, config, learned)
    # torch has fused optimisers for these devices alone.
    is_fused = all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())
    if config.optimizer == "nesterov":
        return torch.optim.SGD(groups, lr=config.peak_lr, momentum=MOMENTUM, nesterov=True, fused=is_fused)
    return torch.optim.AdamW(
        groups, lr=config.peak_lr, betas=config.betas, eps=config.epsilon, fused=is_fused
    )
