"""The arms: what each method is, as far as the stages of a trial depend on it. No torch here."""

from __future__ import annotations

from typing import Literal

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

GENERATOR_KINDS = {"avg_eg": "avg", "att_eg": "att", "patt_eg": "patt"}
"""Methods that generate embeddings from similar tokens, with the kind of their generator."""
TRAINED_METHODS = ("att_eg", "patt_eg")
"""Methods whose generator has parameters."""
PRETRAINED_VOCABULARIES = {"downstream_vocab": "downstream", "joint_vocab": "joint"}
"""Methods that pretrain with another vocabulary than the upstream corpus's own, and whose it is."""
UNTRAINED_METHODS = ("single_run", "untrained")
"""Methods that begin with a random model."""
KEPT_METHODS = (*UNTRAINED_METHODS, "pretrain_finetune", "bpe_dropout", *PRETRAINED_VOCABULARIES)
"""Methods that keep the vocabulary of the model they finetune."""
VECTOR_METHODS: dict[str, tuple[Literal["skipgram", "cbow"], tuple[str, ...]]] = {
    "word2vec": ("skipgram", ("new",)),
    "cbow": ("cbow", ("new",)),
    "focus": ("skipgram", ("new",)),
    "wechsel": ("skipgram", ("new", "old")),
}
"""Methods that read vectors of tokens learned from text: their kind, and of which vocabularies."""
