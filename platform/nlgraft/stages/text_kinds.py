"""Corpora, tokenizers and encoded text: settings and inputs of their stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig


class CorpusSettings(Settings):
    """The text of a corpus. Its place is among the stage's locations, as ``corpus``."""

    content: dict[str, Any]
    """Digest of the corpus."""
    joined_by: str | None = None
    """Separator with which the sources of an example are joined into one; null: they stay separate."""


class TextSettings(Settings):
    """All lines of a corpus, whatever their role, as ``source 0``. Locations as for a corpus."""

    content: dict[str, Any]
    """Digest of the corpus."""


@dataclass(frozen=True, kw_only=True)
class NoInputs(Inputs[T]):
    """Nothing is read but outside data."""


class TokenizerSettings(Settings):
    """A SentencePiece model and what it learns from."""

    tokenizer: LearnedTokenizerConfig
    """Its kind and size; ``is_shared`` is left at its default."""
    roles: tuple[str, ...] | None
    """Roles of the training text, e.g. ``source 0``; null: all text."""
    symbols: tuple[str, ...] = ()
    """Strings that are always one piece each in text, and that decoding keeps."""


@dataclass(frozen=True, kw_only=True)
class TokenizerInputs(Inputs[T]):
    """Corpora whose training text is learned from, in the order of their names."""

    corpora: Mapping[str, T]


class EncodeSettings(Settings):
    """Streams of ids made from a corpus."""

    streams: Mapping[str, str]
    """Role of the text of each stream: ``{"source 0": "source 0", "context bert": "source 0"}``."""
    max_tokens: int | None = None
    """Longest sequence, in tokens without begin and end; longer ones are cut and counted. Null: any."""
    splits: tuple[Split, ...] = ("train", "dev")
    """Splits to encode."""


@dataclass(frozen=True, kw_only=True)
class EncodeInputs(Inputs[T]):
    """A corpus, and the tokenizer of each stream."""

    corpus: T
    tokenizers: Mapping[str, T] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CorpusInputs(Inputs[T]):
    """A corpus."""

    corpus: T


@dataclass(frozen=True, kw_only=True)
class TokenizedInputs(CorpusInputs[T]):
    """A corpus and a tokenizer."""

    tokenizer: T


CORPUS = StageKind(
    "nlgraft.stages.run.text_stages:write_examples",
    CorpusSettings,
    NoInputs,
    check="nlgraft.stages.kind_checks:corpora",
)
TEXT = StageKind(
    "nlgraft.stages.run.text_stages:write_text",
    TextSettings,
    NoInputs,
    check="nlgraft.stages.kind_checks:corpora",
)
TOKENIZER = StageKind(
    "nlgraft.stages.run.text_stages:learn_tokenizer",
    TokenizerSettings,
    TokenizerInputs,
    check="nlgraft.stages.kind_checks:tokenizers",
)
ENCODED = StageKind("nlgraft.stages.run.text_stages:encode", EncodeSettings, EncodeInputs)
