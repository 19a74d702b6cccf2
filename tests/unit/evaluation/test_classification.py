"""Scores of decisions by hand."""

import numpy as np
import pytest

from nlgraft.evaluation.classification import evaluate_labels, evaluate_probabilities
from nlgraft.evaluation.sufficient import aggregate

TRUE = [0, 0, 0, 0, 1, 1]
PREDICTED = [0, 0, 0, 1, 1, 0]


def test_by_hand():
    """tp 3 and 1, fp 1 and 1, fn 1 and 1: F1 3/4 and 1/2; MCC (3*1 - 1*1) / sqrt(4 * 4 * 2 * 2)."""
    scores = evaluate_labels(PREDICTED, TRUE, 2).scores
    assert scores["accuracy"].value == pytest.approx(100 * 4 / 6)
    assert scores["macro_f1"].value == pytest.approx(100 * (0.75 + 0.5) / 2)
    assert scores["mcc"].value == pytest.approx(100 * 2 / 8)
    assert all(score.n == 6 and score.direction == "maximize" for score in scores.values())


def test_a_class_that_never_occurs_changes_nothing():
    two, five = evaluate_labels(PREDICTED, TRUE, 2), evaluate_labels(PREDICTED, TRUE, 5)
    for name, score in two.scores.items():
        assert five.scores[name].value == pytest.approx(score.value)


def test_statistics_can_be_resampled():
    evaluation = evaluate_labels(PREDICTED, TRUE, 2)
    rows = np.array([0, 0, 3, 4, 5, 5])
    again = evaluate_labels([PREDICTED[row] for row in rows], [TRUE[row] for row in rows], 2)
    for name, statistics in evaluation.statistics.items():
        assert aggregate(name, statistics[rows].sum(0)) == pytest.approx(again.scores[name].value)


def test_probabilities_by_hand():
    """Confidences .9 and .8 are right, .6 is wrong: ECE is (.1 + .2 + .6) / 3, the loss the mean -log p."""
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    scores = evaluate_probabilities(probabilities, np.array([0, 1, 1])).scores
    assert scores["ece"].value == pytest.approx(100 * (0.1 + 0.2 + 0.6) / 3)
    assert scores["loss.class"].value == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())
    assert scores["accuracy"].value == pytest.approx(200 / 3)
    assert (scores["loss.class"].direction, scores["ece"].direction) == ("minimize", "minimize")
    certain = evaluate_probabilities(np.array([[1.0, 0.0]]), np.array([1])).scores
    assert np.isfinite(certain["loss.class"].value)
