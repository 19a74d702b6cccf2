"""Configuration of tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.text.corpus_config import SPECIAL_PIECES

NUM_BYTES = 256
MOST_TRAIN_LINES = 500_000
"""Lines from which any tokenizer learns where nothing else is said: of more lines it learns from a sample. So
many hold the words that matter (T5 and mBART chose theirs from samples, too), and a SentencePiece model of
them is learned in minutes and a gigabyte, both of which grow with the lines."""


class TokenizerConfig(StrictConfig):
    """A SentencePiece model, always with PAD=0, UNK=1, BOS=2, EOS=3."""

    kind: Literal["unigram", "bpe"] = "unigram"
    """Subword model: unigram language model (Kudo 2018) or byte-pair encoding (Sennrich et al. 2016)."""
    vocab_size: int = Field(default=4000, ge=5)
    """Number of pieces, special ones included: an upper bound, since a small corpus may hold fewer."""
    is_shared: bool = True
    """If true, sources and target share one model; otherwise each side has its own."""
    character_coverage: float = Field(default=1.0, ge=0.98, le=1.0)
    """Share of the text's characters that the vocabulary covers; 0.9995 for Chinese or Japanese."""
    has_byte_fallback: bool = Field(default=False, exclude_if=lambda has_bytes: not has_bytes)
    """If true, 256 pieces are bytes, which spell the characters beyond ``character_coverage``; otherwise
    these are unknown."""
    normalization: Literal["nmt_nfkc", "nfkc", "identity"] = "nmt_nfkc"
    """Unicode normalisation before segmentation."""
    max_train_lines: int | None = Field(default=None, ge=1)
    """Largest number of lines from which the pieces are learned, sampled with the seed; null: all of up to
    ``MOST_TRAIN_LINES``, else so many."""


class SampledTokenizerConfig(TokenizerConfig):
    """A SentencePiece model, and how the training text is segmented with it."""

    sampling_alpha: float | None = Field(default=None, gt=0, le=1)
    """Subword regularisation of the training text: smoothing of unigram sampling (Kudo 2018) or the
    probability of BPE-dropout (Provilkov et al. 2020). Null: always the best segmentation."""


class LearnedTokenizerConfig(TokenizerConfig):
    """A SentencePiece model with the special tokens that a system needs."""

    special_tokens: tuple[str, ...] = ()
    """Further tokens that text never produces, e.g. ``<en>`` or ``[MASK]``; their ids start at 4."""

    @field_validator("special_tokens")
    @classmethod
    def _distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [
            token
            for token in tokens
            if token in SPECIAL_PIECES or not token.strip() or tokens.count(token) > 1
        ]
        if wrong:
            raise ValueError(
                f"{wrong}: special tokens must be distinct, not blank and none of {', '.join(SPECIAL_PIECES)}"
            )
        return tokens

    def _problems(self) -> Iterator[str]:
        fixed = len(SPECIAL_PIECES) + len(self.special_tokens) + NUM_BYTES * self.has_byte_fallback
        if self.vocab_size <= fixed:
            yield (
                f"vocab_size is {self.vocab_size}, but {fixed} pieces are reserved; give more than {fixed}"
            )


class WordTokenizerConfig(StrictConfig):
    """A subword vocabulary in the file format of the tokenizers library, with a mask token."""

    kind: Literal["wordpiece", "unigram", "bpe"] = "wordpiece"
    """WordPiece as BERT splits words, or SentencePiece's unigram language model (Kudo 2018) or byte-pair
    encoding (Sennrich et al. 2016)."""
    vocab_size: int = Field(default=8000, ge=6)
    """Number of tokens, the five special ones included: an upper bound."""
    is_lowercase: bool = False
    """If true, text is lower-cased first, as for an uncased checkpoint; WordPiece then also removes
    accents."""
    dropout: float | None = Field(default=None, gt=0, lt=1)
    """BPE-dropout: probability of skipping a merge when training text is segmented, anew in every epoch
    (Provilkov et al. 2020: 0.1); null: all merges are applied."""

    def _problems(self) -> Iterator[str]:
        if self.dropout is not None and self.kind != "bpe":
            yield (
                f"dropout is {self.dropout} with kind {self.kind}, which has no merges: set kind to bpe, or "
                "leave dropout out"
            )


LEAST_BYTE_TOKENS = 258
"""Tokens of a byte-level vocabulary with one merge."""


class ByteTokenizerConfig(StrictConfig):
    """A byte-level BPE vocabulary (Radford et al. 2019), which knows every text and gives it back."""

    vocab_size: int = Field(default=4000, ge=LEAST_BYTE_TOKENS)
    """Number of tokens: 256 bytes, the end of a text, and merges; an upper bound."""


class WordSampling(StrictConfig):
    """Text that is segmented anew in every epoch of a training."""

    dropout: float
    """Probability of skipping a merge."""
    max_tokens: int
    """Longest line, in tokens without begin and end."""


class RatesConfig(StrictConfig):
    """Rates at which words are split and merged to simulate unseen tokens (section 3.3; authors' code)."""

    split: float = Field(default=0.4, ge=0, le=1)
    """Probability that a token of at least min_split_chars characters is considered for splitting."""
    min_split_chars: int = Field(default=3, ge=2)
    """Minimum length of a token that may be split, in characters (authors' code: targets 3, sources 7)."""
    merge: float = Field(default=0.5, ge=0, le=1)
    """Probability that a token is merged with the next one of its word, applied repeatedly."""


class SegmentationRates(RatesConfig):
    """Adds the rates of single cuts, which are fixed to those of the authors' code."""

    cut: float = Field(default=0.2, ge=0, le=1)
    """Probability of a cut at each inner character boundary of a token that is considered for splitting."""
    cut_edge: float = Field(default=0.2, ge=0, le=1)
    """The same where the cut splits off a single character."""
