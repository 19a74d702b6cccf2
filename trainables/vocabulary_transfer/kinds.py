"""Settings and inputs of the stages that only this system has. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.stages.kinds.classification_kinds import ScoreClassifierInputs
from nlgraft.stages.stage_kind import Inputs, NoSettings, Settings, StageKind, T
from trainables.vocabulary_transfer.config import SplitConfig


class SplitSettings(Settings):
    """Settings of a stratified split."""

    split: SplitConfig
    """Proportions and size."""


@dataclass(frozen=True, kw_only=True)
class SplitInputs(Inputs[T]):
    """The corpus whose splits are pooled."""

    pooled: T


@dataclass(frozen=True, kw_only=True)
class ApartInputs(Inputs[T]):
    """A corpus, and the one whose dev and test lines are removed from it."""

    corpus: T
    left_out: T


@dataclass(frozen=True, kw_only=True)
class MeasureInputs(Inputs[T]):
    """The corpus, the trial's vocabulary and the old one."""

    corpus: T
    tokenizer: T
    old_tokenizer: T


SPLIT = StageKind("trainables.vocabulary_transfer.stages.text:split", SplitSettings, SplitInputs, version=2)
APART = StageKind("trainables.vocabulary_transfer.stages.text:leave_out", NoSettings, ApartInputs)
MEASURES = StageKind("trainables.vocabulary_transfer.stages.text:measure", NoSettings, MeasureInputs)
SPEED = StageKind(
    "trainables.vocabulary_transfer.stages.speed:measure", NoSettings, ScoreClassifierInputs, version=2
)
