"""Scores of decisions: accuracy, macro-averaged F1, Matthews' correlation, loss and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nlgraft.evaluation.calibration import calibration_rows
from nlgraft.evaluation.overlap import mean_rows
from nlgraft.evaluation.scores import Evaluation
from nlgraft.evaluation.sufficient import NUM_ECE_BINS, Statistics

CLASS_LOSS = "loss.class"
"""Name of the cross-entropy of the true class, which is no loss per token."""


def evaluate_labels(
    predicted: Sequence[int],
    true: Sequence[int],
    num_classes: int,
) -> Evaluation:
    """Score predicted classes.

    Args:
        predicted: Class of each decision, from 0.
        true: Its true class.
        num_classes: How many classes there are; one that never occurs changes no score.

    Returns:
        ``accuracy`` with statistics [N, 2], ``macro_f1`` and ``mcc`` with one-hot pairs [N, classes^2]; all
        in points of 100.

    Source: definitions of scikit-learn's ``f1_score(average="macro")`` and ``matthews_corrcoef``.
    """
    predictions, truth = np.asarray(predicted), np.asarray(true)
    decisions = np.arange(len(truth))
    pairs = np.zeros((len(truth), num_classes**2))
    # One-hot rows, whose sum is the flattened confusion matrix.
    pairs[decisions, truth * num_classes + predictions] = 1
    statistics = {"accuracy": mean_rows(truth == predictions), "macro_f1": pairs, "mcc": pairs}
    signatures = {
        "accuracy": "accuracy|points",
        "macro_f1": "macro_f1|classes:occurring|zero_division:0|points",
        "mcc": "mcc|multiclass|points",
    }
    return Evaluation.of(statistics, signatures)


def evaluate_probabilities(probabilities_NC: Statistics, true_N: NDArray[np.int64]) -> Evaluation:
    """Score the probabilities of the classes of each decision: ``evaluate_labels``, loss and calibration.

    Returns:
        Beside the scores of the likeliest class ``loss.class`` (nats per decision, statistics [N, 2]) and
        ``ece`` (points of 100, statistics [N, 3 * bins]): confidence is the largest probability.

    Source: Guo et al. (2017), section 3 (ECE).
    """
    predicted_N = probabilities_NC.argmax(1)
    confidence_N1 = probabilities_NC.max(1, keepdims=True)
    is_right_N1 = (predicted_N == true_N)[:, None]
    decisions = np.arange(len(true_N))
    # softmax may underflow to 0, where the loss would be infinite
    nats_N = -np.log(np.maximum(probabilities_NC[decisions, true_N], np.finfo(np.float64).tiny))
    statistics = {
        CLASS_LOSS: mean_rows(nats_N),
        "ece": calibration_rows(confidence_N1.tolist(), is_right_N1.tolist()),
    }
    signatures = {
        CLASS_LOSS: "loss|nats per decision|unsmoothed",
        "ece": f"ece|classes|bins:{NUM_ECE_BINS}|points",
    }
    labels = evaluate_labels(predicted_N.tolist(), true_N.tolist(), probabilities_NC.shape[1])
    return labels | Evaluation.of(statistics, signatures)
