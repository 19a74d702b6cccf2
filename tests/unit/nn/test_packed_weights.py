"""Packed weights of linear maps while a model decodes, against torch's own products."""

import copy

import pytest
import torch
from torch import nn

from nlgraft.nn import linear
from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.linear import Linear, packed_weights
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from tests.tensors import differing

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"), reason="this torch was built without oneDNN"
)

SOURCES = Tokens.from_lists([[5, 6, 7, 8, 3], [9, 4, 3], [4, 5, 6, 3], [8, 3]] * 20)
CONFIG = GenerationConfig(beam=4, num_return=4, max_length_offset=3)


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = TransformerConfig(preset="tiny", d_model=32, num_heads=2, ffn_dim=64, tying="all")
    return Seq2Seq(config, 3000, 3000).eval().requires_grad_(False)


@pytest.fixture(params=[True, False], ids=["by oneDNN", "by torch"])
def is_available(request, monkeypatch):
    monkeypatch.setattr(linear, "_IS_AVAILABLE", request.param)
    return request.param


def layers_of(model):
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def packed(model):
    return [layer for layer in layers_of(model) if "forward" in vars(layer)]


@pytest.mark.parametrize("kind", [nn.Linear, Linear])
def test_fp32_gives_the_same_products(is_available, kind):
    torch.manual_seed(0)
    layer, x = kind(32, 64).requires_grad_(False), torch.randn(7, 3, 32)
    expected = torch.einsum("abi,oi->abo", x.double(), layer.weight.double()) + layer.bias.double()
    with torch.inference_mode(), packed_weights(nn.ModuleList([layer])):
        assert packed(nn.ModuleList([layer])) == [layer] * is_available
        assert torch.allclose(layer(x), expected.float(), atol=1e-5)
        assert layer(x[:0]).shape == (0, 3, 64)


def test_hypotheses_do_not_depend_on_who_multiplies(model, monkeypatch):
    beams = []
    for is_available in (True, False):
        monkeypatch.setattr(linear, "_IS_AVAILABLE", is_available)
        beams.append(beam_search(model, [SOURCES], config=CONFIG))
    for first, second in zip(*beams, strict=True):
        assert [h.ids for h in first] == [h.ids for h in second]
        assert [h.score for h in first] == pytest.approx([h.score for h in second], abs=1e-5)


@pytest.mark.usefixtures("is_available")
def test_the_model_is_left_as_it_was(model):
    before = copy.deepcopy(model.state_dict())
    with packed_weights(model):
        beam_search(model, [SOURCES], config=CONFIG)
    with pytest.raises(ZeroDivisionError), packed_weights(model):
        raise ZeroDivisionError
    assert not packed(model)
    assert not differing(model, before)


def test_all_layers_of_a_model_are_packed_once_for_a_corpus(model, monkeypatch):
    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    with packed_weights(model):
        assert packed(model) == layers_of(model)
        chosen = [vars(layer)["forward"] for layer in layers_of(model)]
        beam_search(model, [SOURCES], config=CONFIG)
        assert [vars(layer)["forward"] for layer in layers_of(model)] == chosen


def test_other_precisions_and_subclasses_stay(model, monkeypatch):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    layers = nn.ModuleList([Doubled(8, 4), nn.Linear(8, 4).double()])
    with packed_weights(layers):
        assert not packed(layers)
    layer = Linear(8, 4)
    with torch.inference_mode(), packed_weights(layer), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16
