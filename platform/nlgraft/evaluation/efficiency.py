"""Cost of a model: its parameters, and what its decoding speed depends on."""

from __future__ import annotations

import torch

from nlgraft.nn.model_config import GenerationConfig


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Count the parameters of a model, tied ones once: all, and those that learn."""
    parameters = list(model.parameters())
    return (
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )


def speed_signature(config: GenerationConfig, device: torch.device | str) -> str:
    """Describe what a speed depends on besides the model and how it decodes, in which arms may differ."""
    kind = torch.device(device).type
    threads = f"|threads:{torch.get_num_threads()}" if kind == "cpu" else ""
    return f"beam:{config.beam}|batch:{config.batch_sentences}|device:{kind}{threads}"
