"""Cost of a model: parameters, and decoding speed at a fixed beam and batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.scores import Score
from nlgraft.evaluation.translation import translate
from nlgraft.nn.config import GenerationConfig
from nlgraft.nn.generation import beam_search
from nlgraft.nn.rereading import without_language_model_cache


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Count the parameters of a model, tied ones once: all, and those that learn."""
    parameters = list(model.parameters())
    return (
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )


def speed_signature(config: GenerationConfig, device: torch.device | str) -> str:
    """Describe what a decoding speed depends on beside the model."""
    kind = torch.device(device).type
    threads = f"|threads:{torch.get_num_threads()}" if kind == "cpu" else ""
    return f"beam:{config.beam}|batch:{config.batch_sentences}|device:{kind}{threads}"


def measure_speed(
    model: Any,
    inputs: Inputs,
    config: GenerationConfig,
    *,
    num_repeats: int = 3,
    has_lm_cache: bool = True,
) -> dict[str, Score]:
    """Measure decoding speed at a fixed beam and batch, after one warm-up batch.

    Args:
        model: A ``Seq2Seq`` on any device.
        inputs: The same for every model that is compared.
        config: Beam and sentences at once: they go into the signature.
        num_repeats: Passes over the inputs; the fastest counts.
        has_lm_cache: If true, a target-side language model keeps its states; else it reads every prefix anew,
            as the released code of Edunov et al. does.

    Returns:
        ``sentences_per_s`` and ``tokens_per_s``; ``n`` is the number of sentences.

    Raises:
        ContractError: ``has_lm_cache`` is False but the model has no language model on its target side.

    Source: fusion.md invariant 35.
    """
    device = next(model.parameters()).device
    warm_up = np.arange(min(len(inputs), config.batch_sentences))
    with nullcontext() if has_lm_cache else without_language_model_cache(model):
        beam_search(model, *inputs.pack(warm_up), config)
        runs = [translate(model, inputs, config) for _ in range(num_repeats)]
    fastest = min(runs, key=lambda run: run.seconds)
    lm_cache = "on" if has_lm_cache else "off"
    signature = f"{speed_signature(config, device)}|lm_cache:{lm_cache}|warm-up:1|best-of:{num_repeats}"
    amounts = {"sentences_per_s": len(inputs), "tokens_per_s": fastest.num_tokens}
    return {
        name: Score(name, amount / fastest.seconds, len(inputs), "maximize", signature)
        for name, amount in amounts.items()
    }
