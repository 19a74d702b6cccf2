"""The arms of multi_source at a size of seconds."""

import tempfile
from pathlib import Path
from typing import Any

from tests.small_studies import ALL_SCORES, GREEDY, TINY, TRAIN

_TEXT = {"corpus": "conlang", "task": "monolingual", "train": 40, "dev": 4, "test": 2}
_LANGUAGES = {"first": {**_TEXT, "language": "first"}, "target": {**_TEXT, "language": "target"}}
_SIZES = {"train": 60, "dev": 6, "test": 4}
_BASE: dict[str, Any] = {
    "data": {
        "task": {"corpus": "conlang", "task": "post_editing", **_SIZES},
        "languages": ["first", "target", "target"],
        "text": _LANGUAGES,
    },
    "tokenizer": {"vocab_size": 200},
    "model": TINY | {"tying": "all"},
    "decode": GREEDY,
}
_UPSTREAM = {"train": TRAIN}
_PHASES: dict[str, Any] = {"single_source": {"train": TRAIN}, "multi_source": {"train": TRAIN}}
_DUAL_TRANSFORMER = {
    "encoding": "own",
    "cross_attention": "serial",
    "segments": "none",
    "fine_encoder": {"num_layers": 0},
}
_DOCUMENTS = {
    "task": {"corpus": "conlang", "task": "document_translation", **_SIZES},
    "languages": ["first", "target"],
}
_DIRECTORY = tempfile.TemporaryDirectory()


def _four_sources():
    """Files of numbers, a language's letter before each."""
    splits: dict[str, Any] = {}
    for split, numbers in {"train": range(60), "dev": range(60, 66), "test": range(66, 70)}.items():
        paths = [Path(_DIRECTORY.name) / f"{split}.{letter}" for letter in "abcde"]
        for path in paths:
            path.write_text("".join(f"{path.suffix[1]} {number}\n" for number in numbers))
        *sources, target = map(str, paths)
        splits[split] = {"sources": sources, "target": target}
    return {"task": {"corpus": "files", **splits}, "languages": list("abcde")}


ARMS: dict[str, dict[str, Any]] = {
    "trice": {
        **_BASE,
        **_PHASES,
        "upstream": _UPSTREAM,
        "score": ALL_SCORES,
    },
    "single source": {
        **_BASE,
        "read": [1],
        "single_source": {"train": TRAIN},
        "upstream": _UPSTREAM,
    },
    "fine encoder with an adapter per layer, learned segments": {
        **_BASE,
        **_PHASES,
        "upstream": _UPSTREAM,
        "sources": {"segments": "learned", "fine_encoder": {"ffn_adapter": "per_layer"}},
    },
    "trice, adapters": {
        **_BASE,
        "single_source": {"train": TRAIN},
        "multi_source": {"train": TRAIN, "part": {"lora": {"rank": 2}}},
    },
    "fine encoder with an adapter on top": {
        **_BASE,
        **_PHASES,
        "upstream": _UPSTREAM,
        "sources": {"fine_encoder": {"ffn_adapter": "top"}},
    },
    "dual transformer, pretrained": {
        **_BASE,
        **_PHASES,
        "upstream": _UPSTREAM,
        "sources": _DUAL_TRANSFORMER,
    },
    "dual BERT": {
        **_BASE,
        "upstream": {"train": TRAIN, "objective": "masked_tokens"},
        "sources": {"segments": "none", "cross_attention": "joint", "fine_encoder": {"num_layers": 0}},
        "multi_source": {"train": TRAIN},
    },
    "dual transformer, learned positions": {
        **_BASE,
        "model": {**_BASE["model"], "source_positions": "learned", "max_positions": 300},
        "sources": _DUAL_TRANSFORMER,
        "multi_source": {"train": TRAIN},
    },
    "four sources": {
        **_BASE,
        "data": _four_sources(),
        "multi_source": {"train": TRAIN},
        "is_adversarial": True,
        "score": {"metrics": ALL_SCORES["metrics"]},
    },
    "previous sentence": {**_BASE, **_PHASES, "data": _DOCUMENTS, "documents": "previous"},
    "two sentences joined": {
        **_BASE,
        "data": _DOCUMENTS,
        "documents": "joined",
        "single_source": {"train": TRAIN},
    },
}
ARMS["dual transformer, pretrained"]["multi_source"] = {"train": TRAIN, "part": {"top_layers": 1}}
ARMS["single source"]["model"] = {**_BASE["model"], "target_positions": "learned", "max_positions": 300}
