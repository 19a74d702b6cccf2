"""Every arm of embedding_transfer at a size of seconds."""

from typing import Any, get_args

from nlgraft.evaluation.metric_config import TextMetric
from tests.small_studies import GREEDY, TINY, TRAIN
from trainables.embedding_transfer.config import Method

_TRAIN = {**TRAIN, "max_steps": 3, "eval_every_steps": 2}
_GENERATOR = {"max_steps": 2, "batch_tokens": 800, "eval_every_steps": 2, "num_dev_sentences": 6}


def _corpora(task, train=(150, 80)):
    sizes = {"dev": 8, "test": 6}
    return {
        name: {"corpus": "conlang", "task": task, "domain": domain, "train": count, **sizes}
        for name, domain, count in zip(("upstream", "downstream"), "ab", train, strict=True)
    }


_TRANSLATION = {
    "data": _corpora("translation"),
    "tokenizers": {
        "upstream": {"vocab_size": 160, "is_shared": False},
        "downstream": {"vocab_size": 200, "is_shared": False},
        "joint": {"vocab_size": 180, "is_shared": False},
    },
    "model": TINY,
    "upstream": {"train": _TRAIN},
    "downstream": {"train": _TRAIN},
    "independent": {"max_steps": 3, "warmup_steps": 1, "peak_lr": 0.01, "eval_every_steps": 2},
    "generator": _GENERATOR,
    "vectors": {"epochs": 1},
    "decode": GREEDY,
}
_TEXT = {
    **_TRANSLATION,
    "data": {**_corpora("question_generation"), "upstream": _corpora("monolingual")["upstream"]},
    "tokenizers": {
        "upstream": {"vocab_size": 200, "is_shared": True},
        "downstream": {"vocab_size": 220, "is_shared": True},
    },
    "score": {
        "metrics": [name for name in get_args(TextMetric) if name != "bleu"],
        "is_calibrated": True,
    },
}
_MASKED_LM = {
    "data": _corpora("monolingual"),
    "masked_lm": {
        "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 1},
        "upstream_tokenizer": {"vocab_size": 160},
        "downstream_tokenizer": {"vocab_size": 180},
    },
    "upstream": {"train": _TRAIN},
    "downstream": {"train": _TRAIN},
    "generator": {**_GENERATOR, "encoder_rates": {"min_split_chars": 3}},
    "vectors": {"epochs": 1},
}
_MASKED_METHODS = ("pretrain_finetune", "random_init", "focus", "att_eg", "patt_eg")


def _arms():
    arms: dict[str, dict[str, Any]] = {}
    for method in get_args(Method):
        arms[method] = {**_TRANSLATION, "transfer": {"method": method}}
    upstream = {**_TRANSLATION["tokenizers"]["upstream"], "kind": "bpe", "sampling_alpha": 0.1}
    arms["bpe_dropout"]["tokenizers"] = {**_TRANSLATION["tokenizers"], "upstream": upstream}
    arms["patt_eg, both sides, learned positions"] = {
        **_TRANSLATION,
        "model": {**TINY, "source_positions": "learned", "max_positions": 300},
        "transfer": {"method": "patt_eg", "sides": "both"},
        "downstream": {"train": _TRAIN, "num_bleu_sentences": 4},
    }
    arms["att_eg, encoder"] = {**_TRANSLATION, "transfer": {"method": "att_eg", "sides": "encoder"}}
    for objective, method in (
        ("denoising", "patt_eg"),
        ("masked_tokens", "att_eg"),
        ("masked_tokens", "patt_eg"),
    ):
        arms[f"{objective}, {method}"] = {
            **_TEXT,
            "upstream": {"objective": objective, "train": _TRAIN},
            "transfer": {"method": method},
        }
    for method in _MASKED_METHODS:
        arms[f"masked LM, {method}"] = {**_MASKED_LM, "transfer": {"method": method}}
    # the losses after 100 and 500 steps are reported where so many are trained
    arms["masked LM, pretrain_finetune"]["downstream"] = {
        "train": {**_TRAIN, "max_steps": 500, "eval_every_steps": 100, "batch_tokens": 40}
    }
    return arms


ARMS = _arms()
ARMS["avg_eg"]["model"] = {**TINY, "target_positions": "learned", "max_positions": 300}
