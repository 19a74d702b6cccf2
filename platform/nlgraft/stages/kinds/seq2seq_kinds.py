"""Training, translation and scoring of encoder-decoders with K sources: settings and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from nlgraft.evaluation.metric_config import BleuTokenizer, RougeTokenizer, TextMetric
from nlgraft.nn.model_config import BeamSearchConfig, GenerationConfig, TransformerConfig
from nlgraft.stages.config_parts import ExtractMethod, MaskedSpansConfig
from nlgraft.stages.kinds.text_kinds import CorpusInputs
from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.corpus_config import SplitName
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, Pattern, SmoothedTrainConfig, View


class CarrySettings(Settings):
    """Mapping of an earlier model's weights into another architecture; unmapped names are an error."""

    rename: tuple[tuple[Pattern, str], ...] = ()
    """Regular expression and replacement, applied to the earlier names in turn."""
    fresh: tuple[Pattern, ...] = ()
    """Names that keep their fresh initialisation."""
    drop: tuple[Pattern, ...] = ()
    """Earlier names, after renaming, that are not used."""


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
    new_rows_first_steps: int = 0
    """Number of first steps that train only the new rows of an exchanged vocabulary; needs ``start``."""
    report_steps: tuple[int, ...] = ()
    """Steps after which the dev loss is reported as a separate metric, if evaluated then; 0: before training,
    right after weights were carried over."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers of ``model``, and its width."""
        return None if self.model is None else (self.model.num_layer_parameters, self.model.d_model)


@dataclass(frozen=True, kw_only=True)
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


class DecodingSettings(Settings):
    """Settings of translation that do not depend on the text."""

    decode: BeamSearchConfig
    """Beam and length rules."""
    # Constants: fingerprints of stored translations hold them.
    engine: Literal["torch"] = "torch"
    dev_precision: Literal["fp32"] = "fp32"
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


@dataclass(frozen=True, kw_only=True)
class TranslateInputs(Inputs[T]):
    """A model, the corpus it translates and the tokenizer of each stream, ``target`` among them."""

    model: T
    corpus: T
    tokenizers: Mapping[str, T]


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


class ScoreSettings(Settings):
    """Comparison of translations with the references."""

    metrics: tuple[TextMetric, ...] = Field(min_length=1)
    """Measures of text."""
    bleu_tokenizer: BleuTokenizer | None = None
    """Tokenizer of ``bleu``; null: by the script of the dev references."""
    rouge_tokenizer: RougeTokenizer | None = None
    """Tokenizer of ROUGE, likewise."""
    has_documents: bool = False
    """If true, compute document-level BLEU as well; the corpus then needs document ids."""
    # Constants, as in `DecodingSettings`.
    engine: Literal["torch"] = "torch"
    dev_precision: Literal["fp32"] = "fp32"
    max_tokens: int | None = None
    """Longest target of which the training has the whole loss; None: any."""
    metric_prefix: str = ""
    """Prefix of all metrics of a model that is not the trial's result."""


@dataclass(frozen=True, kw_only=True)
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
    "nlgraft.stages.run.seq2seq_stages:train", TrainSettings, TrainInputs, version=2, is_distributed=True
)
TRANSLATE = StageKind(
    "nlgraft.stages.run.translation_stages:translate",
    TranslateSettings,
    TranslateInputs,
    version=4,
)
EXTRACT = StageKind("nlgraft.stages.run.translation_stages:extract", ExtractSettings, CorpusInputs, version=2)
SCORE = StageKind(
    "nlgraft.stages.run.translation_stages:score",
    ScoreSettings,
    ScoreInputs,
    version=4,
    check="nlgraft.stages.kind_checks:scores",
)
