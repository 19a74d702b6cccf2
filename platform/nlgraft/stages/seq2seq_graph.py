"""Pieces of stage graphs, without torch: corpus, tokenizers, encoded text, training, translation, scores.

A piece builds stages from configs. Stage names begin with the name that a piece is given, so a graph may use
a piece several times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nlgraft.nn.model_config import BeamSearchConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import LanguageModelPhaseConfig, ScoreConfig
from nlgraft.stages.kinds.language_model_kinds import (
    LANGUAGE_MODEL,
    UNTRAINED_LANGUAGE_MODEL,
    LanguageModelInputs,
    LanguageModelSettings,
    UntrainedLanguageModelSettings,
)
from nlgraft.stages.kinds.seq2seq_kinds import (
    SCORE,
    TRAIN,
    TRANSLATE,
    DecodingSettings,
    ScoreInputs,
    ScoreSettings,
    TrainInputs,
    TrainSettings,
    TranslateInputs,
    TranslateSettings,
)
from nlgraft.stages.kinds.text_kinds import (
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
from nlgraft.stages.learned_graph import learned_scores
from nlgraft.text.corpus_config import AnyCorpus, Split, as_corpus
from nlgraft.text.corpus_digest import digest
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig, TokenizerConfig
from nlgraft.training.train_config import View

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


def source_roles(num_sources: int) -> tuple[str, ...]:
    """List the roles of K sources: ``source 0``, ``source 1``..."""
    return tuple(f"source {index}" for index in range(num_sources))


def corpus(name: str, config: AnyCorpus, *, joined_by: str | None = None) -> Stage:
    """Load a corpus with all of its roles; ``joined_by`` puts several sources on one line."""
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
        stage: The encoded splits.
    """

    corpus: Stage
    tokenizers: Mapping[str, Stage]
    settings: EncodeSettings
    stage: Stage


def encode(
    name: str,
    corpus: Stage,
    tokenizers: Mapping[str, Stage],
    *,
    streams: Mapping[str, str] | None = None,
    max_tokens: int | None = None,
    splits: tuple[Split, ...] = ("train", "dev"),
) -> EncodedText:
    """Encode streams of a corpus.

    Args:
        name: Beginning of the stage's name.
        corpus: The corpus.
        tokenizers: Tokenizer of each stream.
        streams: Role of the text of streams that are not named as their role.
        max_tokens: Longest sequence, in tokens without begin and end; None: any.
        splits: Splits to encode.
    """
    roles = {stream: (streams or {}).get(stream, stream) for stream in tokenizers}
    settings = EncodeSettings(streams=roles, max_tokens=max_tokens, splits=splits)
    inputs = EncodeInputs(corpus=corpus, tokenizers=tokenizers)
    return EncodedText(corpus, tokenizers, settings, ENCODED.stage(f"{name}_encoded", settings, inputs))


@dataclass(frozen=True)
class ContextStages:
    """What a model reads of pretrained encoders.

    Attributes:
        encoders: Pretrained encoder of each context.
        states: Their precomputed states, by stream.
        means: What a centred pooling subtracts, by context.
    """

    encoders: Mapping[str, Stage] = field(default_factory=dict)
    states: Mapping[str, Stage] = field(default_factory=dict)
    means: Mapping[str, Stage] = field(default_factory=dict)


def train_inputs(
    text: EncodedText,
    *,
    start: Stage | None = None,
    architecture: Stage | None = None,
    contexts: ContextStages | None = None,
) -> TrainInputs[Stage]:
    """Name the inputs of a training on encoded text."""
    contexts = contexts or ContextStages()
    return TrainInputs(
        encoded=text.stage,
        corpus=text.corpus,
        tokenizers=text.tokenizers,
        start=start,
        architecture=architecture,
        encoders=contexts.encoders,
        states=contexts.states,
        means=contexts.means,
    )


def train_settings(text: EncodedText, settings: TrainSettings) -> TrainSettings:
    """Complete the settings of a training from its encoded text.

    Text that is segmented anew is truncated to the same length as the encoded text.
    """
    if settings.sampling_alpha is None:
        return settings
    limit = text.settings.max_tokens
    view = settings.view
    cut = {
        "sources": tuple(side.model_copy(update={"max_tokens": limit}) for side in view.sources),
        "target": view.target.model_copy(update={"max_tokens": limit}),
    }
    sides = (*view.sources, view.target)
    streams = {side.stream: text.settings.streams[side.stream] for side in sides}
    return settings.model_copy(update={"view": view.model_copy(update=cut), "streams": streams})


def train(
    name: str,
    text: EncodedText,
    settings: TrainSettings,
    *,
    seed: int,
    start: Stage | None = None,
    architecture: Stage | None = None,
    contexts: ContextStages | None = None,
) -> Stage:
    """Train an encoder-decoder, fresh or from an earlier model; inputs as in ``TrainInputs``."""
    inputs = train_inputs(text, start=start, architecture=architecture, contexts=contexts)
    return TRAIN.stage(name, train_settings(text, settings), inputs, seed=seed)


def language_model(
    name: str,
    text: EncodedText,
    config: LanguageModelPhaseConfig,
    *,
    seed: int,
    stream: str = "source 0",
    prefix: str | None = None,
) -> Stage:
    """Pretrain a language model on a stream of encoded text; its metrics begin with the stage's name.

    ``seed`` is that of the trial; ``prefix`` replaces the stage's name, empty for the trial's result.
    """
    settings = LanguageModelSettings(
        model=config.model,
        train=config.train,
        stream=stream,
        role=text.settings.streams[stream],
        max_tokens=text.settings.max_tokens,
        metric_prefix=name if prefix is None else prefix,
    )
    inputs = LanguageModelInputs(encoded=text.stage, corpus=text.corpus)
    return LANGUAGE_MODEL.stage(name, settings, inputs, seed=config.seed_of(seed))


def untrained_language_model(
    name: str, text: EncodedText, config: LanguageModelPhaseConfig, *, seed: int, stream: str = "source 0"
) -> Stage:
    """Draw a language model with random weights, the control of a pretrained one, from a trial's ``seed``."""
    settings = UntrainedLanguageModelSettings(model=config.model, stream=stream)
    inputs = LanguageModelInputs(encoded=text.stage, corpus=text.corpus)
    return UNTRAINED_LANGUAGE_MODEL.stage(name, settings, inputs, seed=config.seed_of(seed))


def translate(name: str, model: Stage, text: EncodedText, split: str, decoding: DecodingSettings) -> Stage:
    """Translate a split of a corpus, with sources truncated as in training."""
    sides = (*decoding.view.sources, *decoding.view.contexts.values())
    settings = TranslateSettings(
        # Field by field: a dump would turn parts of the settings into dictionaries.
        **{name: getattr(decoding, name) for name in DecodingSettings.model_fields},
        split=split,
        streams={side.stream: text.settings.streams[side.stream] for side in sides},
        max_tokens=text.settings.max_tokens,
    )
    inputs = TranslateInputs(model=model, corpus=text.corpus, tokenizers=text.tokenizers)
    return TRANSLATE.stage(name, settings, inputs)


def scores(
    trained: Stage,
    text: EncodedText,
    splits: Sequence[str],
    decoding: DecodingSettings,
    score: ScoreConfig,
    *,
    compared_tokenizer: Stage | None = None,
    further: Mapping[str, Stage] | None = None,
) -> Stage:
    """Translate and score splits with the trial's model: the last stage of a trial.

    Args:
        trained: Training of the model.
        text: The corpus.
        splits: Splits to translate.
        decoding: Input of the model, and settings of the search.
        score: Metrics.
        compared_tokenizer: Tokenizer of the target against which the model's saves tokens.
        further: Stages whose metrics belong to the trial although nothing else reads them.
    """
    translations = {
        split: translate(f"translation_{split}", trained, text, split, decoding) for split in splits
    }
    inputs = ScoreInputs(
        corpus=text.corpus,
        translations=translations,
        target_tokenizer=text.tokenizers[decoding.view.target.stream],
        compared_tokenizer=compared_tokenizer,
        trained=trained,
        further={**(further or {}), **learned_scores(score, text.corpus, translations)},
    )
    settings = score_settings(score).model_copy(update={"max_tokens": text.settings.max_tokens})
    return SCORE.stage("scores", settings, inputs)


def score_settings(score: ScoreConfig) -> ScoreSettings:
    """Take the measures of a system's config."""
    return ScoreSettings(
        metrics=score.metrics,
        bleu_tokenizer=score.bleu_tokenizer,
        rouge_tokenizer=score.rouge_tokenizer,
    )


def upstream_scores(
    model: Stage,
    text: EncodedText,
    *,
    decode: BeamSearchConfig,
    view: View | None = None,
    prefix: str = "upstream",
) -> Stage:
    """Score an upstream model by BLEU on dev of its own corpus."""
    # Lengths and speed of an upstream model would be taken for the trial's.
    decoding = DecodingSettings(decode=decode, view=view or View(), is_measured=False)
    translation = translate(f"{prefix}_translation", model, text, "dev", decoding)
    return SCORE.stage(
        f"{prefix}_scores",
        ScoreSettings(metrics=("bleu",), metric_prefix=prefix),
        ScoreInputs(
            corpus=text.corpus,
            translations={"dev": translation},
            target_tokenizer=text.tokenizers[TARGET],
        ),
    )
