"""Pieces of stage graphs for masked language models and classifiers on them, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nlgraft.nn.model_config import BertConfig, ClassifierConfig, TransformerConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import ClassificationConfig, MaskedLMConfig
from nlgraft.stages.released_graph import CHECKPOINTS, CheckpointSettings, Released, checkpoint_settings
from nlgraft.stages.stage_kind import (
    CorpusInputs,
    Inputs,
    NoInputs,
    Settings,
    StageKind,
    T,
    TokenizedInputs,
    TrainingSettings,
    TrainLanguageModelInputs,
)
from nlgraft.stages.text_graph import EncodedText, TokenizedText
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import WordSampling, WordTokenizerConfig
from nlgraft.training.train_config import (
    MaskedScoringConfig,
    MaskingConfig,
    SmoothedTrainConfig,
    SmoothingKind,
    TrainConfig,
)


@dataclass(frozen=True)
class MaskedText(TokenizedText):
    """A corpus as ids with its words.

    Attributes:
        sampling: How trainings segment it anew, if they do.
    """

    sampling: WordSampling | None = None


def _locations(config: MaskedLMConfig) -> dict[str, Any]:
    """Return where the checkpoint lies and, for its checks, how it will be read."""
    return {} if config.checkpoint is None else {"checkpoint": config.checkpoint, "read_as": "masked_lm"}


def word_tokenizer(name: str, config: WordTokenizerConfig, corpus: Stage) -> Stage:
    """Learn a tokenizer from the training text of a corpus."""
    # The vocabulary does not depend on the dropout with which text is segmented later.
    settings = WordTokenizerSettings(tokenizer=config.model_copy(update={"dropout": None}))
    return WORD_TOKENIZER.stage(f"{name}_tokenizer", settings, CorpusInputs(corpus=corpus))


def upstream_tokenizer(config: MaskedLMConfig, corpus: Stage) -> Stage:
    """Take the tokenizer of the checkpoint, or learn that of a model that is trained from scratch."""
    checkpoint = checkpoint_settings(config.checkpoint, config.revision)
    if checkpoint is None:
        assert config.upstream_tokenizer is not None
        return word_tokenizer("upstream", config.upstream_tokenizer, corpus)
    return CHECKPOINT_TOKENIZER.stage(
        "checkpoint_tokenizer", checkpoint, NoInputs(), locations=_locations(config)
    )


def masked_text(
    name: str,
    corpus: Stage,
    tokenizer: Stage,
    *,
    max_tokens: int,
    dropout: float | None = None,
) -> MaskedText:
    """Encode a corpus, its words kept; with ``dropout`` trainings segment it anew by BPE-dropout."""
    encoded = ENCODED_WORDS.stage(
        f"{name}_encoded",
        EncodeWordsSettings(max_tokens=max_tokens),
        TokenizedInputs(corpus=corpus, tokenizer=tokenizer),
    )
    sampling = None if dropout is None else WordSampling(dropout=dropout, max_tokens=max_tokens)
    return MaskedText(corpus, tokenizer, encoded, sampling)


def pretrained_masked_lm(
    config: MaskedLMConfig,
    train: TrainConfig,
    text: MaskedText,
    *,
    max_tokens: int,
    seed: int,
) -> Stage:
    """Train the model that trials share: from scratch, or a released one with its missing head."""
    settings = TrainMaskedSettings(
        train=train,
        masking=config.masking,
        scoring=config.scoring,
        bert=config.model,
        max_tokens=None if config.model is None else max_tokens,
        checkpoint=checkpoint_settings(config.checkpoint, config.revision),
        sampling=text.sampling,
        is_body_trained=config.is_body_trained,
        metric_prefix="upstream",
    )
    inputs = TrainLanguageModelInputs(**text.inputs)
    return TRAIN_MASKED.stage("upstream", settings, inputs, seed=seed, locations=_locations(config))


def begun_masked_lm(
    name: str,
    config: MaskedLMConfig,
    tokenizer: Stage,
    *,
    max_tokens: int,
    seed: int | None = None,
) -> Stage:
    """Take a masked language model before any training.

    With a seed, all its weights are drawn at random, for the vocabulary of ``tokenizer``; without one, it is
    the released model unchanged.
    """
    settings = BeginMaskedSettings(
        checkpoint=checkpoint_settings(config.checkpoint, config.revision),
        # Without a seed nothing may be drawn, so the checkpoint is taken as it is.
        is_fresh=config.checkpoint is not None and seed is not None,
        bert=config.model,
        max_tokens=None if config.model is None else max_tokens,
    )
    inputs = BeginMaskedInputs(tokenizer=tokenizer)
    return BEGIN_MASKED.stage(name, settings, inputs, seed=seed, locations=_locations(config))


def continued_masked_lm(
    name: str,
    start: Stage,
    text: MaskedText,
    settings: TrainMaskedSettings,
    *,
    seed: int,
) -> Stage:
    """Continue the training of a masked language model on other text, segmented as that text is."""
    # The settings are those of several trainings, each on text of its own.
    settings = settings.model_copy(update={"sampling": text.sampling})
    inputs = TrainLanguageModelInputs(**text.inputs, start=start)
    return TRAIN_MASKED.stage(name, settings, inputs, seed=seed)


def masked_scores(
    trained: Stage,
    text: MaskedText,
    config: MaskedLMConfig,
    splits: Sequence[str],
) -> Stage:
    """Score the trial's model on test, if that is among the splits; its training has scored it on dev."""
    if "test" not in splits:
        return trained
    settings = ScoreMaskedSettings(split="test", scoring=config.scoring)
    inputs = ScoreMaskedInputs(model=trained, encoded=text.encoded, tokenizer=text.tokenizer)
    return SCORE_MASKED.stage("scores", settings, inputs)


TOKEN_MASKING = MaskingConfig(unit="token")
"""Masking of our own encoder: single tokens (Devlin et al. 2019)."""


def bert2bert(
    train: SmoothedTrainConfig,
    model: TransformerConfig,
    text: EncodedText,
    *,
    seed: int,
    released: Released | None = None,
) -> Stage:
    """Begin both sides of an encoder-decoder with a masked language model (Rothe et al. 2020), ``upstream``.

    That is a released BERT, whose sizes the encoder-decoder gets, or an encoder trained on ``source 0``.
    """
    name, tokenizer = "upstream_masked_lm", text.tokenizers["source 0"]
    if released is None:
        settings = TrainMaskedSettings(
            train=train,
            label_smoothing=train.label_smoothing,
            smoothing_kind=train.smoothing_kind,
            masking=TOKEN_MASKING,
            scoring=MaskedScoringConfig(unit="token"),
            encoder=model,
            metric_prefix="upstream",
        )
        inputs = TrainLanguageModelInputs(encoded=text.encoded, corpus=text.corpus, tokenizer=tokenizer)
        masked_lm = TRAIN_MASKED.stage(name, settings, inputs, seed=seed)
    else:
        masked_lm = released.masked_lm(name, tokenizer)
    begun = Bert2BertSettings(model=None if released else model)
    return BERT2BERT.stage("upstream", begun, Bert2BertInputs(masked_lm=masked_lm), seed=seed)


# Masked language models: settings and inputs of the stages of their text, training and scoring.


class WordTokenizerSettings(Settings):
    """A tokenizer that is learned from the training text of a corpus."""

    tokenizer: WordTokenizerConfig
    """Its kind and size."""


class EncodeWordsSettings(Settings):
    """Lines as ids, with the word of each token."""

    max_tokens: int
    """Longest line, in tokens without begin and end; longer ones are cut at a word and counted."""


class TrainMaskedSettings(TrainingSettings[TrainConfig]):
    """One training of a masked language model, from the input ``start`` or one of three kinds of model."""

    label_smoothing: float = 0.0
    """Probability mass taken from the true token."""
    smoothing_kind: SmoothingKind = "uniform_all"
    """Tokens that get that mass."""
    masking: MaskingConfig
    """Unit and rates of masking."""
    scoring: MaskedScoringConfig
    """Dev lines that are scored at every evaluation."""
    bert: BertConfig | None = None
    """A fresh BERT of transformers."""
    encoder: TransformerConfig | None = None
    """A fresh encoder of our Transformer."""
    checkpoint: CheckpointSettings | None = None
    """A released model; missing parameters, such as a prediction head, are initialised at random."""
    max_tokens: int | None = None
    """Longest line that a fresh BERT has positions for, in tokens without begin and end."""
    sampling: WordSampling | None = None
    """Segment the training text anew in every epoch; null: as it is encoded."""
    is_body_trained: bool = True
    """If false, only the prediction head of a released model learns."""
    # A constant: fingerprints of stored trainings hold it.
    new_rows_first_steps: Literal[0] = 0
    report_steps: tuple[int, ...] = ()
    """Steps after which the dev losses are reported as separate metrics, if evaluated then; 0: before
    training."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width, of a fresh model."""
        if self.bert is not None:
            return self.bert.num_layer_parameters, self.bert.d_model
        return None if self.encoder is None else (self.encoder.num_encoder_parameters, self.encoder.d_model)


class BeginMaskedSettings(Settings):
    """A masked language model before any training: a released one, or one with fresh weights."""

    checkpoint: CheckpointSettings | None = None
    """A released model."""
    is_fresh: bool = False
    """If true, only the architecture of the released model is taken, for the vocabulary of ``tokenizer``."""
    bert: BertConfig | None = None
    """A fresh BERT of transformers."""
    max_tokens: int | None = None
    """Longest line that a fresh BERT has positions for, in tokens without begin and end."""


class BeginMaskedInputs(Inputs[T]):
    """The tokenizer of the model."""

    tokenizer: T


class ScoreMaskedSettings(Settings):
    """Losses of a masked language model on one split."""

    split: Split
    """Split to score."""
    scoring: MaskedScoringConfig
    """Lines and words that are scored."""


class ScoreMaskedInputs(Inputs[T]):
    """A masked language model, encoded text and its tokenizer."""

    model: T
    encoded: T
    tokenizer: T


class Bert2BertSettings(Settings):
    """An encoder-decoder that begins with a masked language model on both sides (Rothe et al. 2020)."""

    model: TransformerConfig | None = None
    """Its architecture; null: that of the masked language model."""


class Bert2BertInputs(Inputs[T]):
    """A masked language model on the encoder of our Transformer."""

    masked_lm: T


WORD_TOKENIZER = StageKind(
    "nlgraft.stages.run.masked_lm_stages:learn",
    WordTokenizerSettings,
    CorpusInputs,
    check="nlgraft.stages.kind_checks:word_tokenizers",
)
CHECKPOINT_TOKENIZER = StageKind(
    "nlgraft.stages.run.masked_lm_stages:copy_tokenizer", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
ENCODED_WORDS = StageKind("nlgraft.stages.run.masked_lm_stages:encode", EncodeWordsSettings, TokenizedInputs)
TRAIN_MASKED = StageKind(
    "nlgraft.stages.run.masked_lm_stages:train",
    TrainMaskedSettings,
    TrainLanguageModelInputs,
    workers="train",
    check=CHECKPOINTS,
)
BEGIN_MASKED = StageKind(
    "nlgraft.stages.run.masked_lm_stages:begin", BeginMaskedSettings, BeginMaskedInputs, check=CHECKPOINTS
)
SCORE_MASKED = StageKind(
    "nlgraft.stages.run.masked_lm_stages:score", ScoreMaskedSettings, ScoreMaskedInputs, workers="share"
)
BERT2BERT = StageKind(
    "nlgraft.stages.run.masked_lm_stages:begin_encoder_decoder", Bert2BertSettings, Bert2BertInputs
)


# Sequence classifiers on the body of a masked language model.


def trained_classifier(
    name: str,
    body: Stage,
    text: MaskedText,
    config: ClassificationConfig,
    *,
    seed: int,
) -> Stage:
    """Train a classifier of the first source of a corpus by its labels; it is scored on dev."""
    inputs = ClassifierInputs(body=body, **text.inputs)
    settings = TrainClassifierSettings(
        train=config.train, classifier=config.classifier, sampling=text.sampling
    )
    return TRAIN_CLASSIFIER.stage(name, settings, inputs, seed=seed)


def classifier_scores(inputs: ScoreClassifierInputs[Stage], splits: Sequence[str]) -> Stage:
    """Score the trial's classifier on test, if that is among the splits; dev belongs to the training."""
    # A classifier's training scores it on dev, so nothing is left to do.
    if "test" not in splits:
        return inputs.classifier
    return SCORE_CLASSIFIER.stage("scores", ScoreClassifierSettings(split="test"), inputs)


class TrainClassifierSettings(TrainingSettings[TrainConfig]):
    """One training of a classifier."""

    classifier: ClassifierConfig
    """Pooling and head, and whether the body is trained."""
    sampling: WordSampling | None = None
    """Segment the training text anew in every epoch; null: as it is encoded."""


class ClassifierInputs(Inputs[T]):
    """The body, the corpus with its labels, and its encoded lines.

    The body is a masked language model, also one whose vocabulary was exchanged, or a released encoder; the
    tokenizer is that of the encoded lines.
    """

    body: T
    corpus: T
    encoded: T
    tokenizer: T


class ScoreClassifierSettings(Settings):
    """The scores of a classifier on one split."""

    split: Split
    """Split to score."""


class ScoreClassifierInputs(ClassifierInputs[T]):
    """A trained classifier and the inputs of its training.

    ``further`` are stages whose metrics belong to the trial although nothing reads them.
    """

    classifier: T
    further: Mapping[str, T] = field(default_factory=dict)


TRAIN_CLASSIFIER = StageKind(
    "nlgraft.stages.run.masked_lm_stages:train_classifier",
    TrainClassifierSettings,
    ClassifierInputs,
    workers="train",
)
SCORE_CLASSIFIER = StageKind(
    "nlgraft.stages.run.masked_lm_stages:score_classifier",
    ScoreClassifierSettings,
    ScoreClassifierInputs,
    workers="share",
)
