"""Inference ECE by hand, and the alignment it rests on."""

import numpy as np
import pytest
import torch
from sacrebleu.metrics.lib_ter import translation_edit_rate

from nlgraft.evaluation.calibration import (
    calibration_rows,
    evaluate_calibration,
    mark_right,
    token_confidences,
)
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.text.batches import Ragged


@pytest.mark.parametrize(
    ("hypothesis", "reference", "right"),
    [
        ("a b c", "a b c", "111"),
        ("a x c", "a b c", "101"),
        ("a b c d", "a b c", "1110"),
        ("c d a b", "a b c d", "1111"),  # a shifted block is right
        ("c d a b x", "a b c d", "11110"),
        ("a a", "a", "01"),
        ("", "a", ""),
        ("a", "", "0"),
    ],
)
def test_right_tokens_are_those_that_ter_matches(hypothesis, reference, right):
    marks = mark_right(hypothesis.split(), reference.split())
    assert "".join("1" if mark else "0" for mark in marks) == right


def test_wrong_tokens_agree_with_the_edit_rate():
    """Edits = shifts + substitutions + insertions + deletions, so wrong tokens never exceed the edits."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        hypothesis = [str(token) for token in rng.integers(0, 5, rng.integers(1, 12))]
        reference = [str(token) for token in rng.integers(0, 5, rng.integers(1, 12))]
        edits, _ = translation_edit_rate(hypothesis, reference)
        num_right = int(mark_right(hypothesis, reference).sum())
        assert len(hypothesis) - num_right <= edits
        assert max(len(hypothesis), len(reference)) - num_right <= edits


def test_ece_by_hand():
    """Bin of 0.9: three tokens, two right, |2 - 2.72|; bin of 0.2: one wrong, 0.2; bin of 1: right, 0."""
    rows = calibration_rows([[0.9, 0.9], [0.92, 0.2], [1.0]], [[True, False], [True, False], [True]])
    assert rows.shape == (3, 60)
    expected = 100 * (abs(2 - (0.9 + 0.9 + 0.92)) + 0.2 + 0.0) / 5
    assert aggregate("ece", rows.sum(0)) == pytest.approx(expected)
    assert rows[2, -3:].tolist() == [1, 1, 1]


def test_evaluation_carries_statistics_and_signature():
    evaluation = evaluate_calibration([["a", "x"]], [[0.8, 0.6]], [["a", "b"]])
    assert evaluation.scores["ece"].value == pytest.approx(100 * (0.2 + 0.6) / 2)
    assert evaluation.scores["ece"].direction == "minimize"
    assert "bins:20" in evaluation.scores["ece"].signature


def test_confidences_are_the_models_probabilities():
    torch.manual_seed(0)
    model = Seq2Seq(TransformerConfig(preset="tiny", d_model=16, num_heads=2, ffn_dim=16), 12, 12).train()
    sources = Ragged.of([[5, 6, 3], [7, 3], [8, 9, 10, 3]])
    hypotheses = [[4, 5], [], [6, 7, 8]]
    config = GenerationConfig()
    confidences = token_confidences(model, Inputs([sources]), hypotheses, config)
    assert model.training
    assert [len(values) for values in confidences] == [2, 0, 3]
    model.eval()
    sources_tokens, _ = Inputs([sources]).pack(np.array([2]))
    with torch.no_grad():
        state = model.start(model.encode(sources_tokens))
        for place, (before, token) in enumerate([(2, 6), (6, 7), (7, 8)]):
            probabilities = model.logits(model.decode_step(state, torch.tensor([before]))).softmax(-1)
            assert confidences[2][place] == pytest.approx(probabilities[0, token].item(), rel=1e-4)
