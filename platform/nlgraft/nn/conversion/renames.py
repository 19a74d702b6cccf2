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
        ours: Name of our parameter.
        theirs: Names of the equally sized tensors that are stacked to form it.
        num_unread_rows: Leading rows of theirs that no model reads.
        is_row: Theirs has a leading axis of size 1.
    """

    ours: str
    theirs: tuple[str, ...]
    num_unread_rows: int = 0
    is_row: bool = False

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Stack the checkpoint's tensors into our parameter in fp32, [sum of rows, ...]."""
        parts = [tensors[name].detach().to(torch.float32) for name in self.theirs]
        joined = torch.cat(parts)[self.num_unread_rows :]
        return joined[0] if self.is_row else joined

    def write(self, parameter: Tensor, unread: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Split our parameter [rows, ...] into the checkpoint's tensors, equal shares [rows / parts, ...].

        Args:
            parameter: Its values [rows, ...].
            unread: Leading rows of some tensors; zero where there are none.
        """
        values = parameter.detach()[None] if self.is_row else parameter.detach()
        if self.num_unread_rows:
            first = values.new_zeros(self.num_unread_rows, *values.shape[1:])
            kept = unread.get(self.theirs[0])
            values = torch.cat([first if kept is None else kept.to(values), values])
        parts = values.chunk(len(self.theirs))
        # safetensors refuses tensors that share memory.
        return {name: part.to("cpu", copy=True) for name, part in zip(self.theirs, parts, strict=True)}

    def unread(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the leading rows that ``read`` leaves out, by name, in fp32, [unread rows, ...]."""
        if not self.num_unread_rows:
            return {}
        name = self.theirs[0]
        return {name: tensors[name][: self.num_unread_rows].detach().to(torch.float32, copy=True)}


def places(config: TransformerConfig) -> list[Place]:
    """List the place of every parameter of a plain encoder-decoder; a tied table is listed once."""
    found = [*_tables(config)]
    for side, depth in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        end = "source" if side == "encoder" else "target"
        for layer in range(depth):
            found += _layer(side, layer, "input_norm" if config.norm == "pre" else "output_norm")
        if config.norm == "pre":
            found += _module(f"{side}_norm", f"model.{side}.layer_norm")
        if config.has_embedding_norm:
            found += _module(f"{end}_input.norm", f"model.{side}.layernorm_embedding")
        if getattr(config, f"{end}_positions") == "learned":
            theirs = (f"model.{side}.embed_positions.weight",)
            found.append(Place(f"{end}_input.positions.table", theirs, num_unread_rows=FIRST_POSITION))
    return found


def _tables(config: TransformerConfig) -> Iterator[Place]:
    ours = ("source_embedding.table.weight", "target_embedding.table.weight", "output_projection.weight")
    theirs = {
        "all": (SHARED,),
        "decoder": (SOURCE_TABLE, TARGET_TABLE),
        "none": (SOURCE_TABLE, TARGET_TABLE, OUTPUT_TABLE),
    }[config.tying]
    for name, other in zip(ours, theirs, strict=False):
        yield Place(name, (other,))
    if config.has_output_bias:
        yield Place("output_projection.bias", (OUTPUT_BIAS,), is_row=True)


def _layer(side: str, layer: int, norm: str) -> Iterator[Place]:
    ours, theirs = f"{side}.{layer}", f"model.{side}.layers.{layer}"
    attentions = [("attention", "self_attn"), ("cross_attention", "encoder_attn")]
    residuals = [("attention_residual", "self_attn"), ("cross_residual", "encoder_attn")]
    kept = 1 if side == "encoder" else 2
    for name, other in attentions[:kept]:
        own, its = f"{ours}.{name}", f"{theirs}.{other}"
        yield from _module(f"{own}.query", f"{its}.q_proj")
        yield from _module(f"{own}.key_value", f"{its}.k_proj", f"{its}.v_proj")
        yield from _module(f"{own}.output", f"{its}.out_proj")
    for name, other in residuals[:kept]:
        yield from _module(f"{ours}.{name}.{norm}", f"{theirs}.{other}_layer_norm")
    yield from _module(f"{ours}.ffn.inner", f"{theirs}.fc1")
    yield from _module(f"{ours}.ffn.outer", f"{theirs}.fc2")
    yield from _module(f"{ours}.ffn_residual.{norm}", f"{theirs}.final_layer_norm")


def encoder_places(num_layers: int) -> list[Place]:
    """List the places of our encoder's parameters in a BERT, its source table and positions included."""
    found = [
        Place("source_embedding.table.weight", ("embeddings.word_embeddings.weight",)),
        Place("source_input.positions.table", ("embeddings.position_embeddings.weight",)),
        *_module("source_input.norm", "embeddings.LayerNorm"),
    ]
    for layer in range(num_layers):
        ours, theirs = f"encoder.{layer}", f"encoder.layer.{layer}"
        own, its = f"{ours}.attention", f"{theirs}.attention"
        found += _module(f"{own}.query", f"{its}.self.query")
        found += _module(f"{own}.key_value", f"{its}.self.key", f"{its}.self.value")
        found += _module(f"{own}.output", f"{its}.output.dense")
        found += _module(f"{ours}.attention_residual.output_norm", f"{its}.output.LayerNorm")
        found += _module(f"{ours}.ffn.inner", f"{theirs}.intermediate.dense")
        found += _module(f"{ours}.ffn.outer", f"{theirs}.output.dense")
        found += _module(f"{ours}.ffn_residual.output_norm", f"{theirs}.output.LayerNorm")
    return found


def _module(ours: str, *theirs: str) -> Iterator[Place]:
    for part in ("weight", "bias"):
        yield Place(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs))


def check_places(found: Sequence[Place], ours: Collection[str], theirs: Collection[str]) -> None:
    """Verify that every parameter is filled once and every tensor used once.

    Args:
        found: The places.
        ours: Names of our parameters.
        theirs: Names of the checkpoint's tensors, without those that are skipped on purpose.

    Raises:
        ContractError: Names are missing, left over or used twice, on either side; all are named.
    """
    problems = [
        *_differences("our parameter", [place.ours for place in found], ours),
        *_differences("the checkpoint's tensor", [name for place in found for name in place.theirs], theirs),
    ]
    if problems:
        raise ContractError("checkpoint and model do not fit: " + "; ".join(problems))


def _differences(what: str, named: Iterable[str], there: Collection[str]) -> Iterator[str]:
    count = Counter(named)
    for name in sorted(set(there) - set(count)):
        yield f"{what} '{name}' is left over"
    for name in sorted(set(count) - set(there)):
        yield f"{what} '{name}' is missing. {nearest(name, sorted(there))[:200]}"
    for name in sorted(name for name, times in count.items() if times > 1):
        yield f"{what} '{name}' is used twice"
