"""The measured choice of a precision: a stage without settings, so one choice for all that a store holds."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.pipeline.stage import Stage
from nlgraft.stages.kinds.text_kinds import NoInputs
from nlgraft.stages.stage_kind import NoSettings, StageKind
from nlgraft.training.train_config import PRECISION_INPUT, TrainConfig

PRECISION = StageKind(
    # Distributed, so that the workers are measured and not the driver of a trial with several of them.
    "nlgraft.stages.run.precision_stages:choose",
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
