"""Parts of systems' configs, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.evaluation.metric_config import BleuTokenizer, RougeTokenizer, TextMetric
from nlgraft.nn.context_config import LanguageModelConfig
from nlgraft.nn.model_config import BertConfig, ClassifierConfig, tupled
from nlgraft.text.files import InputPath, InputPathOrName
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, SmoothedTrainConfig, TrainConfig

ExtractMethod = Literal["lead", "oracle"]
CLASS_METRICS = ("accuracy", "macro_f1", "mcc", "loss.class", "ece")
"""Measures of classification."""
LearnedName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
MASK_TOKEN = "<mask>"
"""Special token that stands for masked text."""


def defaulting(**values: Any) -> BeforeValidator:
    """Make the annotation of a part whose defaults differ from those of its class.

    In a config: ``text: Annotated[TokenizerConfig, defaulting(kind="bpe")] = TokenizerConfig(kind="bpe")``.
    Without it the values of the class would come back as soon as a study gives another setting of the part.
    """
    return BeforeValidator(
        lambda settings: tupled(_merged(values, settings)) if isinstance(settings, Mapping) else settings
    )


def _merged(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    # Nested parts are merged as well, so that a study may set one field of an inner part.
    inner = {
        name: _merged(value, settings[name])
        for name, value in defaults.items()
        if isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
    }
    return {**defaults, **settings, **inner}


def unmeasured(
    train: TrainConfig,
    *measured: str,
    where: str = "train.",
) -> Iterator[str]:
    """Yield what is wrong with a ``best_metric``: if it is never measured, the last weights are selected."""
    if train.best_metric not in measured:
        yield f"{where}best_metric is {train.best_metric!r}; measured: {', '.join(measured)}"


class PhaseConfig(StrictConfig):
    """One training of the whole model."""

    train: SmoothedTrainConfig = SmoothedTrainConfig()
    """Length, learning rate, and which weights are the result."""
    num_bleu_sentences: int = Field(default=0, ge=0)
    """Number of dev sentences that are decoded greedily at every evaluation and scored as dev/greedy_bleu; 0:
    none."""

    def _problems(self) -> Iterator[str]:
        if self.num_bleu_sentences:
            yield from unmeasured(self.train, "dev/loss", "dev/greedy_bleu")
        else:
            for problem in unmeasured(self.train, "dev/loss"):
                yield f"{problem} (dev/greedy_bleu needs num_bleu_sentences above 0)"


def shared_with_training(config: StrictConfig) -> dict[str, Any]:
    """Select the settings that the training loop has under the same names."""
    names = type(config).model_fields.keys() & SmoothedTrainConfig.model_fields.keys()
    return {name: getattr(config, name) for name in names}


class DevLossTrainConfig(SmoothedTrainConfig):
    """One training of the whole model that measures the dev loss alone."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from unmeasured(self, "dev/loss", where="")


UPSTREAM_SEED = 1
"""Seed of pretrained models that all trials share: initialisation, order, dropout."""


class UpstreamSeed(StrictConfig):
    """Which trials share a pretrained model."""

    is_per_seed: bool = False
    """If true, every trial pretrains its own model with its own seed, so that intervals include the variance
    of pretraining; if false, all trials share one model and replicates vary downstream only."""

    def seed_of(self, trial_seed: int) -> int:
        """Choose the seed of this training in a trial."""
        return trial_seed if self.is_per_seed else UPSTREAM_SEED


class UpstreamPhaseConfig(PhaseConfig, UpstreamSeed):
    """Training of an upstream model that trials share."""


class LanguageModelPhaseConfig(UpstreamSeed):
    """The pretraining of one of our own language models, which trials share."""

    model: LanguageModelConfig
    """Kind, left-to-right (``uni_lm``) or two-tower (``bi_lm``), and sizes."""
    train: TrainConfig = TrainConfig()
    """Length, learning rates, selection of the result."""

    def _problems(self) -> Iterator[str]:
        if self.model.vocab_size is not None:
            yield "model.vocab_size is that of the text's tokenizer; leave it out"
        yield from unmeasured(self.train, "dev/loss", "dev/perplexity")


class ClassifierTrainConfig(TrainConfig):
    """The training of a classifier."""

    best_metric: str = "dev/loss.class"
    """Dev metric by which the best evaluation is chosen, for the result and for ``patience``."""


class ClassificationConfig(StrictConfig):
    """A sequence classifier and its training."""

    classifier: ClassifierConfig = ClassifierConfig()
    """Pooling and head, and whether the body is trained."""
    train: ClassifierTrainConfig = ClassifierTrainConfig()
    """Length, learning rates, selection of the result."""

    def _problems(self) -> Iterator[str]:
        yield from unmeasured(self.train, *(f"dev/{name}" for name in CLASS_METRICS))


class MaskedSpansConfig(StrictConfig):
    """Text infilling: spans of the text are masked (Lewis et al. 2020; Liu et al. 2020)."""

    rate: float = Field(default=0.35, gt=0, lt=1)
    """Share of the tokens that are masked."""
    mean_tokens: float = Field(default=3.5, gt=0)
    """Mean length of a masked span, in tokens (Poisson)."""
    token: str = MASK_TOKEN
    """Token that replaces a span."""


class LearnedMetricConfig(StrictConfig):
    """A metric that a model computes, such as COMET; in results ``test/learned.NAME``."""

    metric: str
    """Import path, ``package.module:name``, of a function or class that maps sources, hypotheses and
    references to one score per segment; see `nlgraft.evaluation.learned_metric`."""
    checkpoint: InputPath | None = None
    """Directory of its weights, whose bytes are part of every score's identity; null: it needs none."""
    options: dict[str, JsonValue] = Field(default={})
    """Further keyword arguments."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""
    unit: str = "points"
    """Unit of its values."""
    version: int = 1
    """Raise it when the metric's code changes: scores are kept by import path and version."""


class ScoreConfig(StrictConfig):
    """Evaluation of the output."""

    metrics: tuple[TextMetric, ...] = Field(default=("bleu", "chrf", "ter"), min_length=1)
    """Metrics of the output text. ROUGE and meteor suit questions and summaries, bleu_zh Chinese, by
    characters."""
    bleu_tokenizer: BleuTokenizer | None = None
    """sacreBLEU's tokenizer of ``bleu``, part of its signature. Null: chosen by the script of the dev
    references, 13a where spaces separate words, otherwise zh, ja-mecab, ko-mecab or char."""
    rouge_tokenizer: RougeTokenizer | None = None
    """Tokenizer of ROUGE, part of its signature: english (runs of a-z and digits, stemmed, as in
    ROUGE-1.5.5), words (runs of letters of any script) or characters. Null: chosen by the script of the dev
    references."""
    is_calibrated: bool = False
    """If true, measure the expected calibration error of inference (Wang et al. 2020), which takes another
    forward pass over every output and its alignment with the reference."""
    learned: dict[LearnedName, LearnedMetricConfig] = Field(default={}, exclude_if=lambda found: not found)
    """Learned metrics by name, the same in all cells: set under base."""

    def _problems(self) -> Iterator[str]:
        # A tokenizer without its metric would change no score: a setting has an effect, or it is refused.
        has_rouge = any(metric.startswith("rouge") for metric in self.metrics)
        for name, has_metric in (("bleu", "bleu" in self.metrics), ("rouge", has_rouge)):
            chosen = getattr(self, f"{name}_tokenizer")
            if chosen is not None and not has_metric:
                yield (
                    f"{name}_tokenizer is {chosen!r}, but metrics has no {name}; add it, or leave "
                    f"{name}_tokenizer out"
                )


class PretrainedConfig(StrictConfig):
    """A language model of transformers: a checkpoint, or one that is trained from scratch."""

    checkpoint: InputPathOrName | None = None
    """Hub name or local directory of a checkpoint with its tokenizer."""
    revision: str | None = None
    """Commit, tag or branch of a hub name; null: its main branch."""
    model: Any = None
    """Sizes of a model that is trained from scratch instead of a checkpoint; null: the checkpoint."""

    def _problems(self) -> Iterator[str]:
        # One of them decides the model; both or none leaves it open.
        if (self.checkpoint is None) == (self.model is None):
            state = "both given" if self.model is not None else "both missing"
            yield f"checkpoint and model are {state}: name a checkpoint, or describe a model to train"
        if self.model is not None and self.revision is not None:
            yield "revision is given with model, which has none: it belongs to a checkpoint"


class MaskedLMConfig(PretrainedConfig):
    """A masked language model of transformers, its vocabularies, and its masking."""

    checkpoint: InputPathOrName | None = None
    """Hub name or local directory of a BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT type checkpoint with
    its tokenizer. A missing prediction head is initialised at random and learned in upstream training."""
    model: BertConfig | None = None
    """Sizes of a model that is trained from scratch instead of a checkpoint; null: the checkpoint."""
    is_body_trained: bool = True
    """If false, upstream training trains the prediction head only."""
    upstream_tokenizer: WordTokenizerConfig | None = None
    """Vocabulary of a model trained from scratch, learned from upstream text; null with a checkpoint, which
    brings its own."""
    downstream_tokenizer: WordTokenizerConfig = WordTokenizerConfig()
    """The new vocabulary, learned from downstream text."""
    masking: MaskingConfig = MaskingConfig()
    """Masking in training. Scoring masks whole words at the same rate, all of their tokens, so that all
    vocabularies predict the same characters."""
    num_scored_sentences: int | None = Field(default=None, ge=1)
    """Number of sentences of dev and of test that are scored, upstream and downstream; null: all."""
    num_scoring_rounds: int = Field(default=1, ge=1)
    """Passes over each scored sentence, each with other words masked: 1/rate passes cover every word once."""

    @property
    def upstream_dropout(self) -> float | None:
        """BPE-dropout of trainings in the upstream vocabulary."""
        return None if self.upstream_tokenizer is None else self.upstream_tokenizer.dropout

    @property
    def scoring(self) -> MaskedScoringConfig:
        """The scoring of dev and test."""
        return MaskedScoringConfig(
            rate=self.masking.rate,
            num_rounds=self.num_scoring_rounds,
            num_lines=self.num_scored_sentences,
        )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.checkpoint is not None and self.upstream_tokenizer is not None:
            yield "upstream_tokenizer is given, but checkpoint brings its own: leave upstream_tokenizer out"
        if self.model is not None and self.upstream_tokenizer is None:
            yield "model is trained from scratch: give its upstream_tokenizer"
        if self.model is not None and not self.is_body_trained:
            yield "is_body_trained is false, but model starts from scratch: a body that never learned"


class VectorsConfig(StrictConfig):
    """Token vectors learned from text, of the model's width, for transfer methods that need them."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the training text of the domain."""
    batch_size: int = Field(default=2048, ge=1)
    """Predictions per optimiser step."""


VectorKind = Literal["skipgram", "cbow"]
VECTOR_METHODS: Mapping[str, tuple[VectorKind, tuple[Literal["new", "old"], ...]]] = {
    "word2vec": ("skipgram", ("new",)),
    "cbow": ("cbow", ("new",)),
    "focus": ("skipgram", ("new",)),
    "wechsel": ("skipgram", ("new", "old")),
}
"""Transfer methods that compare tokens by vectors learned from text: their kind, and the tokens that need
them. Here since ``nlgraft.vocab.methods`` imports scipy, which reading a study does not need."""


class NewLayersConfig(StrictConfig):
    """A new embedding table followed by a small encoder (independent_encoder; Lewis et al. 2020).

    Training has two phases: in the first, set here, only the new layers are trained; the second is the
    finetuning of the whole model.
    """

    num_layers: int = Field(default=1, ge=1)
    """Number of layers between the new table and the pretrained model; causal on the decoder's side."""
    max_steps: int = Field(default=10_000, ge=1)
    """Optimiser steps of the first phase."""
    peak_lr: float = Field(default=5e-4, gt=0)
    """Learning rate at the end of warm-up in the first phase."""
    warmup_steps: int = Field(default=400, ge=0)
    """Steps of linear warm-up in the first phase."""
    eval_every_steps: int = Field(default=500, ge=1)
    """Steps between evaluations on dev in the first phase; the second starts from the weights with the lowest
    dev loss."""

    def train_config(self, inherited: SmoothedTrainConfig) -> SmoothedTrainConfig:
        """Describe the first phase; batches, optimiser and loss are those of the finetuning."""
        # The finetuning goes on from the best weights of this phase, so it ends by its steps alone.
        plain = {"max_epochs": None, "patience": None, "average_last": None, "best_metric": "dev/loss"}
        return SmoothedTrainConfig(**{**inherited.model_dump(), **plain, **shared_with_training(self)})
