"""The sliced projection against plain logits: values, gradients, extremes, half precision."""

import pytest
import torch

import nlgraft.training.losses as cross_entropy
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.training.losses import (
    Seq2SeqObjective,
    predict_target,
    projected_cross_entropy,
    smoothed_cross_entropy,
)
from tests.unit.training.toy import VOCABULARY, ToyData


@pytest.fixture
def small_slices(monkeypatch):
    """Slices of 7 rows for a vocabulary of 11, so that the last one is not full."""
    monkeypatch.setattr(cross_entropy, "_SLICE_ELEMENTS", {False: 77})


def inputs(rows=24, vocabulary=11, width=5, bias=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    target = torch.randint(0, vocabulary, (rows,), generator=generator)
    return random(rows, width), random(vocabulary, width), random(vocabulary) if bias else None, target


def assert_gradients_alike(loss, plain, leaves, **tolerances):
    gradients = (torch.autograd.grad(value, leaves) for value in (loss, plain))
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, **tolerances)  # their types, too


@pytest.mark.parametrize("kind", ["uniform_all", "uniform_others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_slices_give_the_loss_and_gradient_of_plain_logits(small_slices, kind, smoothing, bias):
    hidden, weight, bias_V, target = inputs(bias=bias)
    leaves = [hidden, weight, *([bias_V] if bias else [])]
    sliced = projected_cross_entropy(hidden, weight, bias_V, target, smoothing, kind)
    logits = hidden @ weight.T + (bias_V if bias else 0)
    plain = smoothed_cross_entropy(logits, target, smoothing, kind)
    assert sliced.item() == pytest.approx(plain.item(), rel=1e-12)
    assert_gradients_alike(3 * sliced, 3 * plain, leaves, rtol=1e-10, atol=1e-12)


def test_extreme_logits_neither_overflow_nor_vanish():
    hidden, weight, _, target = inputs(bias=False, dtype=torch.float32)
    loss = projected_cross_entropy(hidden * 300, weight, None, target, 0.1, "uniform_all")
    plain = smoothed_cross_entropy(hidden * 300 @ weight.T, target, 0.1, "uniform_all")
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    assert_gradients_alike(loss, plain, weight, rtol=1e-4, atol=1e-2)


def test_without_gradients_only_the_loss_is_computed(small_slices):
    hidden, weight, bias_V, target = inputs()
    with torch.no_grad():
        loss = projected_cross_entropy(hidden, weight, bias_V, target, 0.1, "uniform_all")
    assert loss.item() == pytest.approx(
        smoothed_cross_entropy(hidden @ weight.T + bias_V, target, 0.1, "uniform_all").item()
    )
    assert not loss.requires_grad


def test_under_bf16_the_loss_is_summed_in_fp32_and_gradients_keep_their_type(small_slices):
    hidden, weight, bias_V, target = inputs(dtype=torch.float32)
    exact = projected_cross_entropy(hidden, weight, bias_V, target, 0.1, "uniform_all")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = projected_cross_entropy(hidden, weight, bias_V, target, 0.1, "uniform_all")
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=1e-2)
    assert rough.item() != exact.item()
    assert_gradients_alike(rough, exact, [hidden, weight, bias_V], rtol=0.1, atol=0.05)


def test_near_certain_tokens_keep_their_small_gradient_in_bf16():
    """p = 0.999: the gradient p - 1 must not be lost in the rounding of p."""
    hidden = torch.eye(4, requires_grad=True)
    weight = (torch.eye(4) * 8).requires_grad_()
    target = torch.arange(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = projected_cross_entropy(hidden, weight, None, target, 0.0, "uniform_all")
    exact = smoothed_cross_entropy(hidden @ weight.T, target, 0.0, "uniform_all")
    gradient, expected = (torch.autograd.grad(loss, weight)[0] for loss in (rough, exact))
    assert torch.allclose(gradient.diagonal(), expected.diagonal(), rtol=0.01)


@pytest.mark.parametrize("tying", ["none", "all"])
def test_objective_of_the_real_model_equals_that_of_its_logits(tying):
    torch.manual_seed(0)
    config = TransformerConfig(preset="tiny", d_model=16, num_heads=2, ffn_dim=16, dropout=0.0, tying=tying)
    model = Seq2Seq(config, VOCABULARY, VOCABULARY)
    data = ToyData()
    batch = data.batch(data.epoch(0)[0], 0)
    loss = Seq2SeqObjective(0.1)(model, batch)
    logits, target, _ = predict_target(model, batch)
    plain = smoothed_cross_entropy(logits, target, 0.1, "uniform_all")
    assert loss.loss_sum.item() == pytest.approx(plain.item(), rel=1e-5)
    assert loss.num_tokens == len(target)
    assert_gradients_alike(loss.loss_sum, plain, [*model.parameters()], rtol=1e-3, atol=1e-4)
