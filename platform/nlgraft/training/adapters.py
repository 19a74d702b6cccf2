"""Part of a pretrained model that is finetuned: its top layers, or low-rank adapters by peft (an extra).

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
_OUTPUTS = ("output_projection", "lm_head")
"""Last parts of the names of maps to a vocabulary, which get no adapters."""


def finetune_part(model: nn.Module, learned: LearnedParameters, seed: int) -> None:
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
    frozen = names - top_layers(names, learned.part.top_layers or 0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)


def top_layers(names: Set[str], count: int) -> set[str]:
    """Select the parameters in the last layers of each stack; the first number in a name is the layer's."""
    matches = {name: re.match(r"(.*?)\.(\d+)\.", name) for name in names}
    layers = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
    last: dict[str, int] = {}
    for stack, layer in layers.values():
        last[stack] = max(last.get(stack, 0), layer)
    return {name for name, (stack, layer) in layers.items() if layer > last[stack] - count}


def add_adapters(model: nn.Module, config: LoraConfig, names: Set[str], seed: int) -> None:
    """Put adapters beside the linear maps among some parameters and freeze these, in place."""
    import peft  # pyright: ignore[reportMissingImports]  # an optional extra
    from transformers.pytorch_utils import Conv1D

    maps = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and f"{name}.weight" in names
        and not name.endswith(_OUTPUTS)
    ]
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad} - names
    pattern = "|".join(map(re.escape, maps))
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=pattern)
    with seeded(seed), warnings.catch_warnings():
        # About GPT-2's matrices, which peft transposes by itself.
        warnings.simplefilter("ignore")
        peft.inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        # peft has frozen all but the adapters.
        parameter.requires_grad_(ADAPTER in name or name in learning)


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters to the weights, in place; a model without any stays as it is."""
    adapted: dict[str, Any] = {
        name.partition(ADAPTER)[0]: None for name, _ in model.named_parameters() if ADAPTER in name
    }
    for name in adapted:
        parent, _, last = name.rpartition(".")
        adapted_map: Any = model.get_submodule(name)
        adapted_map.merge()
        setattr(model.get_submodule(parent), last, adapted_map.get_base_layer())
