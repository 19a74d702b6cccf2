"""Pieces of stage graphs for sequence classification, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from nlgraft.nn.model_config import ClassifierConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import ClassificationConfig
from nlgraft.stages.masked_lm_graph import MaskedText
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T, TrainingSettings
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.training.train_config import TrainConfig


def trained_classifier(
    name: str,
    body: Stage,
    corpus: Stage,
    text: MaskedText,
    config: ClassificationConfig,
    *,
    seed: int,
) -> Stage:
    """Train a classifier of the first source of a corpus by its labels; it is scored on dev."""
    inputs = ClassifierInputs(body=body, corpus=corpus, encoded=text.encoded, tokenizer=text.tokenizer)
    settings = TrainClassifierSettings(
        train=config.train, classifier=config.classifier, sampling=text.sampling
    )
    return TRAIN_CLASSIFIER.stage(name, settings, inputs, seed=seed)


def classifier_scores(
    trained: Stage,
    body: Stage,
    corpus: Stage,
    text: MaskedText,
    splits: Sequence[str],
    further: Mapping[str, Stage] | None = None,
) -> Stage:
    """Score the trial's classifier on test, if that is among the splits; dev belongs to the training.

    ``further`` are stages whose metrics the trial reports, too.
    """
    # A classifier's training scores it on dev, so nothing is left to do.
    if "test" not in splits:
        return trained
    inputs = ScoreClassifierInputs(
        classifier=trained,
        body=body,
        corpus=corpus,
        encoded=text.encoded,
        tokenizer=text.tokenizer,
        further=further or {},
    )
    return SCORE_CLASSIFIER.stage("scores", ScoreClassifierSettings(split="test"), inputs)


# Sequence classification: settings and inputs of its stages.


class TrainClassifierSettings(TrainingSettings[TrainConfig]):
    """One training of a classifier."""

    classifier: ClassifierConfig
    """Pooling and head, and whether the body is trained."""
    sampling: WordSampling | None = None
    """Segment the training text anew in every epoch; null: as it is encoded."""


class ClassifierInputs(Inputs[T]):
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


class ScoreClassifierInputs(ClassifierInputs[T]):
    """A trained classifier and the inputs of its training.

    ``further`` are stages whose metrics belong to the trial although nothing reads them.
    """

    classifier: T
    further: Mapping[str, T] = field(default_factory=dict)


TRAIN_CLASSIFIER = StageKind(
    "nlgraft.stages.run.classification_stages:train",
    TrainClassifierSettings,
    ClassifierInputs,
    is_distributed=True,
)
SCORE_CLASSIFIER = StageKind(
    "nlgraft.stages.run.classification_stages:score", ScoreClassifierSettings, ScoreClassifierInputs
)
