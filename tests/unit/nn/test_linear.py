"""Linear maps by oneDNN, their weights packed while a model decodes, against double precision and torch."""

import copy

import pytest
import torch
from torch import nn

from nlgraft.nn import linear
from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.linear import Linear, packed_weights, product, transposed_product, use_fast_products
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from tests.tensors import differing

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"), reason="this torch was built without oneDNN"
)


@pytest.fixture
def for_all_sizes(monkeypatch):
    """oneDNN for products of any size, on CPUs where torch's own kernels are as fast, too."""
    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    monkeypatch.setattr(linear, "_MIN_PRODUCTS", 0)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(actual, expected):
    actual, expected = actual.detach().double(), expected.detach()
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 3, 5), (37, 64, 24), (50, 24, 64)])
def test_products_are_those_of_double_precision(for_all_sizes, rows, inputs, outputs, is_transposed):
    a, bias = random(rows, inputs), random(outputs, seed=2)
    b = random(inputs, outputs, seed=1).T if is_transposed else random(outputs, inputs, seed=1)
    exact = a.double() @ b.double().T + bias.double()
    assert relative_error(product(a, b, bias), exact) < 1e-6
    gradient = random(rows, outputs, seed=3)
    exact = gradient.double().T @ a.double()
    actual = transposed_product(gradient, a)
    assert actual.shape == (outputs, inputs)
    assert relative_error(actual, exact) < 1e-6


@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("use_relu", [True, False])
def test_gradients_are_those_of_double_precision(for_all_sizes, shape, bias, use_relu):
    layer = Linear(16, 40, bias=bias)
    exact = nn.Linear(16, 40, bias=bias, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    x, y = random(*shape).requires_grad_(), random(*shape).double().requires_grad_()
    results = []
    for map_, vectors in ((layer, x), (exact, y)):
        out = map_(vectors)
        out = torch.relu_(out) if use_relu else out  # in place, as the feed-forward block does
        (2 * out).sum().backward()  # a sum's gradient is one number, repeated by its strides
        results.append([out, vectors.grad, *(p.grad for p in map_.parameters())])
    for actual, expected in zip(*results, strict=True):
        assert actual.shape == expected.shape
        assert relative_error(actual, expected) < 1e-6


def test_what_needs_no_gradient_gets_none(for_all_sizes):
    map_ = Linear(8, 8)
    map_.weight.requires_grad_(False)
    x = random(4, 8).requires_grad_()
    map_(x).sum().backward()
    assert map_.weight.grad is None
    assert x.grad is not None
    assert map_.bias.grad.tolist() == pytest.approx([4.0] * 8)
    with torch.no_grad():
        assert not map_(x).requires_grad


def test_small_products_and_half_precision_stay_with_torch(monkeypatch):
    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    monkeypatch.setattr(linear, "_by_onednn", lambda *args: pytest.fail("oneDNN was called"))
    map_ = Linear(16, 16)
    x = random(2**14 - 1, 16)
    assert torch.equal(map_(x), nn.functional.linear(x, map_.weight, map_.bias))
    monkeypatch.setattr(linear, "_MIN_PRODUCTS", 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert map_(x).dtype == torch.bfloat16
    assert map_.double()(x.double()).dtype == torch.float64


def test_large_products_go_to_onednn(monkeypatch):
    called = []
    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    monkeypatch.setattr(linear, "_by_onednn", lambda a, b, bias: called.append(len(a)) or a @ b.T)
    with torch.no_grad():
        Linear(16, 16)(random(2**14, 16))
    assert called == [2**14]


def test_other_peoples_models_keep_their_weights_and_subclasses(for_all_sizes):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), Doubled(8, 4))
    x = random(3, 8)
    before, state = model(x), model.state_dict()
    use_fast_products(model)
    assert [type(module) for module in model] == [Linear, nn.ReLU, Doubled]
    assert model.state_dict().keys() == state.keys()
    assert torch.allclose(model(x), before, rtol=1e-6, atol=1e-6)
    assert all(p.data_ptr() == state[name].data_ptr() for name, p in model.named_parameters())


# --- packed weights ---------------------------------------------------------------------------------

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
    monkeypatch.setattr(linear, "_IS_AVAILABLE", True)
    layers = nn.ModuleList([Doubled(8, 4), nn.Linear(8, 4).double()])
    with packed_weights(layers):
        assert not packed(layers)
    layer = Linear(8, 4)
    with torch.inference_mode(), packed_weights(layer), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.slow  # its compiler
def test_compiled_layers_compute_the_same(for_all_sizes):
    layer, x = Linear(16, 8), torch.randn(3, 5, 16)
    torch.testing.assert_close(
        torch.compile(layer, dynamic=True)(x), nn.functional.linear(x, layer.weight, layer.bias)
    )
