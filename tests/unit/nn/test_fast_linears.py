"""Linear layers while decoding: oneDNN against torch's own products."""

import copy

import pytest
import torch
from torch import nn

from nlgraft.nn import fast_linears
from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig

SOURCES = Tokens.from_lists([[5, 6, 7, 8, 3], [9, 4, 3], [4, 5, 6, 3], [8, 3]] * 20)
CONFIG = GenerationConfig(beam=4, num_return=4, max_length_offset=3)


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = TransformerConfig(preset="tiny", d_model=32, num_heads=2, ffn_dim=64, tying="all")
    return Seq2Seq(config, 3000, 3000).eval().requires_grad_(False)


@pytest.fixture(params=[True, False], ids=["onednn is faster", "onednn is not faster"])
def is_faster(request, monkeypatch):
    monkeypatch.setattr(fast_linears, "is_onednn_faster", lambda: request.param)
    return request.param


def layers_of(model):
    return [layer for layer in model.modules() if type(layer) is nn.Linear]


@pytest.mark.usefixtures("is_faster")
def test_fp32_gives_the_same_products(model):
    layer, x = model.decoder[0].ffn.inner, torch.randn(7, 3, 32)
    expected = torch.einsum("abi,oi->abo", x.double(), layer.weight.double()) + layer.bias.double()
    with torch.inference_mode(), fast_linears.fast_linears(model):
        assert torch.allclose(layer(x), expected.float(), atol=1e-5)
        assert layer(x[:0]).shape == (0, 3, 64)


def test_hypotheses_do_not_depend_on_who_multiplies(model, monkeypatch):
    found = []
    for is_faster in (True, False):
        monkeypatch.setattr(fast_linears, "is_onednn_faster", lambda is_faster=is_faster: is_faster)
        found.append(beam_search(model, [SOURCES], config=CONFIG))
    for one, other in zip(*found, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)


@pytest.mark.usefixtures("is_faster")
def test_the_model_is_left_as_it_was(model):
    before = copy.deepcopy(model.state_dict())
    with fast_linears.fast_linears(model):
        beam_search(model, [SOURCES], config=CONFIG)
    with pytest.raises(ZeroDivisionError), fast_linears.fast_linears(model):
        raise ZeroDivisionError
    assert not [layer for layer in layers_of(model) if "forward" in vars(layer)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.usefixtures("is_faster")
def test_a_search_inside_keeps_what_was_arranged_for_the_whole_corpus(model):
    with fast_linears.fast_linears(model):
        chosen = [vars(layer).get("forward") for layer in layers_of(model)]
        beam_search(model, [SOURCES], config=CONFIG)
        assert [vars(layer).get("forward") for layer in layers_of(model)] == chosen


def test_other_precisions_stay(model):
    with fast_linears.fast_linears(model.double()):
        assert not [layer for layer in layers_of(model) if "forward" in vars(layer)]
