"""Translation between a checkpoint's decoding settings and ours. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.basics.errors import ContractError
from nlgraft.nn.model_config import GenerationConfig

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
