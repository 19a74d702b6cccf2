"""What the contestants work on: real text where it is at hand, and a model of one size."""

from __future__ import annotations

import gzip
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.text.batches import Ragged
from nlgraft.text.config import ConlangConfig, TokenizerConfig
from nlgraft.text.corpora import load_corpus
from nlgraft.text.tokenizers import SentencePiece, train_sentencepiece
from nlgraft.training.views import Encoded

VOCAB_SIZE = 8000
SIZE = {"d_model": 256, "num_encoder_layers": 3, "num_decoder_layers": 3, "num_heads": 4, "ffn_dim": 1024}
_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Material:
    """A parallel corpus as ids under one joint vocabulary.

    Attributes:
        name: Where it is from.
        train: Training pairs.
        test: Test pairs.
        vocab_size: Size of the vocabulary.
    """

    name: str
    train: Encoded
    test: Encoded
    vocab_size: int


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


@cache
def load_material() -> Material:
    """Load Multi30k English-German below ``NLGRAFT_DATA``, or else make constructed text of the same size."""
    root = Path(os.environ.get("NLGRAFT_DATA", _SHARED)) / "multi30k"
    if root.is_dir():
        name = "Multi30k en-de"
        train = [_lines(root / f"train.{side}.gz") for side in ("en", "de")]
        test = [_lines(root / f"test_2016_flickr.{side}.gz") for side in ("en", "de")]
    else:
        name = "conlang"
        corpora = load_corpus(ConlangConfig(corpus="conlang", train=29000, dev=1000, test=1000))
        train, test = (
            [corpora[split].sources[0], list(corpora[split].target or [])] for split in ("train", "test")
        )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "joint.model"
        train_sentencepiece(train[0] + train[1], TokenizerConfig(vocab_size=VOCAB_SIZE), path, seed=0)
        tokenizer = SentencePiece(path)
        encoded = [
            Encoded({"source 0": Ragged.of(tokenizer.encode(x)), "target": Ragged.of(tokenizer.encode(y))})
            for x, y in (train, test)
        ]
        return Material(name, encoded[0], encoded[1], tokenizer.vocab_size)


def our_model(vocab_size: int, **changes: Any) -> Seq2Seq:
    """Our Transformer, post-norm, all tables tied, as Marian is."""
    torch.manual_seed(0)
    config = TransformerConfig.model_validate(
        {**SIZE, "dropout": 0.1, "norm": "post", "tying": "all", "activation": "relu", **changes}
    )
    return Seq2Seq(config, vocab_size, vocab_size)
