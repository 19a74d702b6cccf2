"""Pieces of stage graphs, without torch: training, translation and scores of encoder-decoders.

They read text of `nlgraft.stages.text_graph`. A piece builds stages from configs. Stage names begin with the
name that a piece is given, so a graph may use a piece several times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.metric_config import BleuTokenizer, RougeTokenizer, TextMetric
from nlgraft.nn.checkpoint_files import checkpoint_identity
from nlgraft.nn.model_config import BeamSearchConfig, GenerationConfig, TransformerConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import (
    ExtractMethod,
    LanguageModelPhaseConfig,
    MaskedSpansConfig,
    ScoreConfig,
)
from nlgraft.stages.metrics import EXTRACT_METHODS, ROUGE
from nlgraft.stages.stage_kind import (
    LANGUAGE_MODEL,
    UNTRAINED_LANGUAGE_MODEL,
    CorpusInputs,
    Inputs,
    LanguageModelInputs,
    LanguageModelSettings,
    Settings,
    StageKind,
    T,
    TrainingSettings,
    UntrainedLanguageModelSettings,
)
from nlgraft.stages.text_graph import TARGET, EncodedText
from nlgraft.text.corpus_config import SplitName
from nlgraft.text.files import expand
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, Pattern, SmoothedTrainConfig, View


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
    start: Stage | None,
    architecture: Stage | None = None,
    contexts: ContextStages | None = None,
) -> TrainInputs[Stage]:
    """Name the inputs of a training on encoded text."""
    return TrainInputs(
        encoded=text.encoded,
        corpus=text.corpus,
        tokenizers=text.tokenizers,
        start=start,
        architecture=architecture,
        **vars(contexts or ContextStages()),
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
) -> Stage:
    """Pretrain a language model on a stream of encoded text; its metrics begin with the stage's name.

    ``seed`` is that of the trial.
    """
    settings = LanguageModelSettings(
        model=config.model,
        train=config.train,
        stream=stream,
        role=text.settings.streams[stream],
        max_tokens=text.settings.max_tokens,
        metric_prefix=name,
    )
    inputs = LanguageModelInputs(encoded=text.encoded, corpus=text.corpus)
    return LANGUAGE_MODEL.stage(name, settings, inputs, seed=config.seed_of(seed))


def untrained_language_model(
    name: str, text: EncodedText, config: LanguageModelPhaseConfig, *, seed: int
) -> Stage:
    """Draw a language model with random weights, the control of a pretrained one, from a trial's ``seed``."""
    settings = UntrainedLanguageModelSettings(model=config.model, stream="source 0")
    inputs = LanguageModelInputs(encoded=text.encoded, corpus=text.corpus)
    return UNTRAINED_LANGUAGE_MODEL.stage(name, settings, inputs, seed=config.seed_of(seed))


def translate(
    name: str,
    model: Stage,
    text: EncodedText,
    split: str,
    decoding: DecodingSettings,
) -> Stage:
    """Translate a split of a corpus, with sources truncated as in training."""
    sides = (*decoding.view.sources, *decoding.view.contexts.values())
    settings = TranslateSettings(
        # Not a dump, which would turn parts of the settings into dictionaries.
        **dict(decoding),
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
    num_extracted_sentences: int | None = None,
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
        num_extracted_sentences: Sentences of the summaries that are taken from the text itself and scored as
            well; None: none are.
        further: Stages whose metrics belong to the trial although nothing else reads them.
    """
    # A stage for each split: a search that scores dev alone translates no test text.
    translations = {
        split: translate(f"translation_{split}", trained, text, split, decoding) for split in splits
    }
    extracts = {}
    if num_extracted_sentences is not None:
        extracts = extract_scores(
            text.corpus,
            splits,
            num_sentences=num_extracted_sentences,
            rouge_tokenizer=score.rouge_tokenizer,
        )
    inputs = ScoreInputs(
        corpus=text.corpus,
        translations=translations,
        target_tokenizer=text.tokenizers[decoding.view.target.stream],
        compared_tokenizer=compared_tokenizer,
        trained=trained,
        further={**(further or {}), **extracts, **learned_scores(score, text.corpus, translations)},
    )
    settings = score_settings(score, max_tokens=text.settings.max_tokens)
    return SCORE.stage("scores", settings, inputs)


def score_settings(score: ScoreConfig, **settings: Any) -> ScoreSettings:
    """Make the settings of a scoring from a system's ``score``; ``settings`` are its further fields."""
    return ScoreSettings(
        metrics=score.metrics,
        bleu_tokenizer=score.bleu_tokenizer,
        rouge_tokenizer=score.rouge_tokenizer,
        **settings,
    )


def upstream_scores(
    model: Stage,
    text: EncodedText,
    *,
    decode: BeamSearchConfig,
    score: ScoreConfig,
    view: View,
) -> Stage:
    """Score an upstream model by BLEU on dev of its own corpus."""
    # Lengths and speed of an upstream model would be taken for the trial's.
    decoding = DecodingSettings(decode=decode, view=view, is_measured=False)
    # Its text may be of another script than the task's: of the tokenizers only characters suit every script.
    tokenizer = "char" if score.bleu_tokenizer == "char" else None
    translation = translate("upstream_translation", model, text, "dev", decoding)
    return SCORE.stage(
        "upstream_scores",
        ScoreSettings(metrics=("bleu",), metric_prefix="upstream", bleu_tokenizer=tokenizer),
        ScoreInputs(
            corpus=text.corpus,
            translations={"dev": translation},
            target_tokenizer=text.tokenizers[TARGET],
        ),
    )


# Training, translation and scoring of encoder-decoders with K sources: settings and inputs.


class CarrySettings(Settings):
    """Mapping of an earlier model's weights into another architecture; unmapped names are an error."""

    fresh: tuple[Pattern, ...] = ()
    """Names that keep their fresh initialisation."""
    # Constants: fingerprints of stored trainings hold them.
    rename: tuple[()] = ()
    drop: tuple[()] = ()


class TrainSettings(TrainingSettings[SmoothedTrainConfig]):
    """One training of an encoder-decoder."""

    model: TransformerConfig | None = None
    """The architecture; null: that of the input ``start`` or ``architecture``."""
    extension: Mapping[str, Any] = {}
    """Fields of the architecture in which this model differs from ``start``, e.g. ``num_sources``."""
    carry: CarrySettings = CarrySettings()
    """How the weights of ``start`` are carried over into another architecture."""
    learned: LearnedParameters = ALL_LEARNED
    """Parameters that learn, and learning rates of their own."""
    view: View = View()
    """Sources, contexts and target of a batch."""
    sampling_alpha: float | None = None
    """Segment the training text of sources and target at random in every epoch: smoothing of unigram
    sampling, or BPE-dropout probability. Null: as it was encoded."""
    streams: Mapping[str, str] = {}
    """Role of the text of each stream that is sampled."""
    masked_spans: MaskedSpansConfig | None = None
    """If given, sources are the target with masked spans, masked anew in every epoch (text infilling)."""
    num_bleu_sentences: int = 0
    """Dev sentences that are decoded greedily at every evaluation; 0: none."""
    # A constant: fingerprints of stored trainings hold it.
    new_rows_first_steps: Literal[0] = 0
    report_steps: tuple[int, ...] = ()
    """Steps after which the dev loss is reported as a separate metric, if evaluated then; 0: before training,
    right after weights were carried over."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers of ``model``, and its width."""
        return None if self.model is None else (self.model.num_layer_parameters, self.model.d_model)


class NewLayersSettings(TrainSettings):
    """Training of new embedding layers in front of a frozen model, the input ``start``."""

    sides: tuple[str, ...]
    """Sides whose embeddings are replaced, among ``encoder`` and ``decoder``."""
    num_layers: int
    """Number of layers between a new table and the pretrained model."""


class TrainInputs(Inputs[T]):
    """Encoded text with the corpus and the tokenizers it was made of, and the model to start from.

    ``start`` is a model, also one after an exchange of its vocabulary; ``architecture`` a model's description
    without weights; without either the model begins fresh. The rest is that of ``ContextStages``.
    """

    encoded: T
    corpus: T
    tokenizers: Mapping[str, T]
    start: T | None = None
    architecture: T | None = None
    encoders: Mapping[str, T] = field(default_factory=dict)
    states: Mapping[str, T] = field(default_factory=dict)
    means: Mapping[str, T] = field(default_factory=dict)


class _OutputSettings(Settings):
    # Constants: fingerprints of stored translations and scores hold them.
    engine: Literal["torch"] = "torch"
    dev_precision: Literal["fp32"] = "fp32"


class DecodingSettings(_OutputSettings):
    """Settings of translation that do not depend on the text."""

    decode: BeamSearchConfig
    """Beam and length rules."""
    view: View = View()
    """Sources and contexts that the model reads."""
    foreign_source: int | None = Field(default=None, ge=0)
    """Index of the source that is replaced by another example's sentence: an adversarial test (Huang et al.
    2021, Table 8)."""
    has_lm_cache: bool = True
    """If false, a target-side language model rereads every prefix, to measure what its cache saves."""
    is_measured: bool = True
    """If true, report length and speed of the output; false for upstream models."""
    is_calibrated: bool = False
    """If true, measure the expected calibration error of inference."""


class TranslateSettings(DecodingSettings):
    """Beam search on one split."""

    split: SplitName
    """Split to translate."""
    streams: Mapping[str, str]
    """Role of the text of each source and context."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest source, as in training; longer ones are cut and counted."""

    @property
    def generation(self) -> GenerationConfig:
        """The search, which begins with the view's first tokens."""
        view = self.view
        return GenerationConfig(
            **self.decode.model_dump(), start_id=view.target_start, forced_ids=view.target.prefix
        )


class TranslateInputs(Inputs[T]):
    """A model, the corpus it translates and the tokenizer of each stream, ``target`` among them."""

    model: T
    corpus: T
    tokenizers: Mapping[str, T]


class LastSentenceSettings(Settings):
    """Extraction of the last sentence from the translation of joined ones."""

    separator: str
    """Symbol between two sentences."""


class TranslationInputs(Inputs[T]):
    """A translation of a split."""

    translation: T


class ExtractSettings(Settings):
    """Summaries of one split, taken from the text itself."""

    split: SplitName
    """Split to summarise."""
    method: ExtractMethod
    """The first sentences, or those that raise ROUGE-1 and ROUGE-2 against the reference the most."""
    num_sentences: int
    """Most sentences of a summary."""
    rouge_tokenizer: RougeTokenizer | None = None
    """Words of the oracle's ROUGE; null: by the script of the dev references."""


class ScoreSettings(_OutputSettings):
    """Comparison of translations with the references."""

    metrics: tuple[TextMetric, ...] = Field(min_length=1)
    """Measures of text."""
    bleu_tokenizer: BleuTokenizer | None = None
    """Tokenizer of ``bleu``; null: by the script of the dev references."""
    rouge_tokenizer: RougeTokenizer | None = None
    """Tokenizer of ROUGE, likewise."""
    has_documents: bool = False
    """If true, compute document-level BLEU as well; the corpus then needs document ids."""
    max_tokens: int | None = None
    """Longest target of which the training has the whole loss; None: any."""
    metric_prefix: str = ""
    """Prefix of all metrics of a model that is not the trial's result."""


class ScoreInputs(Inputs[T]):
    """Translations by split, and what further measures need.

    ``target_tokenizer`` for normalisation and the length of the references, ``compared_tokenizer`` for the
    tokens that the former saves against it, ``trained`` (the training of the model) for its dev loss per
    character. ``further`` are not read: stages whose metrics belong to the trial although nothing else rests
    on them.
    """

    corpus: T
    translations: Mapping[str, T]
    target_tokenizer: T | None = None
    compared_tokenizer: T | None = None
    trained: T | None = None
    further: Mapping[str, T] = field(default_factory=dict)


TRAIN = StageKind(
    "nlgraft.stages.run.seq2seq_stages:train", TrainSettings, TrainInputs, version=2, workers="train"
)
NEW_LAYERS = StageKind(
    "nlgraft.stages.run.seq2seq_stages:attach_embeddings", NewLayersSettings, TrainInputs, workers="train"
)
TRANSLATE = StageKind(
    "nlgraft.stages.run.seq2seq_stages:translate",
    TranslateSettings,
    TranslateInputs,
    version=4,
    workers="share",
)
LAST_SENTENCE = StageKind(
    "nlgraft.stages.run.seq2seq_stages:keep_last_sentence",
    LastSentenceSettings,
    TranslationInputs,
    version=2,
)
EXTRACT = StageKind("nlgraft.stages.run.seq2seq_stages:extract", ExtractSettings, CorpusInputs, version=2)
SCORE = StageKind(
    "nlgraft.stages.run.seq2seq_stages:score",
    ScoreSettings,
    ScoreInputs,
    version=4,
    check="nlgraft.stages.kind_checks:scores",
)


# The piece of a stage graph that scores summaries which are taken from the text itself, without torch.


def extract_scores(
    corpus: Stage,
    splits: Sequence[str],
    *,
    num_sentences: int,
    rouge_tokenizer: RougeTokenizer | None = None,
) -> dict[str, Stage]:
    """Score summaries that are taken from the text itself: ``further`` stages of ``scores``."""
    score_stages = {}
    for method in EXTRACT_METHODS:
        summaries = {
            split: EXTRACT.stage(
                f"{method}_{split}",
                ExtractSettings(
                    split=split,
                    method=method,
                    num_sentences=num_sentences,
                    # The first sentences depend on no reference, so their stage must not depend on the
                    # tokenizer.
                    rouge_tokenizer=rouge_tokenizer if method == "oracle" else None,
                ),
                CorpusInputs(corpus=corpus),
            )
            for split in splits
        }
        score_stages[method] = SCORE.stage(
            f"{method}_scores",
            ScoreSettings(metrics=ROUGE, rouge_tokenizer=rouge_tokenizer, metric_prefix=method),
            ScoreInputs(corpus=corpus, translations=summaries),
        )
    return score_stages


# The piece of a stage graph that scores translations by the learned metrics of a study, without torch.


def learned_scores(
    score: ScoreConfig,
    corpus: Stage,
    translations: Mapping[str, Stage],
) -> dict[str, Stage]:
    """Score translations by each learned metric, in a stage of its own: ``further`` stages of the scores.

    Raises:
        DataError: A checkpoint is no directory.
    """
    score_stages = {}
    for name, config in score.learned.items():
        if config.checkpoint is not None and not expand(config.checkpoint).is_dir():
            raise DataError(
                f"score.learned.{name}.checkpoint: {config.checkpoint} is no directory; download the "
                "metric's checkpoint and give its folder"
            )
        settings = LearnedScoreSettings(
            name=name,
            metric=config.metric,
            version=config.version,
            options=config.options,
            content=None if config.checkpoint is None else checkpoint_identity(config.checkpoint),
        )
        score_stages[f"learned_{name}"] = LEARNED_SCORE.stage(
            f"learned_{name}",
            settings,
            LearnedScoreInputs(corpus=corpus, translations=translations),
            locations={} if config.checkpoint is None else {"checkpoint": config.checkpoint},
        )
    return score_stages


# The kind of stage that scores translations by a learned metric.


class LearnedScoreSettings(_OutputSettings):
    """A learned metric. Where its checkpoint lies is among the stage's locations, as ``checkpoint``."""

    name: str
    """Its name in the study."""
    metric: str
    """Import path of the callable."""
    version: int
    """Version of its code, as the study states it."""
    options: dict[str, Any]
    """Its keyword arguments."""
    content: dict[str, Any] | None
    """Digests of the checkpoint's files; null without one."""


class LearnedScoreInputs(Inputs[T]):
    """A corpus with sources and a target, and translations by split."""

    corpus: T
    translations: Mapping[str, T]


LEARNED_SCORE = StageKind(
    "nlgraft.stages.run.seq2seq_stages:score_learned",
    LearnedScoreSettings,
    LearnedScoreInputs,
    workers="first",
    check="nlgraft.stages.kind_checks:learned_metrics",
)
