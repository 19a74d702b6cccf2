"""The published model families as configurations. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.nn.context_config import EncoderConfig
from nlgraft.nn.model_config import TransformerConfig

FAMILIES: dict[str, str] = {
    "transformer": "the plain encoder-decoder (Vaswani et al. 2017)",
    "dualbart": "several sources, encoded and attended to as one sequence (Huang et al. 2021, DualBART)",
    "trice": "segments, fine encoder, separated cross-attention (Huang et al. 2021)",
    "prlm": "branches from a frozen encoder at the encoder's FFN (Park and Zhao 2021)",
    "bert_fused": "branches beside attention on both sides, dropnet (Zhu et al. 2020)",
    "direct": "a pretrained encoder's states instead of source embeddings (Clinchant et al. 2019)",
    "src_elmo": "mixed states of a frozen language model as source embeddings (Edunov et al. 2019)",
    "src_ft": "a finetuned language model's output as source embeddings (Edunov et al. 2019)",
    "tgt_elmo": "mixed states of a frozen causal language model as decoder input (Edunov et al. 2019)",
    "tgt_ft": "a finetuned causal language model's output as decoder input (Edunov et al. 2019)",
    "src_elmo+shdemb": "src_elmo with decoder input and output tied (Edunov et al. 2019)",
    "src_ft+shdemb": "src_ft with decoder input and output tied (Edunov et al. 2019)",
}
"""The families and their sources."""


def preset(
    family: str, *, encoder: EncoderConfig | None = None, num_sources: int = 2, **settings: Any
) -> TransformerConfig:
    """Make the configuration of a published family.

    Args:
        family: A key of ``FAMILIES``.
        encoder: The pretrained encoder, for families that have one.
        num_sources: Sources per example, for families with several.
        **settings: Fields of ``TransformerConfig`` that override the family's, e.g. ``preset="tiny"``.

    Raises:
        ContractError: There is no such family, or its encoder is missing.
    """
    if family not in FAMILIES:
        raise ContractError(f"no model family '{family}'. {nearest(family, list(FAMILIES))}")
    if family == "transformer":
        return TransformerConfig(**settings)
    if family == "dualbart":
        return TransformerConfig(**{"num_sources": num_sources, **settings})
    if family == "trice":
        fine = {"fine_encoder": {"num_layers": 1}, "segments": "halves", "cross_attention": "separated"}
        return TransformerConfig(**{"num_sources": num_sources, **fine, **settings})
    if encoder is None:
        raise ContractError(f"model family '{family}' needs a pretrained encoder")
    return TransformerConfig(**{**_with_encoder(family, encoder), **settings})


def _with_encoder(family: str, encoder: EncoderConfig) -> Mapping[str, Any]:
    family, _, sharing = family.partition("+")
    if family in ("prlm", "bert_fused", "direct"):
        pooling = {"kind": "index", "index": -1 if family == "bert_fused" else -2}
        contexts = {"prlm": {"encoder": encoder, "pooling": pooling}}
        if family == "prlm":
            return {"contexts": contexts, "fusion": {"contexts": ("prlm",)}}
        if family == "bert_fused":
            fusion = {"contexts": ("prlm",), "side": "both", "site": "self", "merge": "dropnet"}
            return {"contexts": contexts, "fusion": fusion}
        return {"contexts": contexts, "source_context": "prlm", "has_source_scale": False}
    side, _, use = family.partition("_")
    context: dict[str, Any] = {"encoder": encoder, "is_frozen": use == "elmo"}
    context["pooling"] = {"kind": "scalar_mix" if use == "elmo" else "output"}
    if side == "src" and encoder.kind != "hugging_face":
        context["prepend_id"] = 3  # our own models begin every sentence with the end token, as fairseq's do
    chosen: dict[str, Any] = {"contexts": {"lm": context}, "tying": "decoder" if sharing else "none"}
    chosen["source_context" if side == "src" else "target_context"] = "lm"
    if family == "src_elmo":
        chosen["source_positions"] = "none"
    return chosen
