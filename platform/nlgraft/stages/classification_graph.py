"""Pieces of stage graphs for sequence classification, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import ClassificationConfig
from nlgraft.stages.kinds.classification_kinds import (
    SCORE_CLASSIFIER,
    TRAIN_CLASSIFIER,
    ScoreClassifierInputs,
    ScoreClassifierSettings,
    TrainClassifierInputs,
    TrainClassifierSettings,
)
from nlgraft.stages.masked_lm_graph import MaskedText


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
    inputs = TrainClassifierInputs(body=body, corpus=corpus, encoded=text.encoded, tokenizer=text.tokenizer)
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
