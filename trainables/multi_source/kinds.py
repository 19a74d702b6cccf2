"""Settings and inputs of the stages that only this system has. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nlgraft.stages.kinds.text_kinds import CorpusInputs
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T

TEXT, LANGUAGE = "source 0", "language"
"""Streams of multilingual text: the lines, and the language id of each line."""


class LanguagesSettings(Settings):
    """Encoding of lines in several languages."""

    tokens: Mapping[str, str]
    """Special token of each language."""
    max_tokens: int
    """Maximum length of a line in tokens, without begin and end; longer lines are truncated and counted."""


@dataclass(frozen=True, kw_only=True)
class LanguagesInputs(Inputs[T]):
    """Text by language, and the shared tokenizer."""

    corpora: Mapping[str, T]
    tokenizer: T


class DocumentsSettings(Settings):
    """Examples made of two consecutive sentences of a document."""

    kind: Literal["previous", "joined"]
    """``previous``: the previous sentence is the first of two sources, absent at the start of a document.
    ``joined``: both sentences on one line, in source and target."""
    separator: str | None = None
    """joined: symbol between the two sentences; absent from the text, and kept whole by the tokenizer."""


class LastSentenceSettings(Settings):
    """Extraction of the second sentence from the translation of two joined ones."""

    separator: str
    """Symbol between the two sentences."""


@dataclass(frozen=True, kw_only=True)
class TranslationInputs(Inputs[T]):
    """A translation of a split."""

    translation: T


_STAGES = "trainables.multi_source.stages.text"
LANGUAGES = StageKind(f"{_STAGES}:encode_languages", LanguagesSettings, LanguagesInputs)
DOCUMENTS = StageKind(
    f"{_STAGES}:pair_sentences",
    DocumentsSettings,
    CorpusInputs,
    version=2,
    check="nlgraft.stages.kind_checks:separators",
)
LAST_SENTENCE = StageKind(f"{_STAGES}:keep_last_sentence", LastSentenceSettings, TranslationInputs, version=2)
