"""Plain encoder-decoders as models of CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Attention
from nlgraft.nn.embedding import InputLayer, TableEmbedding
from nlgraft.nn.layers import DecoderLayer, EncoderLayer
from nlgraft.nn.linear import Residual
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import Activation, GenerationConfig, TransformerConfig

_PLAIN = ("num_sources", "segments", "fine_encoder", "contexts", "fusion", "source_context", "target_context")
"""Settings of a model for whose other values CTranslate2 has no layers."""
_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def missing_package() -> list[str]:
    """Return what to install, if anything."""
    if find_spec("ctranslate2") is not None:
        return []
    return ["CTranslate2 is not installed: pip install 'nlgraft[ctranslate2]'"]


def unsupported(model: TransformerConfig) -> list[str]:
    """List what CTranslate2 cannot express of a model."""
    plain = TransformerConfig()
    names = [name for name in _PLAIN if getattr(model, name) != getattr(plain, name)]
    if not model.num_encoder_layers:
        names.append("num_encoder_layers 0")
    return [f"CTranslate2 decodes no model with its own {', '.join(names)}"] if names else []


def write_ctranslate2(
    model: Seq2Seq,
    config: GenerationConfig,
    directory: Path,
    num_positions: int,
    pieces: tuple[Sequence[str], Sequence[str]],
) -> None:
    """Write a model as CTranslate2 reads it.

    Args:
        model: The model.
        config: Its start and end tokens.
        directory: Created if missing.
        num_positions: Longest input or output, in tokens.
        pieces: Token of every source and target id.

    Raises:
        ContractError: CTranslate2 is not installed, or cannot express the model.
    """
    if problems := unsupported(model.config) or missing_package():
        raise ContractError("; ".join(problems))
    directory.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        _spec(model, config, num_positions, pieces).save(str(directory))


def _spec(
    model: Seq2Seq,
    config: GenerationConfig,
    num_positions: int,
    pieces: tuple[Sequence[str], Sequence[str]],
) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec

    settings = model.config
    spec = TransformerSpec.from_config(
        (settings.num_encoder_layers, settings.num_decoder_layers),
        settings.num_heads,
        pre_norm=settings.norm == "pre",
        activation=common_spec.Activation[_ACTIVATIONS[settings.activation]],
        layernorm_embedding=settings.has_embedding_norm,
    )
    encoder, decoder = spec.encoder, spec.decoder
    _set_input(encoder, encoder.embeddings[0], model.source_embedding, model.source_input, num_positions)
    _set_input(decoder, decoder.embeddings, model.target_embedding, model.target_input, num_positions)
    for part, layer in zip(encoder.layer, cast("Sequence[EncoderLayer]", model.encoder), strict=True):
        _set_layer(part, layer)
    for part, layer in zip(decoder.layer, cast("Sequence[DecoderLayer]", model.decoder), strict=True):
        _set_layer(part, layer)
        _set_attention(part.attention, layer.cross_attention, layer.cross_residual, is_self=False)
    for side, norm in ((encoder, model.encoder_norm), (decoder, model.decoder_norm)):
        if norm is not None:
            _set(side.layer_norm, norm)
    _set(decoder.projection, model.output_projection)
    source, target = pieces
    spec.register_source_vocabulary([*source])
    spec.register_target_vocabulary([*target])
    names: Any = spec.config
    names.bos_token = names.decoder_start_token = target[config.start_id]
    names.eos_token = target[config.end_id]
    names.unk_token = target[settings.pad_id]  # all tokens are known
    names.layer_norm_epsilon = settings.norm_eps
    spec.validate()
    spec.optimize(quantization=None)
    return spec


def _set_input(
    side: Any,
    table: Any,
    embedding: nn.Module,
    layer: InputLayer,
    num_positions: int,
) -> None:
    assert isinstance(embedding, TableEmbedding), "a plain model has tables"
    weight, positions = embedding.table.weight, layer.positions
    table.weight = _array(weight)
    side.scale_embeddings = layer.scale != 1.0
    if positions is None:
        encodings = torch.zeros(num_positions, weight.shape[1])
    else:
        # Sinusoids have no limit; of learned positions there are only so many.
        is_learned = isinstance(positions.table, nn.Parameter)
        encodings = positions(0, min(num_positions, len(positions.table)) if is_learned else num_positions)
    side.position_encodings.encodings = _array(encodings)
    if layer.norm is not None:
        _set(side.layernorm_embedding, layer.norm)


def _set_layer(part: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _set_attention(part.self_attention, layer.attention, layer.attention_residual, is_self=True)
    _set_norm(part.ffn, layer.ffn_residual)
    _set(part.ffn.linear_0, layer.ffn.inner)
    _set(part.ffn.linear_1, layer.ffn.outer)


def _set_attention(
    part: Any,
    attention: Attention,
    connection: Residual,
    *,
    is_self: bool,
) -> None:
    _set_norm(part, connection)
    query, key_value = attention.query, attention.key_value
    # Self-attention has one map for queries, keys and values.
    inputs = [(query, key_value)] if is_self else [(query,), (key_value,)]
    for linear, modules in zip(part.linear, [*inputs, (attention.output,)], strict=True):
        _set(linear, *modules)


def _set_norm(part: Any, connection: Residual) -> None:
    norm = connection.input_norm or connection.output_norm
    assert norm is not None, "a residual connection has one norm"
    _set(part.layer_norm, norm)


def _set(part: Any, *modules: nn.Linear | nn.LayerNorm) -> None:
    """Give a part the weights and biases of a module, or of several maps one below the other."""
    is_norm = isinstance(modules[0], nn.LayerNorm)
    for name, other in (("weight", "gamma"), ("bias", "beta")):
        if getattr(modules[0], name) is not None:
            stacked = torch.cat([getattr(module, name) for module in modules])
            setattr(part, other if is_norm else name, _array(stacked))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()
