"""Sequence classification: labelled lines as batches, objective, evaluation, and models on disk.

Shape letters: B lines, T positions of a line with begin and end, N lines of a split, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.classification import evaluate_probabilities
from nlgraft.evaluation.scores import Evaluation
from nlgraft.nn.batch import Movable, Tokens
from nlgraft.nn.masked_lm_models import Classifier, MaskedLM, load_checkpoint
from nlgraft.nn.model_config import ClassifierConfig
from nlgraft.nn.modes import evaluating, seeded
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.text.files import read_json, write_json
from nlgraft.training.data import LineData
from nlgraft.training.losses import Predictions, TokenObjective
from nlgraft.training.masked_lm_training import ENCODER_DESCRIPTION, read_masked_lm, write_masked_lm
from nlgraft.training.masked_text import MaskingIds
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import IntArray, surrounded
from nlgraft.training.weights import load_model, save_model

DESCRIPTION_FILE = "classifier.json"
BODY = "body"
"""Folder of a classifier's artifact with its body, if that was trained."""


@dataclass(frozen=True)
class LabelledBatch(Movable):
    """Lines and their classes.

    Attributes:
        tokens: Model input, begin and end included, [B, T].
        classes: Class of each line, int64 [B].
    """

    tokens: Tokens
    classes: Tensor


class LabelledData(LineData[LabelledBatch]):
    """Labelled lines as batches.

    Args:
        lines: Bare ids of each line.
        classes_N: Class of each line.
        ids: Special tokens of the vocabulary.
        batch_tokens: Largest number of padded positions of a batch; or given batches.
        seed: Seed of the batches.
    """

    def __init__(
        self,
        lines: Ragged,
        classes_N: IntArray,
        ids: MaskingIds,
        *,
        batch_tokens: int | LengthBatches,
        seed: int = 0,
    ) -> None:
        self.classes = classes_N
        super().__init__(surrounded(lines, ids.begin, ids.end), batch_tokens, seed)
        self._pad = ids.pad

    def batch(self, rows: IntArray, epoch: int = 0) -> LabelledBatch:
        """Pack some lines, on the CPU; all epochs are alike."""
        lines = self._lines.make(rows)
        tokens = Tokens.from_lists([line.tolist() for line in lines], self._pad)
        return LabelledBatch(tokens, torch.from_numpy(self.classes[rows]))


def index_labels(labels: Sequence[str], class_names: Sequence[str], split: str) -> IntArray:
    """Map labels to classes [N], their positions in ``class_names``.

    Raises:
        DataError: A label does not occur in the training text.
    """
    classes = {label: index for index, label in enumerate(class_names)}
    if unknown := sorted(set(labels) - set(class_names)):
        listed = ", ".join(repr(label) for label in unknown[:3])
        raise DataError(f"{split} has labels that train lacks: {listed}; train has {len(class_names)} labels")
    return np.array([classes[label] for label in labels], dtype=np.int64)


def _predict(model: Classifier, batch: LabelledBatch) -> Predictions:
    return Predictions(model(batch.tokens), batch.classes, torch.arange(len(batch.classes)))


classification_objective = TokenObjective(_predict)
"""Cross-entropy of the class of each line; the loss is averaged over lines, not tokens."""


def class_probabilities(
    model: Classifier, data: LabelledData, num_classes: int, device: torch.device | str = "cpu"
) -> NDArray[np.float64]:
    """Compute the probability of each class of every line, [N, C], with the model in evaluation mode."""
    probabilities_NC = np.zeros((len(data), num_classes))
    with evaluating(model):
        for rows, batch in data.in_order():
            logits_BC = model(batch.to(device).tokens).double()
            probabilities_NC[rows] = logits_BC.softmax(-1).cpu().numpy()
    return probabilities_NC


def evaluate_classifier(
    model: Classifier, data: LabelledData, num_classes: int, device: torch.device | str = "cpu"
) -> Evaluation:
    """Measure a classifier on a split; see ``evaluate_probabilities``."""
    return evaluate_probabilities(class_probabilities(model, data, num_classes, device), data.classes)


def fresh_classifier(body: MaskedLM, num_classes: int, config: ClassifierConfig, seed: int) -> Classifier:
    """Put a head on a body, initialised from a stage's seed alone."""
    with seeded(derive_seed(seed, "initialise")):
        return Classifier(body, num_classes, config)


def write_classifier(model: Classifier, labels: Sequence[str], directory: Path) -> None:
    """Write a classifier's head into an artifact, and its body if that was trained."""
    save_model(model.head, directory)
    if model.config.is_body_trained:
        (directory / BODY).mkdir()
        write_masked_lm(model.body, directory / BODY)
    description = {"config": model.config.model_dump(mode="json"), "labels": list(labels)}
    write_json(directory / DESCRIPTION_FILE, description)


def read_classifier(directory: Path, body: Path) -> tuple[Classifier, list[str]]:
    """Read a classifier and its labels, on the CPU; a frozen body is read from its own artifact."""
    description = read_json(directory / DESCRIPTION_FILE)
    config = ClassifierConfig(**description["config"])
    trained = read_body(directory / BODY if config.is_body_trained else body)
    model = fresh_classifier(trained, len(description["labels"]), config, 0)
    load_model(model.head, directory)
    return model.eval(), description["labels"]


def read_body(directory: Path) -> MaskedLM:
    """Read a masked language model; a released encoder may lack the head that predicts tokens."""
    if (directory / ENCODER_DESCRIPTION).is_file():
        return read_masked_lm(directory)
    return load_checkpoint(str(directory), None, 0)[0]
