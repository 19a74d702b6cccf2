"""Settings that all training stages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from nlgraft.pipeline.stage import Stage, Work
from nlgraft.stages.stage_kind import NoSettings, Settings, StageKind
from nlgraft.stages.text_kinds import NoInputs
from nlgraft.training.train_config import PRECISION_INPUT, TrainConfig

TrainT = TypeVar("TrainT", bound=TrainConfig)


class TrainingSettings(Settings, Generic[TrainT]):
    """Settings of a training."""

    train: TrainT
    """Length, learning rate, and which weights are the result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the model's layers, and its width; None if an input provides the model."""
        return None

    def further_inputs(self) -> Mapping[str, Stage]:
        """Name the stage that measures the precision, if one is to be measured."""
        return precision_inputs(self.train)

    def work(self, inputs: Mapping[str, Stage]) -> Work:
        """Estimate the work from the model's size; its output layer has the tokenizer's vocabulary."""
        size = None
        if self.layers is not None:
            parameters, width = self.layers
            size = parameters + width * max(map(_vocab_size, inputs.values()), default=0)
        return Work(self.train.max_steps, self.train.tokens_per_step, size)


def _vocab_size(stage: Stage) -> int:
    """Size of the vocabulary that a stage learns; 0 if it learns none."""
    settings = stage.config.get("tokenizer")
    return settings.get("vocab_size", 0) if isinstance(settings, dict) else 0


# The measured choice of a precision: a stage without settings, so one choice for all that a store holds.


PRECISION = StageKind(
    # Distributed, so that the workers are measured and not the driver of a trial with several of them.
    "nlgraft.stages.run.context_stages:choose",
    NoSettings,
    NoInputs,
    is_distributed=True,
)


def precision_inputs(train: TrainConfig) -> Mapping[str, Stage]:
    """Name the stage that a training reads its precision from; none unless it is to be measured.

    As a stage, the choice is made once and recorded with host and rates: hosts that would choose differently
    cannot mix precisions under one fingerprint, and arms that are compared have the same.
    """
    if train.precision != "auto":
        return {}
    return {PRECISION_INPUT: PRECISION.stage("precision", NoSettings(), NoInputs())}
