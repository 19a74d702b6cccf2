"""Plain encoder-decoders as models of CTranslate2."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Attention
from nlgraft.nn.ctranslate2_support import missing_package, unsupported
from nlgraft.nn.embedding import InputLayer, TableEmbedding
from nlgraft.nn.layers import DecoderLayer, EncoderLayer
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import Activation, GenerationConfig, Precision
from nlgraft.nn.residual import FeedForward, Residual

_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def ctranslate2_translator(
    model: Seq2Seq, config: GenerationConfig, precision: Precision, num_positions: int
) -> Any:
    """Convert a model and load it into CTranslate2, on the CPU with torch's number of threads.

    Its tokens are our ids in decimal.

    Args:
        model: The model.
        config: Its start and end tokens.
        precision: Arithmetic.
        num_positions: Longest input or output, in tokens.

    Raises:
        ContractError: CTranslate2 is not installed, or cannot express the model.
    """
    with tempfile.TemporaryDirectory() as directory:
        write_ctranslate2(model, config, Path(directory), num_positions)
        import ctranslate2

        return ctranslate2.Translator(
            directory,
            compute_type={"fp32": "float32", "int8": "int8"}[precision],
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )


def write_ctranslate2(
    model: Seq2Seq,
    config: GenerationConfig,
    directory: Path,
    num_positions: int,
    pieces: tuple[Sequence[str], Sequence[str]] | None = None,
) -> None:
    """Write a model as CTranslate2 reads it.

    Args:
        model: The model.
        config: Its start and end tokens.
        directory: Created if missing.
        num_positions: Longest input or output, in tokens.
        pieces: Token of every source and target id; None: the ids in decimal.

    Raises:
        ContractError: CTranslate2 is not installed, or cannot express the model.
    """
    if problems := missing_package() + unsupported(model.config):
        raise ContractError("; ".join(problems))
    if pieces is None:
        source, target = (
            [str(token) for token in range(len(_table(embedding)))]
            for embedding in (model.source_embedding, model.target_embedding)
        )
        pieces = source, target
    directory.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        _spec(model, config, num_positions, pieces).save(str(directory))


def _spec(
    model: Seq2Seq, config: GenerationConfig, num_positions: int, pieces: tuple[Sequence[str], Sequence[str]]
) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec

    ours = model.config
    spec = TransformerSpec.from_config(
        (ours.num_encoder_layers, ours.num_decoder_layers),
        ours.num_heads,
        pre_norm=ours.norm == "pre",
        activation=common_spec.Activation[_ACTIVATIONS[ours.activation]],
        layernorm_embedding=ours.has_embedding_norm,
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
    settings.layer_norm_epsilon = ours.norm_eps
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
