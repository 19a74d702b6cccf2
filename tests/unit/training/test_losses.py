"""Label smoothing by hand, softmax on real positions only, losses of segments."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.training.losses import (
    Seq2SeqObjective,
    predict_target,
    segment_losses,
    smoothed_cross_entropy,
)
from tests.unit.training.toy import ToyData, ToyModel


def test_smoothing_by_hand_for_both_conventions():
    """Invariant F30: three classes with p = (1/2, 1/4, 1/4), truth 0, e = 0.3.

    Over all V: q = (0.8, 0.1, 0.1). Over the V - 1 others: q = (0.7, 0.15, 0.15).
    """
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)) + 3.0
    truth = torch.tensor([0])
    half, quarter = math.log(2), math.log(4)
    everyone = smoothed_cross_entropy(logits, truth, 0.3, "uniform_all")
    assert float(everyone) == pytest.approx(0.8 * half + 0.2 * quarter)
    others = smoothed_cross_entropy(logits, truth, 0.3, "uniform_others")
    assert float(others) == pytest.approx(0.7 * half + 0.3 * quarter)
    assert float(smoothed_cross_entropy(logits, truth, 0.0, "uniform_all")) == pytest.approx(half)


def test_uniform_all_is_torch_label_smoothing():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 13, generator=generator, dtype=torch.float64, requires_grad=True)
    truth = torch.randint(0, 13, (7,), generator=generator)
    loss = smoothed_cross_entropy(logits, truth, 0.1, "uniform_all")
    expected = F.cross_entropy(logits, truth, label_smoothing=0.1, reduction="sum")
    assert loss.item() == pytest.approx(expected.item())
    gradient = torch.autograd.grad(loss, logits)[0]
    assert torch.allclose(gradient, torch.autograd.grad(expected, logits)[0], atol=1e-12)


def test_half_precision_logits_are_summed_in_fp32():
    logits = torch.randn(2, 5).bfloat16()
    assert smoothed_cross_entropy(logits, torch.tensor([1, 2]), 0.1, "uniform_all").dtype == torch.float32


def padded(batch, extra):
    """The same batch with more padding on every side."""

    def pad(tokens):
        return Tokens(F.pad(tokens.ids, (0, extra)), F.pad(tokens.valid, (0, extra)))

    return Batch(
        [pad(source) for source in batch.sources],
        pad(batch.target_input),
        F.pad(batch.target_output, (0, extra)),
    )


def test_padding_costs_nothing_and_changes_nothing():
    """Invariant F30: pad ignored. Logits are computed for real positions alone."""
    model, data = ToyModel(), ToyData()
    batch = data.batch(np.arange(5), 0)
    num_real = int(batch.target_input.valid.sum())
    for same in (batch, padded(batch, 3)):
        logits, target, _ = predict_target(model, same)
        assert logits.shape == (num_real, 11)
        assert target.tolist() == [i for row in range(5) for i in [*data.sources[row], 3]]
    loss = Seq2SeqObjective(0.1)(model, batch)
    more = Seq2SeqObjective(0.1)(model, padded(batch, 3))
    assert loss.num_tokens == more.num_tokens == num_real
    assert loss.loss_sum.item() == pytest.approx(more.loss_sum.item())


def test_segment_losses_are_those_of_each_segment_alone():
    model, data = ToyModel(dropout=0.5), ToyData(num=9)
    model.train()
    losses = segment_losses(model, data.in_order(), 9)
    assert model.training
    model.eval()
    for row in range(9):
        alone = Seq2SeqObjective(0.0)(model, data.batch(np.array([row]), 0))
        assert losses[row] == pytest.approx([alone.loss_sum.item(), alone.num_tokens], rel=1e-5)
