"""Part of a pretrained model that is finetuned: its top layers, or low-rank adapters by peft.

Adapters stand beside linear maps, whose own weights stay as they are. At the end they are added to these
weights, so that the result is a plain model again.

Source: Hu et al. (2022), LoRA.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Set
from typing import Any

from torch import nn

from nlgraft.nn.modes import seeded
from nlgraft.training.train_config import LearnedParameters, LoraConfig

ADAPTER = ".lora_"
"""Part of the names of the adapters' parameters."""
_OUTPUTS = ("output_projection", "lm_head", "embed_out")
"""Last parts of the names of maps to a vocabulary, which get no adapters."""


def finetune_part(
    model: nn.Module,
    learned: LearnedParameters,
    seed: int,
) -> None:
    """Freeze a pretrained model but for the part that is finetuned, in place; adapters begin as zero."""
    if learned.part is None:
        return
    names = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and re.search(learned.part_of, name)
    }
    if learned.part.lora is not None:
        add_adapters(model, learned.part.lora, names, seed)
        return
    for name in names - top_layers(names, learned.part.top_layers or 0):
        model.get_parameter(name).requires_grad_(False)


def top_layers(names: Set[str], count: int) -> set[str]:
    """Select the parameters in the last layers of each stack; the first number in a name is the layer's."""
    matches = {name: re.match(r"(.*?)\.(\d+)\.", name) for name in names}
    layers = [(match[1], int(match[2]), name) for name, match in matches.items() if match]
    last = {stack: layer for stack, layer, _ in sorted(layers)}
    return {name for stack, layer, name in layers if layer > last[stack] - count}


def add_adapters(
    model: nn.Module,
    config: LoraConfig,
    names: Set[str],
    seed: int,
) -> None:
    """Put adapters beside the linear maps among some parameters and freeze these, in place."""
    import peft  # loads for seconds
    from transformers.pytorch_utils import Conv1D

    maps = [
        name
        for name, module in model.named_modules()
        if f"{name}.weight" in names
        and isinstance(module, nn.Linear | Conv1D)
        and not name.endswith(_OUTPUTS)
    ]
    others = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in names
    ]
    pattern = "|".join(map(re.escape, maps))
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=pattern)
    with seeded(seed), warnings.catch_warnings():
        # About GPT-2's matrices, which peft transposes by itself.
        warnings.simplefilter("ignore")
        peft.inject_adapter_in_model(settings, model)
    for parameter in others:
        # peft has frozen all but the adapters.
        parameter.requires_grad_()


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters to the weights, in place; a model without any stays as it is."""
    adapted: list[tuple[str, Any]] = [
        (name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")
    ]
    for name, module in adapted:
        module.merge()
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module.get_base_layer())
