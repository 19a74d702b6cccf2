"""Every arm of lm_augmentation at a size of seconds."""

from typing import Any

from tests.small_studies import ALL_SCORES, GREEDY, TINY, TRAIN

_TRAIN = {**TRAIN, "max_steps": 3, "eval_every_steps": 2}
_LM = {"d_model": 8, "num_layers": 1, "num_heads": 2, "ffn_dim": 8}
_TEXT = {"corpus": "conlang", "task": "monolingual", "train": 60, "dev": 8, "test": 4}
_BASE: dict[str, Any] = {
    "data": {
        "downstream": {"corpus": "conlang", "task": "translation", "train": 60, "dev": 8, "test": 6},
        "source_text": {**_TEXT, "language": "first"},
        "target_text": {**_TEXT, "language": "target"},
    },
    "tokenizers": {
        "language_model": {"kind": "bpe", "vocab_size": 150},
        "bitext": {"kind": "bpe", "vocab_size": 160, "is_shared": False},
    },
    "language_models": {
        "source": {"model": {"kind": "bi_lm", **_LM}, "train": _TRAIN},
        "target": {"model": {"kind": "uni_lm", **_LM}, "train": _TRAIN},
    },
    "model": TINY | {"tying": "none"},
    "train": _TRAIN,
    "decode": GREEDY,
}


def _with(**parts):
    return {**_BASE, **{name: {**_BASE.get(name, {}), **part} for name, part in parts.items()}}


_ELMO_MODEL = {"source_positions": "none", "has_source_scale": False}
ARMS: dict[str, dict[str, Any]] = {
    "baseline": {
        **_BASE,
        "score": ALL_SCORES,
        "num_extracted_sentences": 1,
    },
    "shared, learned positions": _with(
        model={"tying": "all", "target_positions": "learned", "max_positions": 300}
    ),
    "bitext-BPE": _with(tokenizers={"source": "bitext", "target": "bitext"}),
    "src_elmo": _with(source={"use": "elmo"}, model=_ELMO_MODEL),
    "src_elmo, stored, +shdemb": _with(
        source={"use": "elmo", "states": "fp32", "is_centred": True},
        model={**_ELMO_MODEL, "tying": "decoder"},
    ),
    "src_elmo, random": _with(source={"use": "elmo", "weights": "random"}, model=_ELMO_MODEL),
    "src_ft": _with(source={"use": "finetuned"}),
    "tgt_elmo": _with(target={"use": "elmo", "is_centred": True}),
    "tgt_ft": _with(target={"use": "finetuned"}),
    "tgt_ft, prefixes read anew": {**_with(target={"use": "finetuned"}), "has_lm_cache": False},
    "src_elmo, target vocabulary of the bitext": _with(
        source={"use": "elmo"}, model=_ELMO_MODEL, tokenizers={"target": "bitext"}
    ),
}
ARMS["bitext-BPE"]["model"] = {**_BASE["model"], "source_positions": "learned", "max_positions": 300}
