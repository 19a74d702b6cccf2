"""Text stages of a stage graph, without torch: corpora, tokenizers learned from them, and encoded text.

Each function builds a stage from a config. Names of stages begin with the name that the function is given, so
that a graph may have several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.pipeline.stage import Stage
from nlgraft.stages.stage_kind import (
    CORPUS,
    ENCODED,
    TEXT,
    TOKENIZER,
    CorpusSettings,
    EncodeInputs,
    EncodeSettings,
    NoInputs,
    TextSettings,
    TokenizerInputs,
    TokenizerSettings,
)
from nlgraft.text.corpus_config import AnyCorpus, as_corpus, digest
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig, TokenizerConfig

TARGET = "target"


@dataclass(frozen=True)
class TokenizedText:
    """A corpus as ids of one tokenizer.

    Attributes:
        corpus: The corpus.
        tokenizer: Its tokenizer.
        encoded: The encoded splits.
    """

    corpus: Stage
    tokenizer: Stage
    encoded: Stage

    @property
    def inputs(self) -> dict[str, Stage]:
        """What stages that read the text have as inputs of these names."""
        return {"corpus": self.corpus, "tokenizer": self.tokenizer, "encoded": self.encoded}


def source_roles(num_sources: int) -> tuple[str, ...]:
    """List the roles of K sources: ``source 0``, ``source 1``..."""
    return tuple(f"source {index}" for index in range(num_sources))


def corpus(
    name: str,
    config: AnyCorpus,
    *,
    joined_by: str | None = None,
) -> Stage:
    """Load a corpus with all of its roles; ``joined_by`` puts several sources on one line."""
    # The digest identifies the text, the location says where this machine has it.
    config = as_corpus(config)
    return CORPUS.stage(
        f"{name}_corpus",
        CorpusSettings(content=digest(config), joined_by=joined_by),
        NoInputs(),
        locations={"corpus": config.model_dump(mode="json")},
    )


def text(name: str, config: AnyCorpus) -> Stage:
    """Load all lines of a corpus, whatever their role, as ``source 0``."""
    config = as_corpus(config)
    return TEXT.stage(
        f"{name}_text",
        TextSettings(content=digest(config)),
        NoInputs(),
        locations={"corpus": config.model_dump(mode="json")},
    )


def tokenizer(
    name: str,
    config: TokenizerConfig,
    corpora: Mapping[str, Stage],
    roles: Sequence[str] | None = None,
    *,
    special_tokens: tuple[str, ...] = (),
    symbols: tuple[str, ...] = (),
) -> Stage:
    """Learn a tokenizer from the training text of some roles (None: all text) of one corpus or several.

    ``symbols`` as in ``TokenizerSettings``.
    """
    # Sampling of segmentations does not change the pieces, so it stays out of the fingerprint.
    fields: dict[str, Any] = config.model_dump(include={*TokenizerConfig.model_fields})
    learned = LearnedTokenizerConfig(**fields | {"is_shared": True, "special_tokens": special_tokens})
    return TOKENIZER.stage(
        f"{name}_tokenizer",
        TokenizerSettings(tokenizer=learned, roles=None if roles is None else tuple(roles), symbols=symbols),
        TokenizerInputs(corpora=corpora),
    )


def tokenizers(
    name: str,
    config: TokenizerConfig,
    corpora: Mapping[str, Stage],
    num_sources: int = 1,
    *,
    special_tokens: tuple[str, ...] = (),
) -> dict[str, Stage]:
    """Learn the tokenizers of K sources, which share one, and of the target: one for all if it is shared.

    Each has the ``special_tokens``.
    """
    roles = source_roles(num_sources)
    if config.is_shared:
        shared = tokenizer(f"{name}_shared", config, corpora, special_tokens=special_tokens)
        # One stage under several names: it runs once.
        return dict.fromkeys((*roles, TARGET), shared)
    source, target = (
        tokenizer(f"{name}_{side}", config, corpora, read, special_tokens=special_tokens)
        for side, read in (("source", roles), ("target", (TARGET,)))
    )
    return {**dict.fromkeys(roles, source), TARGET: target}


@dataclass(frozen=True)
class EncodedText:
    """A corpus as ids, with what it was made of.

    Attributes:
        corpus: The corpus.
        tokenizers: Tokenizer of each stream.
        settings: Role of the text of each stream, and the longest sequence.
        encoded: The encoded splits.
    """

    corpus: Stage
    tokenizers: Mapping[str, Stage]
    settings: EncodeSettings
    encoded: Stage


def encode(
    name: str,
    corpus: Stage,
    tokenizers: Mapping[str, Stage],
    *,
    streams: Mapping[str, str] | None = None,
    max_tokens: int | None = None,
) -> EncodedText:
    """Encode streams of a corpus.

    Args:
        name: Beginning of the stage's name.
        corpus: The corpus.
        tokenizers: Tokenizer of each stream.
        streams: Role of the text of streams that are not named as their role.
        max_tokens: Longest sequence, in tokens without begin and end; None: any.
    """
    roles = {stream: (streams or {}).get(stream, stream) for stream in tokenizers}
    settings = EncodeSettings(streams=roles, max_tokens=max_tokens)
    inputs = EncodeInputs(corpus=corpus, tokenizers=tokenizers)
    return EncodedText(corpus, tokenizers, settings, ENCODED.stage(f"{name}_encoded", settings, inputs))
