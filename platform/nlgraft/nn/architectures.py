"""mBART and its relatives as configurations of our model, and the reverse where possible. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.nn.model_config import NORM_EPS, Activation, TransformerConfig


class Architecture(StrEnum):
    """Encoder-decoders of transformers that our model can represent; the value is their model type.

    Source: Liu et al. (2020) (mBART); Junczys-Dowmunt et al. (2018) (Marian); Lewis et al. (2020) (BART); Fan
    et al. (2021) (M2M-100, and NLLB after it); Zhang et al. (2020) (Pegasus).
    """

    MBART = "mbart"
    MARIAN = "marian"
    BART = "bart"
    M2M_100 = "m2m_100"
    PEGASUS = "pegasus"

    @property
    def model_class(self) -> str:
        """Name of the class in transformers."""
        return {
            "mbart": "MBartForConditionalGeneration",
            "marian": "MarianMTModel",
            "bart": "BartForConditionalGeneration",
            "m2m_100": "M2M100ForConditionalGeneration",
            "pegasus": "PegasusForConditionalGeneration",
        }[self]


ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
"""Our names of the activations in checkpoints."""

STYLES: dict[Architecture, dict[str, Any]] = {
    Architecture.MBART: {
        "norm": "pre",
        "has_embedding_norm": True,
        "source_positions": "learned",
        "target_positions": "learned",
    },
    Architecture.MARIAN: {
        "norm": "post",
        "has_embedding_norm": False,
        "source_positions": "sinusoidal",
        "target_positions": "sinusoidal",
    },
    Architecture.BART: {
        "norm": "post",
        "has_embedding_norm": True,
        "source_positions": "learned",
        "target_positions": "learned",
    },
    Architecture.M2M_100: {
        "norm": "pre",
        "has_embedding_norm": False,
        "source_positions": "sinusoidal",
        "target_positions": "sinusoidal",
        "position_layout": "fairseq",
        "has_output_bias": False,
        "pad_id": 1,
    },
    Architecture.PEGASUS: {
        "norm": "pre",
        "has_embedding_norm": False,
        "source_positions": "sinusoidal",
        "target_positions": "sinusoidal",
    },
}
"""Our settings that each architecture fixes."""

REFUSED = {
    "t5": "relative positions in every attention, RMS norms, no biases",
    "mt5": "relative positions in every attention, RMS norms, no biases, gated feed-forward blocks",
}
"""Model types that people ask for, and what of them our Transformer does not have."""

_SAME_ON_BOTH_SIDES = (
    ("encoder_attention_heads", "decoder_attention_heads"),
    ("encoder_ffn_dim", "decoder_ffn_dim"),
)


def architecture_of(model_type: str, where: str) -> Architecture:
    """Look up the architecture of a checkpoint's model type; ``where`` names the checkpoint in the message.

    Raises:
        ContractError: The model type cannot be converted.
    """
    allowed = [str(architecture) for architecture in Architecture]
    if model_type in REFUSED:
        raise ContractError(
            f"{where} has model type '{model_type}', which has {REFUSED[model_type]}: our Transformer has "
            "none of it. Use the checkpoint's encoder as a context, or nlgraft vocab on the checkpoint itself"
        )
    if model_type not in allowed:
        raise ContractError(
            f"{where} has model type '{model_type}', which cannot be converted. "
            f"{nearest(model_type, allowed)}. Any encoder can be used as a context instead"
        )
    return Architecture(model_type)


def read_config(
    architecture: Architecture, hf_config: Mapping[str, Any], **tensor_settings: Any
) -> TransformerConfig:
    """Translate a checkpoint's config.json into our configuration.

    Args:
        architecture: The checkpoint's architecture.
        hf_config: Its config.json.
        **tensor_settings: Our settings that follow from its tensors: tying, has_output_bias, position_layout.

    Raises:
        ContractError: Some settings have no counterpart; all are named.
    """
    problems = [
        f"{encoder_name} {hf_config[encoder_name]} and {decoder_name} {hf_config[decoder_name]}: "
        "they must be equal"
        for encoder_name, decoder_name in _SAME_ON_BOTH_SIDES
        if hf_config[encoder_name] != hf_config[decoder_name]
    ]
    activation = hf_config["activation_function"]
    if activation not in ACTIVATIONS:
        problems.append(f"activation_function '{activation}': {nearest(activation, list(ACTIVATIONS))}")
    pad_id = hf_config["pad_token_id"]
    if not isinstance(pad_id, int):
        problems.append("pad_token_id is not set")
    elif pad_id != STYLES[architecture].get("pad_id", pad_id):
        problems.append(f"pad_token_id is {pad_id}: positions are counted from it, and it must be 1")
    if problems:
        raise ContractError(f"{architecture} checkpoint: " + "; ".join(problems))
    return TransformerConfig(
        **{**tensor_settings, **STYLES[architecture], "pad_id": pad_id},
        d_model=hf_config["d_model"],
        num_encoder_layers=hf_config["encoder_layers"],
        num_decoder_layers=hf_config["decoder_layers"],
        num_heads=hf_config["encoder_attention_heads"],
        ffn_dim=hf_config["encoder_ffn_dim"],
        dropout=hf_config["dropout"],
        attention_dropout=hf_config["attention_dropout"],
        activation_dropout=hf_config["activation_dropout"],
        activation=ACTIVATIONS[activation],
        max_positions=hf_config["max_position_embeddings"],
        has_source_scale=hf_config["scale_embedding"],
        has_target_scale=hf_config["scale_embedding"],
    )


def choose_architecture(config: TransformerConfig) -> Architecture:
    """Find the architecture that can express a model.

    Raises:
        ContractError: None of them can; every setting in the way is named.
    """
    problems = {architecture: [*_misfits(config, architecture)] for architecture in Architecture}
    for architecture, misfits in problems.items():
        if not misfits:
            return architecture
    reasons = " | ".join(
        f"{architecture}: {'; '.join(misfits)}" for architecture, misfits in problems.items()
    )
    raise ContractError(f"transformers cannot express this model. {reasons}")


def _misfits(config: TransformerConfig, architecture: Architecture) -> Iterator[str]:
    for setting, needed in STYLES[architecture].items():
        if getattr(config, setting) != needed:
            yield f"{setting} is '{getattr(config, setting)}', must be '{needed}'"
    if architecture is not Architecture.MARIAN and config.tying == "decoder":
        yield "tying is 'decoder', must be 'all' or 'none'"
    if config.norm_eps != NORM_EPS:
        yield f"norm_eps is {config.norm_eps}, must be {NORM_EPS}"
    if config.has_source_scale != config.has_target_scale:
        yield "has_source_scale and has_target_scale differ"
    for setting, is_used in {
        "contexts": bool(config.contexts),
        "segments": config.segments != "none",
        "fine_encoder.num_layers": config.fine_encoder.num_layers > 0,
        "fine_encoder.ffn_adapter": config.fine_encoder.ffn_adapter != "none",
    }.items():
        if is_used:
            yield f"{setting} is set, but the architecture has no such part"


def write_config(
    architecture: Architecture,
    config: TransformerConfig,
    source_vocab_size: int,
    target_vocab_size: int,
    *,
    has_shared_table: bool,
) -> dict[str, Any]:
    """Translate our configuration into the part of config.json that follows from it.

    Args:
        architecture: Result of ``choose_architecture``.
        config: Our configuration.
        source_vocab_size: Rows of the source table.
        target_vocab_size: Rows of the target table.
        has_shared_table: The checkpoint contains a shared table, whether the model reads it or not.

    Raises:
        ContractError: The architecture has one vocabulary and the model two.
    """
    hf_config: dict[str, Any] = {
        "architectures": [architecture.model_class],
        "model_type": str(architecture),
        "is_encoder_decoder": True,
        "d_model": config.d_model,
        "vocab_size": source_vocab_size,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "activation_function": config.activation,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": config.has_source_scale,
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": config.tying != "none",
    }
    for side, depth in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        hf_config[f"{side}_layers"] = depth
        hf_config[f"{side}_attention_heads"] = config.num_heads
        hf_config[f"{side}_ffn_dim"] = config.ffn_dim
    if architecture is Architecture.MARIAN:
        hf_config["share_encoder_decoder_embeddings"] = has_shared_table
        hf_config["decoder_vocab_size"] = target_vocab_size
    elif source_vocab_size != target_vocab_size:
        raise ContractError(
            f"a {architecture} has one vocabulary, this model has {source_vocab_size} source and "
            f"{target_vocab_size} target tokens"
        )
    return hf_config
