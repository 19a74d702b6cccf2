"""Every arm of vocabulary_transfer at a size of seconds."""

from typing import Any, get_args

from tests.small_studies import TRAIN
from trainables.vocabulary_transfer.config import Method

_TRAIN = {**TRAIN, "batch_tokens": 400, "eval_every_steps": 2}
_SIZES = {"corpus": "conlang", "dev": 12, "test": 12}
_TOY: dict[str, Any] = {
    "data": {
        "upstream": {**_SIZES, "task": "monolingual", "domain": "a", "train": 100},
        "downstream": {**_SIZES, "task": "classification", "domain": "b", "train": 60},
    },
    "masked_lm": {
        "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 32},
        "upstream_tokenizer": {"vocab_size": 150},
        "downstream_tokenizer": {"vocab_size": 160, "kind": "unigram"},
    },
    "upstream": {"train": _TRAIN},
    "classification": {"train": _TRAIN},
}


def _arms():
    arms = {method: {**_TOY, "transfer": {"method": method}} for method in get_args(Method)}
    for method in ("vipi", "old_vocabulary", "from_scratch"):
        arms[f"{method}, further training"] = {**arms[method], "intermediate": _TRAIN}
    unlabelled = {**_SIZES, "task": "monolingual", "domain": "b", "train": 120}
    for method in ("vipi", "old_vocabulary"):
        arms[f"{method}, unlabelled text"] = {
            **arms[f"{method}, further training"],
            "data": {**_TOY["data"], "unlabelled": unlabelled},
        }
    bpe = {"vocab_size": 160, "kind": "bpe", "dropout": 0.2}
    arms["BPE-dropout"] = {
        **_TOY,
        "masked_lm": {**_TOY["masked_lm"], "downstream_tokenizer": bpe},
        "intermediate": _TRAIN,
    }
    frozen = {"classifier": {"is_body_trained": False}, "train": _TRAIN}
    arms["frozen body, split anew"] = {
        **_TOY,
        "data": {**_TOY["data"], "split": {"num_labels": 2, "num_examples": 40}},
        "classification": frozen,
    }
    return arms


ARMS = _arms()
