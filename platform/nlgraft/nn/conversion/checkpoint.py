"""Conversion of checkpoints of mBART and its relatives into our Transformer and back.

transformers is imported only to load a checkpoint; writing one does not need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError, StoreError
from nlgraft.nn.architectures import (
    ACTIVATIONS,
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

# Information of a checkpoint besides its weights.


_INFO_FILE, _UNREAD_FILE = "hugging_face.json", "hugging_face_unread.safetensors"


@dataclass(frozen=True)
class CheckpointInfo:
    """Information of a checkpoint besides the weights that are converted.

    Attributes:
        architecture: Its architecture.
        config: Its config.json.
        generation: Its generation_config.json.
        unread: Tensors, and leading rows of tensors, that no model reads; kept so that writing the checkpoint
            back reproduces it to the bit.
        notes: Notes on how our model differs from transformers'.
    """

    architecture: Architecture
    config: dict[str, Any]
    generation: dict[str, Any]
    unread: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def generation_config(self, start_id: int | None = None) -> tuple[GenerationConfig, list[str]]:
        """Translate the checkpoint's decoding settings into ours; see ``read_generation``."""
        return read_generation(self.generation, start_id)

    def write(self, directory: Path) -> None:
        """Write ``hugging_face.json`` and, if needed, a safetensors file beside one of our models."""
        values = {
            "architecture": self.architecture,
            "config": self.config,
            "generation": self.generation,
            "notes": list(self.notes),
        }
        text = json.dumps(values, indent=1, sort_keys=True)
        (directory / _INFO_FILE).write_text(text + "\n", encoding="utf-8")
        if self.unread:
            save_file(self.unread, directory / _UNREAD_FILE)

    @staticmethod
    def read(directory: Path) -> CheckpointInfo:
        """Read the files of ``write``.

        Raises:
            StoreError: They are missing or broken.
        """
        try:
            values = json.loads((directory / _INFO_FILE).read_text(encoding="utf-8"))
            unread = directory / _UNREAD_FILE
            return CheckpointInfo(
                Architecture(values["architecture"]),
                values["config"],
                values["generation"],
                load_file(unread) if unread.exists() else {},
                tuple(values["notes"]),
            )
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{directory}: no information about a checkpoint ({error})") from error


WEIGHTS_FILE, CONFIG_FILE, GENERATION_FILE = "model.safetensors", "config.json", "generation_config.json"
_LAYOUTS: tuple[Layout, ...] = ("marian", "halves", "interleaved", "fairseq")
_ROUNDED = 1e-3  # largest error of sinusoids stored in fp16 or bf16
_EXACT = 1e-6


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
    """
    notes: list[str] = []
    hf_model: Any = checkpoint if isinstance(checkpoint, nn.Module) else _load(str(checkpoint), notes)
    name = type(hf_model).__name__
    architecture = architecture_of(hf_model.config.model_type, name)
    if name != architecture.model_class:
        raise ContractError(f"{name} cannot generate: load the checkpoint as {architecture.model_class}")
    tensors = dict(hf_model.state_dict())
    tying = _tying(tensors)
    has_bias = OUTPUT_BIAS in tensors and bool(tensors[OUTPUT_BIAS].any())
    has_sinusoids = architecture in (Architecture.MARIAN, Architecture.PEGASUS)
    layout = _layout(tensors, notes) if has_sinusoids else "halves"
    settings = json.loads(hf_model.config.to_json_string())
    config, more = read_config(
        architecture, settings, tying=tying, has_output_bias=has_bias, position_layout=layout
    )
    if has_bias:
        notes.append(f"{OUTPUT_BIAS} is a parameter here: it is trained unless it is frozen")
    with torch.random.fork_rng(devices=[]):
        # All weights are overwritten; their draws must not shift the caller's.
        model = Seq2Seq(config, len(tensors[SOURCE_TABLE]), len(tensors[OUTPUT_TABLE])).float()
    unread = _fill(model, tensors)
    generation = json.loads(hf_model.generation_config.to_json_string())
    return model.eval(), CheckpointInfo(architecture, settings, generation, unread, (*notes, *more))


def _load(checkpoint: str, notes: list[str]) -> nn.Module:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint)
        architecture = architecture_of(config.model_type, checkpoint)
        model, report = getattr(transformers, architecture.model_class).from_pretrained(
            checkpoint, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ContractError(f"{checkpoint}: no readable checkpoint ({error})") from error
    if config.dtype not in (None, torch.float32):
        notes.append(f"stored in {str(config.dtype).removeprefix('torch.')}: fp32 here")
    problems = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        # "version" is fairseq's mark in the first mBART files, no weight
        names = [key for key in sorted(map(str, report[kind])) if not key.endswith(".version")]
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


def _layout(tensors: Mapping[str, Tensor], notes: list[str]) -> Layout:
    tables = [tensors[name].float().cpu() for name in POSITION_TABLES]
    length, d_model = tables[0].shape
    for layout in _LAYOUTS:
        expected = sinusoids(torch.arange(length), d_model, layout)
        error = max(float((table - expected).abs().max()) for table in tables)
        if error < _ROUNDED:
            if error > _EXACT:
                notes.append(f"position tables were rounded by up to {error:.1e}; ours are exact")
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
def _fill(model: Seq2Seq, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the checkpoint's tensors into the model; returns the values that no model reads."""
    parameter_places, parameters = places(model.config), dict(model.named_parameters())
    check_places(parameter_places, parameters, set(tensors) - _constants(model.config))
    unread = {}
    for place in parameter_places:
        values = place.read(tensors)
        if values.shape != parameters[place.parameter].shape:
            raise ContractError(
                f"'{', '.join(place.tensor_names)}' form {tuple(values.shape)}, our '{place.parameter}' has "
                f"shape {tuple(parameters[place.parameter].shape)}"
            )
        parameters[place.parameter].copy_(values)
        unread |= place.unread(tensors)
    if model.config.tying != "all" and SHARED in tensors:
        unread[SHARED] = tensors[SHARED].detach().to("cpu", torch.float32, copy=True)
    return unread


def to_hugging_face(
    model: Seq2Seq,
    directory: Path,
    *,
    info: CheckpointInfo | None = None,
    generation: GenerationConfig | None = None,
) -> list[str]:
    """Write a plain model as a checkpoint that transformers loads.

    With learned positions and embedding norms it becomes an mBART (pre-norm) or a BART (post-norm), with
    sinusoids a Marian (post-norm), an M2M-100 (pre-norm, fairseq's sinusoids) or a Pegasus (pre-norm).

    Args:
        model: A model without contexts, segments and fine encoder.
        directory: Created if missing; gets ``model.safetensors``, ``config.json``,
            ``generation_config.json``.
        info: Information on the checkpoint that the model was converted from; kept wherever the model does
            not determine the value.
        generation: Decoding settings; None: those of ``info``, or else our defaults.

    Returns:
        Notes on how transformers will differ from our model.

    Raises:
        ContractError: transformers cannot express the model; every setting in the way is named.
    """
    config = model.config
    architecture = choose_architecture(config, info.architecture if info else None)
    notes: list[str] = []
    tensors = _tensors(model, architecture, info.unread if info else {}, notes)
    num_source = len(tensors[SHARED if config.tying == "all" else SOURCE_TABLE])
    num_target = len(model.output_projection.weight)
    has_shared = SHARED in tensors
    written = write_config(architecture, config, num_source, num_target, has_shared_table=has_shared)
    before = info.config if info else {}
    if ACTIVATIONS.get(before.get("activation_function", "")) == config.activation:
        written["activation_function"] = before["activation_function"]  # silu has two names
    written["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    decoding, more = _decoding(config, info, generation)
    ids = ("bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    written |= {name: decoding[name] for name in ids if name in decoding}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(directory / CONFIG_FILE, {**before, **written})
    _write_json(directory / GENERATION_FILE, decoding)
    if config.num_sources > 1:
        notes.append(f"num_sources {config.num_sources}: transformers has one source")
    return [*notes, *more]


@torch.no_grad()
def _tensors(
    model: Seq2Seq, architecture: Architecture, unread: Mapping[str, Tensor], notes: list[str]
) -> dict[str, Tensor]:
    config, parameters = model.config, dict(model.named_parameters())
    parameter_places = places(config)
    check_places(
        parameter_places, parameters, {name for place in parameter_places for name in place.tensor_names}
    )
    tensors: dict[str, Tensor] = {}
    for place in parameter_places:
        tensors |= place.write(parameters[place.parameter], unread)
    weight = model.output_projection.weight
    if not config.has_output_bias and architecture is not Architecture.M2M_100:
        tensors[OUTPUT_BIAS] = weight.new_zeros(1, len(weight), device="cpu")
    if config.tying == "none":
        kept = unread.get(SHARED)
        if kept is not None and kept.shape == tensors[SOURCE_TABLE].shape == weight.shape:
            tensors[SHARED] = kept.to(weight.dtype)
        elif architecture is not Architecture.MARIAN:
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


def _decoding(
    config: TransformerConfig, info: CheckpointInfo | None, generation: GenerationConfig | None
) -> tuple[dict[str, Any], list[str]]:
    if info is not None and generation is None:
        return dict(info.generation), []
    written, notes = write_generation(generation or GenerationConfig(), config.pad_id, config.max_positions)
    if info is not None and info.generation.get("bos_token_id") is not None:
        written["bos_token_id"] = info.generation["bos_token_id"]
    return written, notes


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


# Translation between a checkpoint's decoding settings and ours. No torch here.


_UNDERSTOOD = {
    "bad_words_ids",
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
}
_NOT_ABOUT_OUTPUT = {
    "_from_model_config",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
}
_STOPPING: dict[Any, str] = {True: "first", False: "exact", "never": "exact"}


def read_generation(
    hf_settings: Mapping[str, Any], start_id: int | None = None
) -> tuple[GenerationConfig, list[str]]:
    """Translate a checkpoint's generation_config.json into our decoding settings.

    Args:
        hf_settings: Its generation_config.json; settings that it lacks have transformers' defaults, except
            for the length, whose default is ours.
        start_id: First decoder input, if the checkpoint does not fix it (mBART: the language id).

    Returns:
        Our nearest configuration, and notes on every difference.

    Raises:
        ContractError: There is no start token, or no single end token.
    """
    first = hf_settings.get("decoder_start_token_id") if start_id is None else start_id
    if not isinstance(first, int):
        raise ContractError(
            f"the checkpoint's decoder_start_token_id is {first}: give start_id (mBART: the id of the target "
            "language)"
        )
    ends = hf_settings.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if len(ends) != 1 or not isinstance(ends[0], int):
        raise ContractError(
            f"the checkpoint's eos_token_id is {hf_settings.get('eos_token_id')}: one is needed"
        )
    settings: dict[str, Any] = {
        "beam": hf_settings.get("num_beams") or 1,
        "num_return": hf_settings.get("num_return_sequences") or 1,
        "length_penalty": "average",
        "alpha": max(0.0, _value_or(hf_settings, "length_penalty", 1.0)),
        "stopping": _STOPPING.get(hf_settings.get("early_stopping") or False, "exact"),
        "no_repeat_ngram": hf_settings.get("no_repeat_ngram_size") or 0,
        # transformers' min_length and max_length count the start token, min_new_tokens does not.
        "min_length": _value_or(
            hf_settings, "min_new_tokens", max(0, _value_or(hf_settings, "min_length", 0) - 1)
        ),
        "start_id": first,
        "end_id": ends[0],
    }
    forced = hf_settings.get("forced_bos_token_id")
    if isinstance(forced, int):
        settings["forced_ids"] = (forced,)
        settings["min_length"] = max(0, settings["min_length"] - 1)  # the forced token is counted there
    longest = hf_settings.get("max_new_tokens") or _value_or(hf_settings, "max_length", 0) - 1
    if longest > 0:  # as are the end token and the forced one
        offset = max(0, longest - 1 - len(settings.get("forced_ids", ())))
        settings |= {"max_length_ratio": 0.0, "max_length_offset": offset}
    return GenerationConfig(**settings), [*_differences(hf_settings, settings)]


def _value_or(hf_settings: Mapping[str, Any], name: str, default: Any) -> Any:
    value = hf_settings.get(name)
    return default if value is None else value


def _differences(hf_settings: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    notes = []
    if hf_settings.get("forced_eos_token_id") != settings["end_id"]:
        notes.append(
            f"forced_eos_token_id {hf_settings.get('forced_eos_token_id')}: a hypothesis that reaches the "
            f"limit always ends with {settings['end_id']} here"
        )
    elif settings["beam"] > 1:
        notes.append("forced_eos_token_id: the forced end costs its log-probability here, nothing there")
    pad = [hf_settings.get("pad_token_id")]
    forbidden = hf_settings.get("bad_words_ids") or []
    if pad not in forbidden:
        notes.append(f"bad_words_ids {forbidden}: the pad token {pad[0]} is never generated here")
    if any(word != pad for word in forbidden):
        notes.append(f"bad_words_ids {forbidden}: only the pad token is forbidden here")
    if settings["beam"] > 1 and not hf_settings.get("early_stopping"):
        notes.append("early_stopping false: a heuristic there, exact here")
    if _value_or(hf_settings, "length_penalty", 1.0) < 0:
        notes.append(f"length_penalty {hf_settings['length_penalty']}: 0 here, negative ones are refused")
    if hf_settings.get("do_sample"):
        notes.append("do_sample true: beam search here")
    if "max_length_offset" not in settings:
        notes.append("no max_length: our limits, source + 50, instead of transformers' 20")
    for name in sorted(set(hf_settings) - _UNDERSTOOD - _NOT_ABOUT_OUTPUT):
        if hf_settings[name] is not None:
            notes.append(f"{name} {hf_settings[name]}: has no counterpart here")
    return notes


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
