"""Conversion of checkpoints of mBART and its relatives into our Transformer and back.

transformers is imported only to load a checkpoint; writing one does not need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.architectures import (
    Architecture,
    architecture_of,
    choose_architecture,
    read_config,
    write_config,
)
from nlgraft.nn.conversion.renames import (
    OUTPUT_BIAS,
    OUTPUT_TABLE,
    POSITION_TABLES,
    SHARED,
    SOURCE_TABLE,
    TARGET_TABLE,
    check_places,
    places,
)
from nlgraft.nn.embedding import Layout, sinusoids
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.nn.transformers_lms import load_pretrained, read_checkpoint_config
from nlgraft.text.files import write_json


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint is besides the weights that are converted.

    Attributes:
        architecture: Its architecture.
        config: Its config.json.
    """

    architecture: Architecture
    config: dict[str, Any]


WEIGHTS_FILE, CONFIG_FILE, GENERATION_FILE = "model.safetensors", "config.json", "generation_config.json"
_LAYOUTS: tuple[Layout, ...] = ("marian", "halves", "interleaved", "fairseq")
_ROUNDED = 1e-3  # largest error of sinusoids stored in fp16 or bf16


def from_hugging_face(checkpoint: str | Path | nn.Module) -> tuple[Seq2Seq, CheckpointInfo]:
    """Convert a checkpoint of one of the architectures into our Transformer, in fp32.

    Every tensor is used and every parameter set exactly once; torch's random state does not change.

    Args:
        checkpoint: Hub name, local directory, or a model of transformers, which is copied.

    Returns:
        The model, in evaluation mode, and the rest of the checkpoint's information.

    Raises:
        ContractError: Another architecture, settings without a counterpart, or tensors that do not fit; all
            problems are named.
        DataError: The checkpoint cannot be read.
    """
    hf_model: Any = checkpoint if isinstance(checkpoint, nn.Module) else _load(str(checkpoint))
    name = type(hf_model).__name__
    architecture = architecture_of(hf_model.config.model_type, name)
    if name != architecture.model_class:
        raise ContractError(f"{name} cannot generate: load the checkpoint as {architecture.model_class}")
    tensors = dict(hf_model.state_dict())
    has_bias = OUTPUT_BIAS in tensors and bool(tensors[OUTPUT_BIAS].any())
    has_sinusoids = architecture in (Architecture.MARIAN, Architecture.PEGASUS)
    layout = _layout(tensors) if has_sinusoids else "halves"
    settings = json.loads(hf_model.config.to_json_string())
    config = read_config(
        architecture, settings, tying=_tying(tensors), has_output_bias=has_bias, position_layout=layout
    )
    with torch.random.fork_rng(devices=[]):
        # All weights are overwritten; their draws must not shift the caller's.
        model = Seq2Seq(config, len(tensors[SOURCE_TABLE]), len(tensors[OUTPUT_TABLE])).float()
    _fill(model, tensors)
    return model.eval(), CheckpointInfo(architecture, settings)


def _load(checkpoint: str) -> nn.Module:
    model_type = read_checkpoint_config(checkpoint)["model_type"]
    model, report = load_pretrained(architecture_of(model_type, checkpoint).model_class, checkpoint)
    problems = []
    for kind, keys in report.items():
        # "version" is fairseq's mark in the first mBART files, no weight
        names = [key for key in keys if not key.endswith(".version")]
        if names:
            problems.append(f"{kind.removesuffix('_keys')} {', '.join(names)}")
    if problems:
        raise ContractError(
            f"{checkpoint}: its weights are not those of the model in config.json: {'; '.join(problems)}"
        )
    return model


def _tying(tensors: Mapping[str, Tensor]) -> str:
    # A state dict lists a tied tensor under each of its names; the address tells that they are one.
    source, target, output = (
        (tensors[name].data_ptr(), tensors[name].shape) for name in (SOURCE_TABLE, TARGET_TABLE, OUTPUT_TABLE)
    )
    if target == output:
        return "all" if source == target else "decoder"
    if source in (target, output):
        raise ContractError(
            f"the checkpoint ties {SOURCE_TABLE} to only one of {TARGET_TABLE} and {OUTPUT_TABLE}: "
            "none, these two, or all three can be tied here"
        )
    return "none"


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    tables = [tensors[name].float().cpu() for name in POSITION_TABLES]
    length, d_model = tables[0].shape
    for layout in _LAYOUTS:
        expected = sinusoids(torch.arange(length), d_model, layout)
        error = max(float((table - expected).abs().max()) for table in tables)
        if error < _ROUNDED:
            return layout
    raise ContractError(
        f"{' and '.join(POSITION_TABLES)} hold none of the known sinusoids ({', '.join(_LAYOUTS)}): "
        "learned positions without a norm behind them cannot be converted"
    )


def _constants(config: TransformerConfig) -> set[str]:
    """Name the tensors that are not converted: copies of tied ones, and those the configuration implies."""
    names = {"all": {SOURCE_TABLE, TARGET_TABLE, OUTPUT_TABLE}, "decoder": {SHARED, OUTPUT_TABLE}}.get(
        config.tying, {SHARED}
    )
    if not config.has_output_bias:
        names |= {OUTPUT_BIAS}
    return names | (set(POSITION_TABLES) if config.source_positions == "sinusoidal" else set())


@torch.no_grad()
def _fill(model: Seq2Seq, tensors: Mapping[str, Tensor]) -> None:
    parameter_places, parameters = places(model.config), dict(model.named_parameters())
    check_places(parameter_places, parameters, set(tensors) - _constants(model.config))
    for place in parameter_places:
        values = place.read(tensors)
        if values.shape != parameters[place.parameter].shape:
            raise ContractError(
                f"'{', '.join(place.tensor_names)}' form {tuple(values.shape)}, our '{place.parameter}' has "
                f"shape {tuple(parameters[place.parameter].shape)}"
            )
        parameters[place.parameter].copy_(values)


def to_hugging_face(
    model: Seq2Seq,
    directory: Path,
    generation: GenerationConfig,
) -> list[str]:
    """Write a plain model as a checkpoint that transformers loads.

    With learned positions and embedding norms it becomes an mBART (pre-norm) or a BART (post-norm), with
    sinusoids a Marian (post-norm), an M2M-100 (pre-norm, fairseq's sinusoids) or a Pegasus (pre-norm).

    Args:
        model: A model without contexts, segments and fine encoder.
        directory: Created if missing; gets ``model.safetensors``, ``config.json``,
            ``generation_config.json``.
        generation: Decoding settings.

    Returns:
        Notes on how transformers will differ from our model.

    Raises:
        ContractError: transformers cannot express the model; every setting in the way is named.
    """
    config = model.config
    architecture = choose_architecture(config)
    notes: list[str] = []
    tensors = _tensors(model, architecture, notes)
    num_source = len(tensors[SHARED if config.tying == "all" else SOURCE_TABLE])
    num_target = len(model.output_projection.weight)
    has_shared = SHARED in tensors
    written = write_config(architecture, config, num_source, num_target, has_shared_table=has_shared)
    written["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    decoding, more = write_generation(generation, config.pad_id, config.max_positions)
    ids = ("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    written |= {name: decoding[name] for name in ids if name in decoding}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(directory / CONFIG_FILE, written)
    write_json(directory / GENERATION_FILE, decoding)
    if config.num_sources > 1:
        notes.append(f"num_sources {config.num_sources}: transformers has one source")
    return [*notes, *more]


@torch.no_grad()
def _tensors(
    model: Seq2Seq,
    architecture: Architecture,
    notes: list[str],
) -> dict[str, Tensor]:
    config, parameters = model.config, dict(model.named_parameters())
    parameter_places = places(config)
    check_places(
        parameter_places, parameters, {name for place in parameter_places for name in place.tensor_names}
    )
    tensors: dict[str, Tensor] = {}
    for place in parameter_places:
        tensors |= place.write(parameters[place.parameter])
    weight = model.output_projection.weight
    if not config.has_output_bias and architecture is not Architecture.M2M_100:
        tensors[OUTPUT_BIAS] = weight.new_zeros(1, len(weight), device="cpu")
    if config.tying == "none" and architecture is not Architecture.MARIAN:
        tensors[SHARED] = tensors[SOURCE_TABLE].clone()  # never read, but required by transformers
    is_written = architecture is Architecture.PEGASUS or config.position_layout != "marian"
    if config.source_positions == "sinusoidal" and architecture is not Architecture.M2M_100 and is_written:
        table = sinusoids(torch.arange(config.max_positions), config.d_model, config.position_layout)
        tensors |= {name: table.to(weight.dtype, copy=True) for name in POSITION_TABLES}
        if architecture is Architecture.MARIAN:
            notes.append(
                f"position_layout {config.position_layout}: written as tables, which transformers reads but "
                "does not save again"
            )
    return tensors


def write_generation(
    config: GenerationConfig, pad_id: int, max_positions: int
) -> tuple[dict[str, Any], list[str]]:
    """Translate our decoding settings into generation_config.json.

    Args:
        config: Our configuration.
        pad_id: Padding token, which is never generated.
        max_positions: Longest target, used if the limit depends on the source.

    Returns:
        Content of generation_config.json, and notes on every difference.
    """
    notes = []
    num_forced = len(config.forced_ids)
    longest = config.max_length_offset + num_forced
    if config.max_length_ratio:
        longest = max_positions - 1
        notes.append(
            f"max_length_ratio {config.max_length_ratio}: there is no limit that follows the source there; "
            f"at most {longest} tokens"
        )
    if config.beam > 1:
        notes.append("the end that the limit forces costs nothing there, and its log-probability here")
    if config.beam > 1 and config.length_penalty == "gnmt":
        notes.append(f"length_penalty gnmt: there log-probabilities are divided by length^{config.alpha}")
    hf_settings: dict[str, Any] = {
        "bad_words_ids": [[pad_id]],
        "bos_token_id": config.start_id,
        "decoder_start_token_id": config.start_id,
        "do_sample": False,
        # False would be a heuristic; "never" is our exact rule.
        "early_stopping": config.stopping == "first" or "never",
        "eos_token_id": config.end_id,
        "forced_eos_token_id": config.end_id,
        "length_penalty": 0.0 if config.length_penalty == "none" else config.alpha,
        "max_new_tokens": longest + 1,
        "min_new_tokens": config.min_length + num_forced,
        "no_repeat_ngram_size": config.no_repeat_ngram,
        "num_beams": config.beam,
        "num_return_sequences": config.num_return,
        "pad_token_id": pad_id,
    }
    if config.forced_ids:
        hf_settings["forced_bos_token_id"] = config.forced_ids[0]
        if num_forced > 1:
            notes.append(f"forced_ids {list(config.forced_ids)}: only the first is forced there")
    if config.beam == 1:  # transformers warns about settings that only beams read
        for name in ("early_stopping", "length_penalty"):
            del hf_settings[name]
    return hf_settings, notes
