"""Every arm of llm_vocabulary at a size of seconds."""

from typing import Any, get_args

from tests.small_studies import ALL_SCORES, TRAIN
from trainables.llm_vocabulary.config import VECTOR_METHODS, Change

_TRAIN = {**TRAIN, "batch_tokens": 400, "eval_every_steps": 2}
_SIZES = {"corpus": "conlang", "task": "monolingual", "dev": 12, "test": 12}
_TOY: dict[str, Any] = {
    "data": {
        "upstream": {**_SIZES, "domain": "a", "train": 100},
        "downstream": {**_SIZES, "domain": "b", "train": 60},
    },
    "causal_lm": {
        "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 24},
        "tokenizer": {"vocab_size": 290},
        "max_tokens": 24,
    },
    "upstream": {"train": _TRAIN},
    "vocabulary": {"size": 280, "num_added": 20},
    "vectors": {"epochs": 1},
    "training": {"train": _TRAIN},
}


def _vocabulary(**settings):
    return {**_TOY, "vocabulary": {**_TOY["vocabulary"], **settings}}


def _arms():
    donor = {"model": {"d_model": 12, "num_heads": 2, "ffn_dim": 16}, "train": _TRAIN}
    arms = {change: _vocabulary(change=change) for change in get_args(Change)}
    for change in ("none", "extend"):
        arms[f"{change}, not trained"] = {**arms[change], "training": None}
    for change in ("replace", "extend", "prune_extend"):
        arms[f"{change}, omp"] = _vocabulary(change=change, method="omp", donor=donor)
        train = {**_TRAIN, "max_epochs": None, "batch_tokens": None, "batch_sentences": 8}
        distillation = {"num_contexts": 3, "context_tokens": 12, "train": train}
        arms[f"{change}, distilled"] = _vocabulary(change=change, distillation=distillation)
    for change, methods in {"replace": VECTOR_METHODS, "prune_extend": ("focus",)}.items():
        for method in methods:
            arms[f"{change}, {method}"] = _vocabulary(change=change, method=method)
    arms["extend, new rows first"] = {
        **_vocabulary(change="extend", method="random"),
        "training": {"train": _TRAIN, "new_rows_first_steps": 1, "table_lr_multiplier": 2.0},
    }
    arms["extend, adapters"] = {
        **_vocabulary(change="extend"),
        "training": {"train": _TRAIN, "lora": {"rank": 2}, "table_lr_multiplier": 2.0},
    }
    pairs = {"corpus": "conlang", "task": "translation", "dev": 12, "test": 12}
    translation = {
        **_vocabulary(change="extend", method="focus"),
        "data": {
            "upstream": {**pairs, "domain": "a", "train": 60},
            "downstream": {**pairs, "domain": "b", "train": 40},
        },
        "causal_lm": {**_TOY["causal_lm"], "max_tokens": 140},
        "task": {"prompt": "{source} => ", "max_target_tokens": 64, "decode": {"beam": 2}},
        "score": ALL_SCORES,
    }
    arms["extend, translation"] = translation
    summaries = {**translation["data"]["downstream"], "task": "summarisation"}
    arms["none, summaries by a model that is not trained on them"] = {
        **_vocabulary(change="none"),
        "data": {**_TOY["data"], "downstream": summaries},
        "training": None,
        "causal_lm": {**_TOY["causal_lm"], "max_tokens": 64},
        "task": {"max_target_tokens": 40, "decode": {"beam": 1}},
        "score": {"metrics": ["rouge_l"]},
    }
    return arms


ARMS = _arms()
