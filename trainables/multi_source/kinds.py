"""The stages that only this system has: settings and inputs. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T

TEXT, LANGUAGE = "source 0", "language"
"""Streams of text of several languages: the lines, and the language id of each."""


class LanguagesSettings(Settings):
    """Lines of several languages as ids."""

    tokens: Mapping[str, str]
    """Special token of each language."""
    max_tokens: int
    """Longest line, in tokens without begin and end; longer ones are cut and counted."""


@dataclass(frozen=True, kw_only=True)
class LanguagesInputs(Inputs[T]):
    """Text by language, and the tokenizer of all."""

    corpora: Mapping[str, T]
    tokenizer: T


class DocumentsSettings(Settings):
    """Examples of two neighbouring sentences of a document."""

    kind: Literal["previous", "joined"]
    """``previous``: the sentence before is the first of two sources, absent at the start of a document.
    ``joined``: both sentences on one line, in source and target."""
    separator: str | None = None
    """Joined: what stands between the two; no text has it, and the tokenizer keeps it as one piece."""


class LastSentenceSettings(Settings):
    """The translation of the second of two joined sentences."""

    separator: str
    """What stands between the two."""


@dataclass(frozen=True, kw_only=True)
class CorpusInputs(Inputs[T]):
    """A corpus."""

    corpus: T


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
