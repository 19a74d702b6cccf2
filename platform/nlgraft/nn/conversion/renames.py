"""Correspondence between our parameters and a checkpoint's tensors, for both directions.

mBART and Marian name their tensors alike; which of them exist follows from our own configuration.
BERT, which is only read, has names of its own.

Shape letters: P positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.nn.model_config import TransformerConfig

SHARED = "model.shared.weight"
SOURCE_TABLE = "model.encoder.embed_tokens.weight"
TARGET_TABLE = "model.decoder.embed_tokens.weight"
OUTPUT_TABLE = "lm_head.weight"
OUTPUT_BIAS = "final_logits_bias"
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
FIRST_POSITION = 2
"""Row of mBART's position tables for position 0, since fairseq counts from the padding id + 1. The rows
before it are never read."""


@dataclass(frozen=True)
class Place:
    """The place of one of our parameters in a checkpoint.

    Attributes:
        parameter: Name of our parameter.
        tensor_names: Names of the equally sized tensors of the checkpoint that are stacked to form it.
        num_unread_rows: Leading rows of the tensor that no model reads.
        is_row: The tensor has a leading axis of size 1.
    """

    parameter: str
    tensor_names: tuple[str, ...]
    num_unread_rows: int = 0
    is_row: bool = False

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Stack the checkpoint's tensors into our parameter in fp32, [sum of rows, ...]."""
        parts = [tensors[name].detach().to(torch.float32) for name in self.tensor_names]
        joined = torch.cat(parts)[self.num_unread_rows :]
        return joined[0] if self.is_row else joined

    def write(self, parameter: Tensor) -> dict[str, Tensor]:
        """Split our parameter [rows, ...] into the checkpoint's tensors, equal shares [rows / parts, ...]."""
        values = parameter.detach()[None] if self.is_row else parameter.detach()
        values = torch.cat([values.new_zeros(self.num_unread_rows, *values.shape[1:]), values])
        parts = values.chunk(len(self.tensor_names))
        # safetensors refuses tensors that share memory.
        copies = [part.to("cpu", copy=True) for part in parts]
        return dict(zip(self.tensor_names, copies, strict=True))


def places(config: TransformerConfig) -> list[Place]:
    """List the place of every parameter of a plain encoder-decoder; a tied table is listed once."""
    parameter_places = [*_tables(config)]
    for side, depth in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        end = "source" if side == "encoder" else "target"
        for layer in range(depth):
            parameter_places += _layer(side, layer, "input_norm" if config.norm == "pre" else "output_norm")
        if config.norm == "pre":
            parameter_places += _module(f"{side}_norm", f"model.{side}.layer_norm")
        if config.has_embedding_norm:
            parameter_places += _module(f"{end}_input.norm", f"model.{side}.layernorm_embedding")
        if getattr(config, f"{end}_positions") == "learned":
            tensor_names = (f"model.{side}.embed_positions.weight",)
            parameter_places.append(
                Place(f"{end}_input.positions.table", tensor_names, num_unread_rows=FIRST_POSITION)
            )
    return parameter_places


def _tables(config: TransformerConfig) -> Iterator[Place]:
    parameter_names = (
        "source_embedding.table.weight",
        "target_embedding.table.weight",
        "output_projection.weight",
    )
    tensor_names = {
        "all": (SHARED,),
        "decoder": (SOURCE_TABLE, TARGET_TABLE),
        "none": (SOURCE_TABLE, TARGET_TABLE, OUTPUT_TABLE),
    }[config.tying]
    for parameter_name, tensor_name in zip(parameter_names, tensor_names, strict=False):
        yield Place(parameter_name, (tensor_name,))
    if config.has_output_bias:
        yield Place("output_projection.bias", (OUTPUT_BIAS,), is_row=True)


def _layer(
    side: str,
    layer: int,
    norm: str,
) -> Iterator[Place]:
    layer_name, hf_layer = f"{side}.{layer}", f"model.{side}.layers.{layer}"
    attentions = [
        ("attention", "attention_residual", "self_attn"),
        ("cross_attention", "cross_residual", "encoder_attn"),
    ]
    for name, residual, hf_name in attentions[: 1 if side == "encoder" else 2]:
        attention_name, hf_attention = f"{layer_name}.{name}", f"{hf_layer}.{hf_name}"
        yield from _module(f"{attention_name}.query", f"{hf_attention}.q_proj")
        yield from _module(f"{attention_name}.key_value", f"{hf_attention}.k_proj", f"{hf_attention}.v_proj")
        yield from _module(f"{attention_name}.output", f"{hf_attention}.out_proj")
        yield from _module(f"{layer_name}.{residual}.{norm}", f"{hf_attention}_layer_norm")
    yield from _module(f"{layer_name}.ffn.inner", f"{hf_layer}.fc1")
    yield from _module(f"{layer_name}.ffn.outer", f"{hf_layer}.fc2")
    yield from _module(f"{layer_name}.ffn_residual.{norm}", f"{hf_layer}.final_layer_norm")


def encoder_places(num_layers: int) -> list[Place]:
    """List the places of our encoder's parameters in a BERT, its source table and positions included."""
    parameter_places = [
        Place("source_embedding.table.weight", ("embeddings.word_embeddings.weight",)),
        Place("source_input.positions.table", ("embeddings.position_embeddings.weight",)),
        *_module("source_input.norm", "embeddings.LayerNorm"),
    ]
    for layer in range(num_layers):
        layer_name, hf_layer = f"encoder.{layer}", f"encoder.layer.{layer}"
        attention_name, hf_attention = f"{layer_name}.attention", f"{hf_layer}.attention"
        parameter_places += _module(f"{attention_name}.query", f"{hf_attention}.self.query")
        parameter_places += _module(
            f"{attention_name}.key_value", f"{hf_attention}.self.key", f"{hf_attention}.self.value"
        )
        parameter_places += _module(f"{attention_name}.output", f"{hf_attention}.output.dense")
        parameter_places += _module(
            f"{layer_name}.attention_residual.output_norm", f"{hf_attention}.output.LayerNorm"
        )
        parameter_places += _module(f"{layer_name}.ffn.inner", f"{hf_layer}.intermediate.dense")
        parameter_places += _module(f"{layer_name}.ffn.outer", f"{hf_layer}.output.dense")
        parameter_places += _module(f"{layer_name}.ffn_residual.output_norm", f"{hf_layer}.output.LayerNorm")
    return parameter_places


def _module(module_name: str, *hf_names: str) -> Iterator[Place]:
    for part in ("weight", "bias"):
        yield Place(f"{module_name}.{part}", tuple(f"{name}.{part}" for name in hf_names))


def check_places(
    parameter_places: Sequence[Place],
    parameter_names: Collection[str],
    tensor_names: Collection[str],
) -> None:
    """Verify that every parameter is filled once and every tensor used once.

    Args:
        parameter_places: Where each parameter is stored in the checkpoint.
        parameter_names: Names of our parameters.
        tensor_names: Names of the checkpoint's tensors, without those that are skipped on purpose.

    Raises:
        ContractError: Names are missing, left over or used twice, on either side; all are named.
    """
    problems = [
        *_differences("our parameter", [place.parameter for place in parameter_places], parameter_names),
        *_differences(
            "the checkpoint's tensor",
            [name for place in parameter_places for name in place.tensor_names],
            tensor_names,
        ),
    ]
    if problems:
        raise ContractError("checkpoint and model do not fit: " + "; ".join(problems))


def _differences(
    what: str,
    named: Iterable[str],
    there: Collection[str],
) -> Iterator[str]:
    count = Counter(named)
    for name in sorted(set(there) - set(count)):
        yield f"{what} '{name}' is left over"
    for name in sorted(set(count) - set(there)):
        yield f"{what} '{name}' is missing. {nearest(name, sorted(there))[:200]}"
    for name in sorted(name for name, times in count.items() if times > 1):
        yield f"{what} '{name}' is used twice"
