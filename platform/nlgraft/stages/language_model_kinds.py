"""Pretraining of our own language models: settings and inputs."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.nn.context_config import LanguageModelConfig
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.stages.training_settings import TrainingSettings
from nlgraft.training.train_config import TrainConfig


class LanguageModelSettings(TrainingSettings[TrainConfig]):
    """One pretraining of a left-to-right or a two-tower language model."""

    model: LanguageModelConfig
    """The architecture; its vocabulary is that of the text."""
    stream: str
    """Stream of the encoded text."""
    role: str
    """Role of that stream's text in the corpus."""
    max_tokens: int | None
    """Longest encoded line; lines of this length may have been truncated and are left out per character."""
    metric_prefix: str
    """Prefix of all metrics, e.g. ``lm``; empty for a model that is the trial's result."""

    @property
    def layers(self) -> tuple[int, int]:
        """Weights of the layers of ``model``, and its width."""
        return self.model.num_layer_parameters, self.model.d_model


class UntrainedLanguageModelSettings(Settings):
    """A language model with random weights: the control of a pretrained one."""

    model: LanguageModelConfig
    """The architecture; its vocabulary is that of the text."""
    stream: str
    """Stream of the encoded text."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelInputs(Inputs[T]):
    """Encoded text and the corpus from which it was made."""

    encoded: T
    corpus: T


@dataclass(frozen=True, kw_only=True)
class TrainLanguageModelInputs(LanguageModelInputs[T]):
    """The same with its tokenizer, and the model to start from, also one after an exchange."""

    tokenizer: T
    start: T | None = None


LANGUAGE_MODEL = StageKind(
    "nlgraft.stages.run.language_model_stages:train",
    LanguageModelSettings,
    LanguageModelInputs,
    is_distributed=True,
)
UNTRAINED_LANGUAGE_MODEL = StageKind(
    "nlgraft.stages.run.language_model_stages:write_untrained",
    UntrainedLanguageModelSettings,
    LanguageModelInputs,
)
