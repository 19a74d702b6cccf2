"""Which parameters learn and how fast: freezing, training only some, learning-rate groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from nlgraft.errors import ContractError
from nlgraft.training.config import TrainConfig


@runtime_checkable
class _OwnPace(Protocol):
    def lr_multipliers(self) -> dict[str, float]: ...


def match_names(patterns: Sequence[str], names: Sequence[str], purpose: str) -> set[str]:
    """Find the names that any of the patterns matches.

    Args:
        patterns: Regular expressions, searched for anywhere in a name.
        names: Dotted parameter names.
        purpose: What the patterns are for, in error messages.

    Returns:
        The matching names.

    Raises:
        ContractError: A pattern matches nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if re.search(pattern, name)}
        if not matching:
            modules = sorted({name.split(".")[0] for name in names})
            raise ContractError(
                f"{purpose}: pattern '{pattern}' matches no parameter. Names begin with: {', '.join(modules)}"
            )
        found |= matching
    return found


def choose_trained(model: nn.Module, config: TrainConfig) -> list[str]:
    """Set ``requires_grad`` of every parameter as ``freeze`` and ``train_only`` say.

    Parameters that the model itself has frozen (a frozen contextual encoder) stay frozen.

    Args:
        model: The model; changed in place.
        config: ``freeze`` and ``train_only``.

    Returns:
        Names of the parameters that learn.

    Raises:
        ContractError: A pattern matches nothing, or nothing is left to learn.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = match_names(config.freeze, names, "freeze")
    chosen = match_names(config.train_only, names, "train_only") if config.train_only else set(names)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in chosen and name not in frozen)
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise ContractError(
            f"nothing learns: freeze={list(config.freeze)} and train_only={list(config.train_only)} leave "
            f"none of {len(names)} parameters"
        )
    return trained


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Group the trained parameters by learning-rate multiplier and weight decay.

    A model may have multipliers of its own (``lr_multipliers()``, by prefix of names: finetuned contexts);
    they and the config's multiply.

    Args:
        model: A model on which ``choose_trained`` has run.
        config: ``groups``, ``peak_lr`` and ``weight_decay``.

    Returns:
        Groups for a torch optimiser, each with its ``lr_multiplier`` and the ``names`` of its parameters.

    Raises:
        ContractError: A group's pattern matches no trained parameter.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    multipliers = dict.fromkeys(trained, 1.0)
    for group in reversed(config.groups):  # the first group that matches has the last word
        for name in match_names([group.pattern], list(trained), "groups"):
            multipliers[name] = group.lr_multiplier
    own = model.lr_multipliers() if isinstance(model, _OwnPace) else {}
    for prefix, multiplier in own.items():
        for name in trained:
            if name.startswith(prefix):
                multipliers[name] *= multiplier
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in trained.items():
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        group = groups.setdefault(
            (multipliers[name], decay),
            {
                "params": [],
                "names": [],
                "lr": config.peak_lr * multipliers[name],
                "lr_multiplier": multipliers[name],
                "weight_decay": decay,
            },
        )
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Make AdamW over the trained parameters.

    Args:
        model: A model on which ``choose_trained`` has run.
        config: Learning rate, moments, decay, groups.

    Returns:
        The optimiser, with the fused kernel where one exists.

    Raises:
        ContractError: A group's pattern matches no trained parameter.

    Source: Loshchilov and Hutter (2019).
    """
    groups = parameter_groups(model, config)
    is_fused = all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())
    return torch.optim.AdamW(
        groups, lr=config.peak_lr, betas=config.betas, eps=config.epsilon, fused=is_fused
    )
