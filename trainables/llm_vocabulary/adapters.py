"""Low-rank adapters on the body of a causal language model, by peft (an extra).

The body's own weights stay as they are; rows of new tokens are trained whole. At the end the adapters are
added to the weights, so that the result is a plain model again.

Source: Hu et al. (2022), LoRA.
"""

from __future__ import annotations

import warnings

import torch

from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.training.rows_first import RowsFirst
from trainables.llm_vocabulary.config import LoraConfig

ADAPTER = ".lora_"
"""Part of the names of the adapters' parameters."""
ALWAYS = 10**9
"""More steps than any training has."""


def add_adapters(model: TransformersCausalLM, config: LoraConfig, seed: int) -> None:
    """Put adapters beside all linear maps but the output, in place; they begin as zero."""
    import peft  # pyright: ignore[reportMissingImports]  # an optional extra

    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules="all-linear")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # About what peft calls in transformers, and about GPT-2's matrices, which peft transposes by itself.
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model.model = peft.get_peft_model(model.model, settings)


def rows_and_adapters(model: TransformersCausalLM, new_rows: RowsFirst | None) -> RowsFirst:
    """Let new rows and adapters learn in all steps, and nothing else."""
    rows = {} if new_rows is None else {name: new for name, new in new_rows.rows.items() if bool(new.any())}
    for name, parameter in model.named_parameters():
        if ADAPTER in name:
            rows[name] = torch.ones(len(parameter), dtype=torch.bool)
        # peft has frozen all but the adapters, also the tables.
        parameter.requires_grad_(name in rows)
    return RowsFirst(ALWAYS, rows)


def merge_adapters(model: TransformersCausalLM) -> None:
    """Add the adapters to the weights, in place."""
    model.model = model.model.merge_and_unload()
