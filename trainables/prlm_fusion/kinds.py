"""Pretraining of the study's own language models: settings and inputs of its stage."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.training.train_config import MaskingConfig, TrainConfig
from trainables.prlm_fusion.config import PretrainedPrlm


class PretrainSettings(Settings):
    """One pretraining."""

    prlm: PretrainedPrlm
    """Objective and sizes."""
    train: TrainConfig
    """Length, learning rate and choice of the result."""
    masking: MaskingConfig | None
    """What is predicted; null for left-to-right models, which predict everything."""
    max_tokens: int
    """Longest line that the model has positions for, in tokens without begin and end."""


@dataclass(frozen=True, kw_only=True)
class PretrainInputs(Inputs[T]):
    """A corpus, encoded, its tokenizer, and the model that a distilled one learns from."""

    corpus: T
    encoded: T
    tokenizer: T
    teacher: T | None = None


PRETRAIN = StageKind(
    "trainables.prlm_fusion.stages.pretraining:pretrain",
    PretrainSettings,
    PretrainInputs,
    version=3,
    is_distributed=True,
)
