"""Invariants F23 to F26, F29 and F40: our language models, ELMo's mix and LaMaTE's."""

import math

import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import BiLMConfig, ContextConfig, PoolingConfig
from nlgraft.nn.contextual import Context
from nlgraft.nn.generation import beam_search
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.nn.pooling import EncoderShape, LayerStates, build_pooling
from nlgraft.nn.rereading import Prefixes, without_language_model_cache
from tests.tensors import assert_near
from tests.tiny_models import BI, LM, UNI, batch_of, build, examples, logits_of

TOKENS = Tokens.from_lists([[3, 9, 10, 11, 3]])


def make(config, seed=0):
    torch.manual_seed(seed)
    return (BiLM if config.kind == "bi_lm" else UniLM)(config).double().eval()


def mix(**settings):
    torch.manual_seed(0)
    pooling = build_pooling(PoolingConfig(kind="scalar_mix", **settings), EncoderShape(4, 6, 6)).double()
    return pooling, torch.randn(4, 2, 5, 6, dtype=torch.float64), torch.ones(2, 5, dtype=torch.bool)


def test_scalar_mix_by_hand():
    """Invariant F23: equal weights give the mean of normalised layers; shifts, limits and gamma behave."""
    pooling, layers, valid = mix()
    mean = torch.nn.functional.layer_norm(layers, (6,)).mean(0)
    assert_near(pooling(layers, valid), mean)
    pooling.mix.data = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    before = pooling(layers, valid)
    pooling.mix.data += 5
    assert_near(pooling(layers, valid), before)
    pooling.scale.data *= 3
    assert_near(pooling(layers, valid), 3 * before)
    pooling.mix.data = torch.tensor([-math.inf, -math.inf, -math.inf, 0.0], dtype=torch.float64)
    assert_near(pooling(layers, valid), 3 * pooling.norm(layers[3]))


def test_scalar_mix_drops_whole_layers():
    """Dropout falls on the softmaxed weights and rescales what is left."""
    pooling, layers, valid = mix(weight_dropout=0.5)
    layers = torch.eye(4, 6, dtype=torch.float64)[:, None, None].expand(4, 1, 1, 6).contiguous()
    pooling.norm = torch.nn.Identity()
    weights = pooling.train()(layers, valid[:1, :1])[0, 0, :4]
    assert set(weights.tolist()) <= {0.0, 0.5}
    assert pooling.eval()(layers, valid[:1, :1])[0, 0, :4].tolist() == [0.25] * 4


@pytest.mark.parametrize(("group_size", "read"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (4, [4])])
def test_groups_of_layers_by_hand(group_size, read):
    """Invariant F40: sigmoids of the weights over their number, on each group's last layer; then the norm."""
    config = PoolingConfig(kind="groups", group_size=group_size)
    pooling = build_pooling(config, EncoderShape(5, 6, 6)).double()
    states = torch.randn(5, 2, 3, 6, dtype=torch.float64)
    layers, valid = pooling.select(LayerStates([*states], states[-1])), torch.ones(2, 3, dtype=torch.bool)
    assert torch.equal(layers, states[read])
    for place, layer in enumerate(read):
        pooling.mix.data = torch.full((len(read),), -math.inf, dtype=torch.float64)
        pooling.mix.data[place] = 0
        expected = torch.nn.functional.rms_norm(states[layer] / 2 / len(read), (6,), eps=1e-5)
        assert_near(pooling(layers, valid), expected)


def test_number_of_states():
    """Invariant F23: L+1 left to right (13 for 12 layers), L+3 of double width for two towers (15)."""
    uni, bi = make(UNI), make(BI)
    states = uni(TOKENS)
    assert len(states.layers) == uni.shape.num_states == 3
    assert states.output is states.layers[-1]
    states = bi(TOKENS)
    assert len(states.layers) == bi.shape.num_states == 5
    assert {tuple(layer.shape) for layer in states.layers} == {(1, 5, 24)}
    assert states.output.shape == (1, 5, 12)
    twelve = BiLMConfig(**{**LM, "num_layers": 12})
    with torch.device("meta"):
        assert BiLM(twelve).shape.num_states == 15


def test_paper_sizes():
    """189.0M and 352.8M parameters with one 37K table."""
    sizes = {"vocab_size": 37_000, "d_model": 1024, "ffn_dim": 4096, "num_layers": 12}
    with torch.device("meta"):
        models = [UniLM(UNI.model_copy(update=sizes)), BiLM(BI.model_copy(update=sizes))]
    millions = [round(sum(p.numel() for p in model.parameters()) / 1e6, 1) for model in models]
    assert millions == [189.0, 352.8]


@pytest.mark.parametrize("family", ["src_elmo", "src_ft", "tgt_elmo", "tgt_ft", "src_elmo_bert", "lamate"])
def test_what_is_trained(family):
    """Invariant F24: the mix and not the model in *_elmo, every layer of the model in *_ft."""
    model = build(family).train()
    logits_of(model, batch_of(examples(model))).square().sum().backward()
    embedding = model.target_embedding if family.startswith("tgt") else model.source_embedding
    encoder, pooling = embedding.context.encoder, embedding.context.pooling
    if family.endswith("_ft"):
        grown = [
            name for name, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().max() > 0
        ]
        assert {name.split(".")[1] for name in grown if "layers" in name or "tower" in name} == {"0", "1"}
    else:
        assert all(p.grad is None for p in encoder.parameters())
        learned = [*pooling.parameters(), *embedding.projection.parameters()]
        assert all(p.grad.abs().max() > 0 for p in learned)


def reached(states, x):
    """Positions of an input on which some states depend."""
    (gradient,) = torch.autograd.grad(states.square().sum(), x, retain_graph=True)
    return (gradient[0].abs().amax(-1) > 0).tolist()


@pytest.mark.parametrize("combiner", ["attention", "linear"])
def test_cloze_sees_all_but_itself(combiner):
    """Invariant F25: logits_i depend on every embedding but the i-th."""
    model = make(BiLMConfig(**LM, combiner=combiner))
    x = model.input(model.embedding(TOKENS)).detach().requires_grad_()
    ahead, back = model.towers(x, TOKENS.valid)
    hidden = model.combiner(ahead[-1], back[-1], TOKENS.valid, sees_current=False)
    for i in range(5):
        assert reached(hidden[0, i], x) == [j != i for j in range(5)]


@pytest.mark.parametrize(("kind", "sees_itself"), [("output", True), ("cloze", False), ("towers", True)])
def test_what_a_readout_sees(kind, sees_itself):
    """Invariant F25, through the context that replaces a table: what changes if token 2 is another."""
    config = ContextConfig(encoder=BI, pooling=PoolingConfig(kind=kind), is_frozen=False)
    context = Context(config, make(BI)).double().eval()
    other = Tokens.from_lists([[3, 9, 12, 11, 3]])
    moved = (context(TOKENS).states - context(other).states).abs().amax(2)[0] > 1e-9
    assert moved.tolist() == [True, True, sees_itself, True, True]


def test_the_towers_are_added():
    """The readout towers is the output plus both towers' last states."""
    model = make(BI)
    contexts = {
        kind: Context(ContextConfig(encoder=BI, pooling=PoolingConfig(kind=kind)), model).double()
        for kind in ("output", "towers")
    }
    ahead, back = model.towers(model.input(model.embedding(TOKENS)), TOKENS.valid)
    assert_near(contexts["towers"](TOKENS).states - contexts["output"](TOKENS).states, ahead[-1] + back[-1])


def test_towers_look_one_way():
    """Invariant F25: the forward tower never sees the right, the backward tower never the left."""
    model = make(BI)
    x = model.input(model.embedding(TOKENS)).detach().requires_grad_()
    for tower, states in enumerate(model.towers(x, TOKENS.valid)):
        for i in range(5):
            expected = [j <= i if tower == 0 else j >= i for j in range(5)]
            assert reached(states[-1][0, i], x) == expected


def test_one_token_alone():
    """Invariant F25: nothing to predict from is not NaN, alone and beside longer sentences."""
    model = make(BI)
    alone, beside = Tokens.from_lists([[3]]), Tokens.from_lists([[3], [3, 9, 3]])
    for read in (model.cloze, lambda tokens: model(tokens).output):
        assert read(alone).isfinite().all()
        assert_near(read(beside)[0, :1], read(alone)[0])


def test_prepended_token_is_read_and_dropped():
    """SRC-ELMO reads end + source and drops the first position after mixing."""
    model = build("src_elmo")
    embedding = model.source_embedding
    tokens = Tokens.from_lists([[9, 10, 3], [11, 3]])
    longer = Tokens.from_lists([[3, 9, 10, 3], [3, 11, 3]])
    expected = embedding.projection(embedding.context(longer).states)[:, 1:]
    assert_near(embedding(tokens), expected)


@pytest.mark.parametrize(
    ("family", "positions", "scale"),
    [("transformer", True, 4.0), ("src_elmo", False, 4.0), ("direct", True, 1.0)],
)
def test_source_input_is_scaled_once(family, positions, scale):
    """Invariant F29: sqrt(d) once where the configuration says so, no positions for SRC-ELMO."""
    model = build(family)
    tokens = Tokens.from_lists([[9, 10, 11, 3]])
    embedded = model.source_embedding(tokens)
    expected = scale * embedded
    if positions:
        expected = expected + model.source_input.positions(0, 4)
    assert (model.source_input.positions is not None) == positions
    assert_near(model.source_input(embedded, segment=0), expected)


def test_finetuned_dropout_falls_on_the_output():
    """Dropout on the states of *_FT."""
    config = ContextConfig(encoder=UNI, is_frozen=False, pooling=PoolingConfig(kind="output"), dropout=0.5)
    states = Context(config).double().train()(TOKENS).states
    assert 0.2 < float((states == 0).double().mean()) < 0.8


def test_a_language_model_without_cache_says_the_same():
    """Invariants F27 and F35: recomputing every prefix gives the same output, only slower."""
    model = build("tgt_elmo")
    rows = examples(model, count=4)
    sources = batch_of(rows).sources
    config = GenerationConfig(beam=3, num_return=2, max_length_offset=4)
    cached = beam_search(model, sources, config=config)
    encoder = model.target_embedding.context.encoder
    with without_language_model_cache(model):
        assert isinstance(model.target_embedding.new_cache(), Prefixes)
        anew = beam_search(model, sources, config=config)
    assert model.target_embedding.context.encoder is encoder
    for hypotheses, hypotheses_anew in zip(cached, anew, strict=True):
        assert [h.ids for h in hypotheses] == [h.ids for h in hypotheses_anew]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in hypotheses_anew], abs=1e-9)
