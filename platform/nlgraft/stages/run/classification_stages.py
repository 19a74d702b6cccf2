"""Training and scoring of sequence classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.nn.masked_lm_models import Classifier, MaskedLM
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.classification_graph import (
    SCORE_CLASSIFIER,
    TRAIN_CLASSIFIER,
    ClassifierInputs,
)
from nlgraft.stages.run.text_stages import read_encoded, training_budget
from nlgraft.stages.run.training_task import SampledLines, TrainingTask, write_split
from nlgraft.text.batches import LengthBatches
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.training.classification_training import (
    LabelledData,
    classification_objective,
    evaluate_classifier,
    fresh_classifier,
    index_labels,
    read_body,
    read_classifier,
    write_classifier,
)
from nlgraft.training.loop import TrainOutcome
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.step import Training
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary

_SCORING_TOKENS = 4096
"""Padded positions of a batch that is only scored."""


def train(context: StageContext) -> None:
    """Train a classifier; write it with its dev scores, its size and the learning curves."""
    settings, inputs = TRAIN_CLASSIFIER.read(context)
    assert context.seed is not None, "the graph gives every training a seed"
    # Sorted, so that a class has the same number in every process.
    labels = sorted(set(_labels(inputs, "train")))
    if len(labels) < 2:
        raise DataError(f"train has one label, {labels[0]!r}: nothing is left to decide")
    body = read_body(inputs.body)
    budget = training_budget(settings.train, inputs.corpus, "train", context.seed)
    data: LabelledData | SampledLines = _data(inputs, "train", labels, body, budget, context.seed)
    if settings.sampling is not None:
        data = _sampled(inputs, settings.sampling, data, budget, context.seed)
    dev = _data(inputs, "dev", labels, body)
    model = fresh_classifier(body, len(labels), settings.classifier, context.seed)

    def measure(model: Classifier) -> Evaluation:
        return evaluate_classifier(model, dev, len(labels), context.device)

    def save(model: Classifier, directory: Path) -> None:
        write_classifier(model, labels, directory)

    training = Training(model, classification_objective, data, settings.train)
    outcome, _ = TrainingTask(training, measure, save).run(context)
    # How fast it learns, in one number: a method may end equal and be better on the way.
    mean = Score(_curve_mean(outcome), len(dev), "maximize", "trapezoids over steps|points")
    write_metrics(context.directory, {"dev/accuracy.curve": mean})


def _sampled(
    inputs: ClassifierInputs[Path],
    sampling: WordSampling,
    plain: LabelledData,
    budget: int | LengthBatches,
    seed: int,
) -> SampledLines:
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))

    def labelled(text: Encoded) -> LabelledData:
        return LabelledData(text.stream(TEXT), plain.classes, ids, batch_tokens=budget, seed=seed)

    lines = read_corpus(inputs.corpus / "train").text(TEXT)
    return SampledLines(lines, inputs.tokenizer, sampling, seed, labelled)


def _curve_mean(outcome: TrainOutcome) -> float:
    """Average the accuracy between the first and the last evaluation over the steps."""
    points = np.array([point[:2] for point in outcome.curves["dev/accuracy"]])
    # One evaluation has no width to average over.
    if len(points) == 1:
        return float(points[0, 1])
    # The area under the curve, divided by its width.
    return float(np.trapezoid(points[:, 1], points[:, 0]) / (points[-1, 0] - points[0, 0]))


def score(context: StageContext) -> None:
    """Score a classifier on a split, with per-line statistics."""
    settings, inputs = SCORE_CLASSIFIER.read(context)
    model, labels = read_classifier(inputs.classifier, inputs.body)
    data = _data(inputs, settings.split, labels, model.body)
    evaluation = evaluate_classifier(model.to(context.device), data, len(labels), context.device)
    write_split(context.directory, settings.split, evaluation)


def _labels(inputs: ClassifierInputs[Path], split: str) -> list[str]:
    return read_corpus(inputs.corpus / split).text("label")


def _data(
    inputs: ClassifierInputs[Path],
    split: str,
    labels: Sequence[str],
    body: MaskedLM,
    batch_tokens: int | LengthBatches = _SCORING_TOKENS,
    seed: int = 0,
) -> LabelledData:
    """Set up the lines of a split.

    Raises:
        DataError: A line is longer than the body's position table, or a label unknown.
    """
    lines = read_encoded(inputs.encoded, split).stream(TEXT)
    body.refuse_longer(lines.lengths.max(initial=0))
    classes = index_labels(_labels(inputs, split), labels, split)
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    return LabelledData(lines, classes, ids, batch_tokens=batch_tokens, seed=seed)
