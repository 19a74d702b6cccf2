"""Sequence classification: settings and inputs of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nlgraft.nn.model_config import ClassifierConfig
from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.training.train_config import TrainConfig


class TrainClassifierSettings(TrainingSettings[TrainConfig]):
    """One training of a classifier."""

    classifier: ClassifierConfig
    """Pooling and head, and whether the body is trained."""
    sampling: WordSampling | None = None
    """Segment the training text anew in every epoch; null: as it is encoded."""


@dataclass(frozen=True, kw_only=True)
class TrainClassifierInputs(Inputs[T]):
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


@dataclass(frozen=True, kw_only=True)
class ScoreClassifierInputs(Inputs[T]):
    """A trained classifier and the inputs of its training.

    ``further`` are stages whose metrics belong to the trial although nothing reads them.
    """

    classifier: T
    body: T
    corpus: T
    encoded: T
    tokenizer: T
    further: Mapping[str, T] = field(default_factory=dict)


TRAIN_CLASSIFIER = StageKind(
    "nlgraft.stages.run.classification_stages:train",
    TrainClassifierSettings,
    TrainClassifierInputs,
    is_distributed=True,
)
SCORE_CLASSIFIER = StageKind(
    "nlgraft.stages.run.classification_stages:score", ScoreClassifierSettings, ScoreClassifierInputs
)
