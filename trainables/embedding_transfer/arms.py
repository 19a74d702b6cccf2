"""The arms, and which settings each of them reads. Without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen

Method = Literal[
    "single_run",
    "pretrain_finetune",
    "untrained",
    "downstream_vocab",
    "joint_vocab",
    "bpe_dropout",
    "random_init",
    "mean",
    "hewitt",
    "fvt",
    "wvt",
    "word2vec",
    "reconstruction",
    "focus",
    "wechsel",
    "independent_encoder",
    "cbow",
    "avg_eg",
    "att_eg",
    "patt_eg",
]

GENERATOR_KINDS: dict[str, Literal["avg", "att", "patt"]] = {
    "avg_eg": "avg",
    "att_eg": "att",
    "patt_eg": "patt",
}
"""Methods that generate embeddings from similar tokens, with their kind of generator."""
PRODUCERS = {"random_init": "random", "avg_eg": "avg"}
"""Methods with a different name in `nlgraft.vocab.methods`."""
TRAINED_METHODS = ("att_eg", "patt_eg")
"""Methods whose generator has parameters."""
PRETRAINED_VOCABULARIES = {"downstream_vocab": "downstream", "joint_vocab": "joint"}
"""Methods that do not pretrain with the upstream vocabulary, and the vocabulary they use instead."""
UNTRAINED_METHODS = ("single_run", "untrained")
"""Methods that start from a randomly initialised model."""
KEPT_METHODS = (*UNTRAINED_METHODS, "pretrain_finetune", "bpe_dropout", *PRETRAINED_VOCABULARIES)
"""Methods that keep the vocabulary of the model they finetune."""
VECTOR_METHODS: dict[str, tuple[Literal["skipgram", "cbow"], tuple[str, ...]]] = {
    "word2vec": ("skipgram", ("new",)),
    "cbow": ("cbow", ("new",)),
    "focus": ("skipgram", ("new",)),
    "wechsel": ("skipgram", ("new", "old")),
}
"""Methods that use token vectors learned from text: kind of the vectors, and vocabularies that need them."""
STREAMS = {"encoder": "source 0", "decoder": "target"}
"""Stream of the encoded text that is the input of each side of the model."""

_METHODS: tuple[str, ...] = get_args(Method)
_EXCHANGING = tuple(name for name in _METHODS if name not in KEPT_METHODS)
MASKED_LM_METHODS = ("pretrain_finetune", *(name for name in _EXCHANGING if name != "independent_encoder"))
"""Methods available for masked language models."""


def _with(methods: Iterable[str], others: Condition | None = None) -> Condition:
    return {"transfer.method": tuple(methods), **(others or {})}


_PRETRAINED = _with(name for name in _METHODS if name not in UNTRAINED_METHODS)
_WITH_UPSTREAM_TEXT = _with(name for name in _METHODS if name != "single_run")
_WITH_NEW_ROWS = _with(name for name in _EXCHANGING if name != "independent_encoder")
_TRANSLATED: Condition = {"masked_lm": (None,)}
_PAIRS_PRETRAINED: Condition = {**_PRETRAINED, **_TRANSLATED}
READ_WHEN: ReadWhen = {
    "data.upstream": (_WITH_UPSTREAM_TEXT,),
    "tokenizers.upstream": (_WITH_UPSTREAM_TEXT,),
    "tokenizers.upstream.sampling_alpha": (_PRETRAINED,),
    "tokenizers.downstream": (_with(("single_run", "downstream_vocab", *_EXCHANGING)),),
    "tokenizers.downstream.sampling_alpha": (),
    "tokenizers.joint": (_with(("joint_vocab",)),),
    "upstream": (_PRETRAINED,),
    "upstream.checkpoint": (_PAIRS_PRETRAINED,),
    **{f"upstream.train.{name}": (_PAIRS_PRETRAINED,) for name in ("label_smoothing", "smoothing_kind")},
    **{f"downstream.train.{name}": (_TRANSLATED,) for name in ("label_smoothing", "smoothing_kind")},
    "generator": (_with(TRAINED_METHODS),),
    "generator.encoder_rates": (
        _with(TRAINED_METHODS, {"transfer.sides": ("encoder", "both")}),
        _with(TRAINED_METHODS, {"upstream.objective": ("masked_tokens",)}),
        _with(TRAINED_METHODS, {"masked_lm": (GIVEN,)}),
    ),
    "generator.decoder_rates": (
        _with(
            TRAINED_METHODS,
            {"transfer.sides": ("decoder", "both"), "upstream.objective": ("translation", "denoising")},
        ),
    ),
    "transfer.sides": (_with((*PRETRAINED_VOCABULARIES, *_EXCHANGING)),),
    "transfer.cap": (_with(GENERATOR_KINDS),),
    "transfer.order": (_with(GENERATOR_KINDS),),
    "transfer.norm_match": (_WITH_NEW_ROWS,),
    "transfer.new_rows_first_steps": (_WITH_NEW_ROWS,),
    "vectors": (_with(VECTOR_METHODS),),
    "independent": (_with(("independent_encoder",)),),
    "masked_lm.downstream_tokenizer": (_with(_EXCHANGING),),
}
"""Settings that only some arms read: see `nlgraft.basics.strict_config`."""
