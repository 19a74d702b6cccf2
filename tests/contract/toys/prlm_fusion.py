"""Every arm of prlm_fusion at a size of seconds."""

from typing import Any

from tests.small_studies import ALL_SCORES, GREEDY, TINY, TRAIN

_TRAIN = {**TRAIN, "max_steps": 3, "eval_every_steps": 2}
_SIZES = {"d_model": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 2}
_BASE: dict[str, Any] = {
    "data": {
        "downstream": {"corpus": "conlang", "task": "translation", "train": 100, "dev": 8, "test": 6},
        "upstream": {
            "corpus": "conlang",
            "task": "monolingual",
            "language": "first",
            "train": 120,
            "dev": 8,
            "test": 6,
        },
    },
    "tokenizer": {"vocab_size": 200},
    "prlms": {
        "bert": {"kind": "bert", "model": _SIZES},
        "gpt": {"kind": "gpt", "model": _SIZES},
        "electra": {"kind": "electra", "model": _SIZES},
        "distilbert": {"kind": "distilbert", "teacher": "bert", "num_layers": 1},
    },
    "pretraining": {"tokenizer": {"vocab_size": 150}, "train": {**_TRAIN, "max_steps": 2}},
    "model": TINY,
    "train": _TRAIN,
    "decode": GREEDY,
}


def _arm(**fusion):
    return {**_BASE, "fusion": {"prlms": ["bert"], "max_tokens": 20, **fusion}}


ARMS = {
    "plain": _arm(merge="none"),
    "sum": _arm(),
    "gate, finetuned": _arm(merge="gate", is_frozen=False, lr_multiplier=0.5),
    "average, scalar mix, live": _arm(merge="average", layers="scalar_mix", states="live"),
    "dropnet, both sides": _arm(merge="dropnet", side="both", dropnet_probability=0.75),
    "direct": _arm(merge="direct"),
    "direct, finetuned": _arm(merge="direct", is_frozen=False),
    "lamate": _arm(
        merge="direct",
        layers="groups",
        group_size=1,
        has_mlp=True,
        is_frozen=False,
        first_stage={**_TRAIN, "max_steps": 2},
    ),
    "average, finetuned": _arm(merge="average", is_frozen=False),
    "dropnet, finetuned": _arm(merge="dropnet", is_frozen=False),
    "sum, adapters": _arm(prlms=["gpt", "electra"], is_frozen=False, part={"lora": {"rank": 2}}),
    "direct, top layer": _arm(merge="direct", layers=-1, is_frozen=False, part={"top_layers": 1}),
    "gate": _arm(merge="gate", states="bf16"),
    "random weights": _arm(weights="random"),
    "random weights, trained": _arm(weights="random", is_frozen=False),
    "own embeddings": _arm(weights="own"),
    "frozen with dropout": _arm(has_frozen_dropout=True),
    "four": _arm(prlms=["bert", "gpt", "electra", "distilbert"], layers="mean"),
}
ARMS["direct"]["model"] = {**_BASE["model"], "source_positions": "learned", "max_positions": 300}
ARMS["sum"]["num_extracted_sentences"] = 1
ARMS["sum"]["score"] = ALL_SCORES
ARMS["plain"]["model"] = {**_BASE["model"], "target_positions": "learned", "max_positions": 300}
