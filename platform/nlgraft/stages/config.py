"""Parts of systems' configs, without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nlgraft.nn.context_config import LanguageModelConfig
from nlgraft.training.config import TrainConfig

TextMetric = Literal["bleu", "bleu_zh", "chrf", "ter", "rouge_l", "meteor"]
MASK_TOKEN = "<mask>"
"""Special token that stands for masked text."""


class ConfigPart(BaseModel):
    """Base of the parts: frozen, unknown keys refused, attribute docstrings kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PhaseConfig(ConfigPart):
    """One training of the whole model."""

    train: TrainConfig = TrainConfig()
    """How long, how fast, what is kept."""
    num_bleu_sentences: int = Field(default=0, ge=0)
    """Dev sentences that are decoded greedily at every evaluation, reported as dev/greedy_bleu (sentences);
    0: none."""

    @model_validator(mode="after")
    def _best_metric_is_measured(self) -> PhaseConfig:
        measured = ["dev/loss", *(["dev/greedy_bleu"] if self.num_bleu_sentences else [])]
        if self.train.best_metric not in measured:
            raise ValueError(
                f"train.best_metric is {self.train.best_metric!r}; measured are {', '.join(measured)} "
                "(dev/greedy_bleu needs num_bleu_sentences above 0)"
            )
        return self


class UpstreamSeed(ConfigPart):
    """The seed of a model that trials share."""

    seed: int = Field(default=1, ge=0)
    """Seed of the pretrained model: initialisation, order, dropout. All trials share the model."""
    is_per_seed: bool = False
    """If true, every trial seed pretrains a model of its own; else replicates vary downstream only."""

    def seed_of(self, trial_seed: int) -> int:
        """Choose the seed of this training in a trial."""
        return trial_seed if self.is_per_seed else self.seed


class UpstreamPhaseConfig(PhaseConfig, UpstreamSeed):
    """The training of a model that trials share."""


class LanguageModelTrainConfig(TrainConfig):
    """The training of a language model, by default without label smoothing (Edunov et al. 2019)."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Probability mass taken from the true token (Szegedy et al. 2016)."""


class LanguageModelPhaseConfig(UpstreamSeed):
    """The pretraining of one of our own language models, which trials share."""

    model: LanguageModelConfig
    """Left-to-right (``uni_lm``) or two-tower (``bi_lm``), and its sizes."""
    train: LanguageModelTrainConfig = LanguageModelTrainConfig()
    """Length, learning rates, selection of the result."""

    @model_validator(mode="after")
    def _fits_its_text(self) -> LanguageModelPhaseConfig:
        if self.model.vocab_size is not None:
            raise ValueError("model.vocab_size is that of the text's tokenizer; leave it out")
        if self.train.best_metric not in ("dev/loss", "dev/perplexity"):
            raise ValueError(
                f"train.best_metric is {self.train.best_metric!r}; measured are dev/loss and dev/perplexity"
            )
        return self


class MaskedSpansConfig(ConfigPart):
    """Text infilling: spans of the text are masked (Lewis et al. 2020; Liu et al. 2020)."""

    rate: float = Field(default=0.35, gt=0, lt=1)
    """Share of the tokens that are masked."""
    mean_tokens: float = Field(default=3.5, gt=0)
    """Mean length of a masked span, in tokens (Poisson)."""
    token: str = MASK_TOKEN
    """Token that replaces a span."""


class ScoreConfig(ConfigPart):
    """Measures of the output."""

    metrics: tuple[TextMetric, ...] = Field(default=("bleu", "chrf", "ter"), min_length=1)
    """Measures of text: rouge_l and meteor for questions and summaries, bleu_zh for Chinese by characters."""
    is_calibrated: bool = False
    """If true, measure the inference ECE: one more pass over every output, and its alignment."""
