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
from nlgraft.nn.linear import FeedForward, Residual
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
    if problems := missing_package() + unsupported(model.config):
        raise ContractError("; ".join(problems))
    directory.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        _spec(model, config, num_positions, pieces).save(str(directory))


def _spec(
    model: Seq2Seq, config: GenerationConfig, num_positions: int, pieces: tuple[Sequence[str], Sequence[str]]
) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec

    model_config = model.config
    spec = TransformerSpec.from_config(
        (model_config.num_encoder_layers, model_config.num_decoder_layers),
        model_config.num_heads,
        pre_norm=model_config.norm == "pre",
        activation=common_spec.Activation[_ACTIVATIONS[model_config.activation]],
        layernorm_embedding=model_config.has_embedding_norm,
    )
    _set_input(
        spec.encoder, spec.encoder.embeddings[0], model.source_embedding, model.source_input, num_positions
    )
    _set_input(
        spec.decoder, spec.decoder.embeddings, model.target_embedding, model.target_input, num_positions
    )
    for layer_spec, layer in zip(
        spec.encoder.layer, cast("Sequence[EncoderLayer]", model.encoder), strict=True
    ):
        _set_attention(layer_spec.self_attention, layer.attention, layer.attention_residual, is_self=True)
        _set_feed_forward(layer_spec.ffn, layer.ffn, layer.ffn_residual)
    for layer_spec, layer in zip(
        spec.decoder.layer, cast("Sequence[DecoderLayer]", model.decoder), strict=True
    ):
        _set_attention(layer_spec.self_attention, layer.attention, layer.attention_residual, is_self=True)
        _set_attention(layer_spec.attention, layer.cross_attention, layer.cross_residual, is_self=False)
        _set_feed_forward(layer_spec.ffn, layer.ffn, layer.ffn_residual)
    for side, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        if norm is not None:
            _set_norm(side.layer_norm, norm)
    output = model.output_projection
    spec.decoder.projection.weight = _array(output.weight)
    if output.bias is not None:
        spec.decoder.projection.bias = _array(output.bias)
    _name_tokens(spec, model, config, *pieces)
    settings: Any = spec.config
    settings.layer_norm_epsilon = model_config.norm_eps
    spec.validate()
    spec.optimize(quantization=None)
    return spec


def _name_tokens(
    spec: Any, model: Seq2Seq, config: GenerationConfig, source: Sequence[str], target: Sequence[str]
) -> None:
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(target))
    spec.config.bos_token = spec.config.decoder_start_token = target[config.start_id]
    spec.config.eos_token = target[config.end_id]
    spec.config.unk_token = target[model.config.pad_id]  # all tokens are known


def _set_input(
    side: Any, table_spec: Any, embedding: nn.Module, layer: InputLayer, num_positions: int
) -> None:
    table_spec.weight = _array(_table(embedding))
    side.scale_embeddings = layer.scale != 1.0
    positions = layer.positions
    if positions is None:
        encodings = torch.zeros(num_positions, _table(embedding).shape[1])
    else:
        limit = len(positions.table) if isinstance(positions.table, nn.Parameter) else num_positions
        encodings = positions(0, min(num_positions, limit))
    side.position_encodings.encodings = _array(encodings)
    if layer.norm is not None:
        _set_norm(side.layernorm_embedding, layer.norm)


def _table(embedding: nn.Module) -> Tensor:
    assert isinstance(embedding, TableEmbedding), "a plain model has tables"
    return embedding.table.weight


def _set_attention(spec: Any, attention: Attention, connection: Residual, *, is_self: bool) -> None:
    _set_norm(spec.layer_norm, connection.input_norm or connection.output_norm)
    query, key_value = attention.query, attention.key_value
    if is_self:
        spec.linear[0].weight = _array(torch.cat([query.weight, key_value.weight]))
        spec.linear[0].bias = _array(torch.cat([query.bias, key_value.bias]))
    else:
        _set_linear(spec.linear[0], query)
        _set_linear(spec.linear[1], key_value)
    _set_linear(spec.linear[-1], attention.output)


def _set_feed_forward(spec: Any, ffn: FeedForward, connection: Residual) -> None:
    _set_norm(spec.layer_norm, connection.input_norm or connection.output_norm)
    _set_linear(spec.linear_0, ffn.inner)
    _set_linear(spec.linear_1, ffn.outer)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _array(linear.weight), _array(linear.bias)


def _set_norm(spec: Any, norm: nn.LayerNorm | None) -> None:
    assert norm is not None, "a residual connection has one norm"
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()
