"""Invariants F14 to F22: branches, merges, layer pooling, freezing."""

from copy import deepcopy
from typing import get_args

import pytest
import torch

from nlgraft.nn.attention import Memory
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import ContextConfig, OwnEmbeddingsConfig, PoolingConfig, PoolingName
from nlgraft.nn.contextual import Context, OwnEmbeddings
from nlgraft.nn.fusion import MERGES, FusionBranch
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import FusionConfig, MergeName, TransformerConfig
from nlgraft.nn.pooling import POOLINGS, EncoderShape, build_pooling
from tests.tensors import assert_near, differing, draw
from tests.tiny_models import (
    HIDDEN,
    SIZES,
    UNI,
    VOCAB,
    Case,
    batch_of,
    build,
    checkpoint,
    examples,
    family_config,
    hugging_face,
    logits_of,
)

SITES = ["self", "self_norm", "ffn", "ffn_norm"]
SIDES = ["source", "target", "both"]


def fused(norm="post", kind="bert", **fusion):
    config = family_config(
        "prlm", encoder=checkpoint(kind), **SIZES, norm=norm, fusion={"contexts": ("prlm",), **fusion}
    )
    return Case(config, {"prlm": kind})


def branches_of(model):
    return [module for module in model.modules() if isinstance(module, FusionBranch)]


@pytest.mark.parametrize("site", ["self", "ffn"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_branches_with_zero_initial_weights_begin_as_the_plain_model(site, side, norm):
    """Invariant F14 by ``init: zero``; the branches still learn: their last projection has a gradient."""
    config = fused(norm, site=site, side=side, init="zero").config
    encoders = {"prlm": HuggingFaceEncoder(hugging_face())}
    torch.manual_seed(3)  # not by `build`, which draws all weights again
    model = Seq2Seq(config, VOCAB, VOCAB, encoders).double().eval()
    torch.manual_seed(3)
    plain = Seq2Seq(TransformerConfig(**SIZES, norm=norm), VOCAB, VOCAB).double().eval()
    batch = batch_of(examples(model))
    logits = logits_of(model, batch)
    assert_near(logits, logits_of(plain, batch))
    logits.square().sum().backward()
    for branch in branches_of(model):
        last = branch.attention.output if site == "self" else branch.ffn.outer
        assert last.weight.grad.abs().max() > 0


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_gate_closed_on_the_branch_gives_the_plain_model(norm, site, side):
    """Invariant F15 on a whole model: a gate that lets the layer's own flow alone through."""
    model = build(fused(norm, site=site, side=side, merge="gate"))
    plain = Seq2Seq(TransformerConfig(**SIZES, norm=norm), VOCAB, VOCAB).double().eval()
    plain.load_state_dict({name: p for name, p in model.state_dict().items() if name in plain.state_dict()})
    batch = batch_of(examples(model))
    for name, parameter in model.named_parameters():
        if name.endswith("merge.gate.weight"):
            torch.nn.init.zeros_(parameter)
        if name.endswith("merge.gate.bias"):
            torch.nn.init.constant_(parameter, 50.0)
    assert_near(logits_of(model, batch), logits_of(plain, batch), 1e-6)


@pytest.mark.parametrize("merge", get_args(MergeName))
@pytest.mark.parametrize("side", SIDES)
def test_all_but_the_branches_begins_as_in_the_plain_model(side, merge):
    """Cells of a seed are compared in pairs, so they begin alike; branches of different layers do not."""

    def begun(config, encoders=None):
        torch.manual_seed(3)
        return Seq2Seq(config, VOCAB, VOCAB, encoders)

    plain = begun(TransformerConfig(**SIZES)).state_dict()
    config_of_embeddings = fused(side=side, merge=merge).config
    config_of_embeddings = config_of_embeddings.model_copy(
        update={"contexts": {"prlm": ContextConfig(encoder=OwnEmbeddingsConfig(width=HIDDEN))}}
    )
    models = [
        begun(fused(side=side, merge=merge).config, {"prlm": HuggingFaceEncoder(hugging_face())}),
        begun(config_of_embeddings),
    ]
    for model in models:
        assert not differing(plain, model) & plain.keys()
        keys = [branch.attention.key_value.weight for branch in branches_of(model)]
        assert len({key.sum().item() for key in keys}) == len(keys) > 0


def test_own_embeddings_have_the_parameters_of_an_encoder_of_their_width():
    """A control: as many learned parameters; reads the first layer's input, unchanged at its own width."""
    pretrained, control = build(fused(kind="electra")), build("own_embeddings")

    def learned(model):
        return {name: p.shape for name, p in model.named_parameters() if p.requires_grad}

    assert learned(pretrained) == learned(control)
    widen = control.contexts["prlm"].widen.weight
    # drawn in fp32
    assert_near(widen.T @ widen, torch.eye(16, dtype=torch.float64), 1e-6)
    same = control.config.contexts["prlm"].model_copy(update={"encoder": OwnEmbeddingsConfig(width=16)})
    narrow = OwnEmbeddings(same, 16)
    source = Memory(torch.randn(2, 3, 16), torch.ones(2, 3, dtype=torch.bool), False, False)
    assert torch.equal(narrow(source).states, source.states)
    assert not list(narrow.parameters())


def merge(strategy, num_branches=1, **settings):
    names = tuple(f"c{i}" for i in range(num_branches))
    config = FusionConfig(contexts=names, merge=strategy, **settings)
    return MERGES[strategy](config, 4).double()


def test_merges_by_hand():
    """Invariant F15: dropnet in evaluation and a gate of several flows with W=0 are the average."""
    base, flow, other = draw(3, 2, 5, 4)
    average = (base + flow) / 2
    assert torch.equal(merge("average")(base, [flow]), average)
    assert torch.equal(merge("sum")(base, [flow]), base + flow)
    assert torch.equal(merge("dropnet").eval()(base, [flow]), average)
    mean = (base + flow + other) / 3
    assert_near(merge("average", 2)(base, [flow, other]), mean)
    gate = merge("gate", 2)
    torch.nn.init.zeros_(gate.gate.weight)
    assert_near(gate(base, [flow, other]), mean)


def test_every_strategy_has_an_entry():
    for table, names in ((MERGES, MergeName), (POOLINGS, PoolingName)):
        assert tuple(table) == get_args(names)


def test_gate_is_per_channel():
    base, flow = draw(2, 2, 5, 4)
    gate = merge("gate")
    share = torch.sigmoid(torch.cat([base, flow], -1) @ gate.gate.weight.T + gate.gate.bias)
    assert_near(gate(base, [flow]), share * base + (1 - share) * flow)


@pytest.mark.parametrize(
    ("probability", "flows", "shares"),
    [
        (0.6, [2.0], {0.0: 0.3, 2.0: 0.3, 1.0: 0.4}),
        (None, [2.0], {0.0: 0.5, 2.0: 0.5, 1.0: 0.0}),
        (0.8, [3.0, 30.0], {0.0: 0.4, 3.0: 0.2, 30.0: 0.2, 11.0: 0.2}),
    ],
)
def test_dropnet_frequencies(probability, flows, shares):
    """Invariant F15: one draw for each call, equal across the batch; within four standard errors."""
    torch.manual_seed(0)
    dropnet = merge("dropnet", len(flows), dropnet_probability=probability).train()
    base, branches = torch.zeros(3, 2, 4), [torch.full((3, 2, 4), flow) for flow in flows]
    results = torch.stack([dropnet(base, branches) for _ in range(2000)])
    assert (results == results[:, :1, :1, :1]).all()
    for value, share in shares.items():
        count = float((abs(results[:, 0, 0, 0] - value) < 1e-5).double().mean())
        assert abs(count - share) <= 4 * (share * (1 - share) / len(results)) ** 0.5


@pytest.mark.parametrize("side", SIDES)
def test_context_tokens_have_no_order(side):
    """Invariant F16: shuffling the context's states with their mask changes nothing; lengths are free."""
    model = build(fused(side=side))
    batch = batch_of(examples(model))
    expected = logits_of(model, batch)
    context = model.contexts["prlm"]
    with torch.no_grad():
        layers = context.layers(batch.contexts["prlm"])
    order = torch.randperm(layers.shape[2])
    tokens = batch.contexts["prlm"]
    batch.contexts["prlm"] = Tokens(tokens.ids[:, order], tokens.valid[:, order], layers[:, :, order])
    assert_near(logits_of(model, batch), expected)


def test_contexts_of_several_widths_work_together():
    """Invariant F16: two contexts of width 20 and 12 at once, each of which matters."""
    contexts = {
        "wide": {"encoder": checkpoint("bert")},
        "narrow": {"encoder": UNI, "pooling": {"kind": "mean"}},
    }
    config = TransformerConfig(**SIZES, contexts=contexts, fusion={"contexts": ("wide", "narrow")})
    model = build(Case(config, {"wide": "bert"}))
    assert [b.attention.key_value.in_features for b in branches_of(model)] == [HIDDEN, 12] * 2
    batch = batch_of(examples(model))
    expected = logits_of(model, batch)
    for name in contexts:
        changed = batch_of(examples(model))
        changed.contexts[name].ids[:, 1] = 47 - changed.contexts[name].ids[:, 1]
        assert not torch.allclose(logits_of(model, changed), expected)


def test_dynamic_weights_belong_to_their_sentence():
    """Invariant F18: sums of 1, no other sentence, one-hot picks a layer, pads are not averaged."""
    for kind in ("dynamic_cls", "dynamic_mean"):
        torch.manual_seed(0)
        pooling = build_pooling(PoolingConfig(kind=kind), EncoderShape(4, 6, 6)).double()
        layers = draw(3, 2, 5, 6)
        valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        weights = pooling.weights(layers, valid)
        assert_near(weights.sum(1), torch.ones(2, dtype=torch.float64))
        changed = layers.clone()
        changed[:, 0] += 1
        assert torch.equal(pooling(changed, valid)[1], pooling(layers, valid)[1])
        padded = layers.clone()
        padded[:, 1, 3:] = 99.0
        assert torch.equal(pooling.weights(padded, valid), weights)
        torch.nn.init.zeros_(pooling.weigh.weight)
        pooling.weigh.bias.data = torch.tensor([-100.0, 100.0, -100.0], dtype=torch.float64)
        assert_near(pooling(layers, valid), layers[1])


def test_branch_parameters_by_site():
    """Invariant F19: attention; + norm; + FFN; + second norm, at d=16, f=24 and a context of width 20."""
    attention = 16 * 16 + 16 + 2 * (HIDDEN * 16 + 16) + 16 * 16 + 16
    norm, ffn = 32, 16 * 24 + 24 + 24 * 16 + 16
    expected = [attention, attention + norm, attention + norm + ffn, attention + 2 * norm + ffn]
    assert [
        sum(p.numel() for b in branches_of(build(fused(site=site)))[:1] for p in b.parameters())
        for site in SITES
    ] == expected


@pytest.mark.parametrize("site", SITES)
def test_sites_by_hand(site):
    """F19: a post-norm encoder layer written out; the own flow's residual at ffn_norm is H and U."""
    model = build(fused(site=site))
    layer, branch = model.encoder[0], model.encoder[0].fusion.branches[0]
    tokens, other = Tokens.from_lists([[9, 9, 9]]), Tokens.from_lists([[9, 9]])
    h = draw(1, 3, 16)
    context = Memory.of(draw(1, 2, HIDDEN), other)
    a = layer.attention(h, [layer.attention.project(Memory.of(h, tokens))])
    p = branch.attention(h, [branch.attention.project(context)])
    norm_1, norm_2 = layer.attention_residual.output_norm, layer.ffn_residual.output_norm
    if site == "self":
        u = norm_1(h + a + p)
        expected = norm_2(u + layer.ffn(u))
    elif site == "self_norm":
        u = norm_1(h + a) + branch.attention_residual.output_norm(h + p)
        expected = norm_2(u + layer.ffn(u))
    else:
        u, v = norm_1(h + a), branch.attention_residual.output_norm(h + p)
        if site == "ffn":
            expected = norm_2(u + layer.ffn(u) + branch.ffn(v))
        else:
            expected = norm_2(u + layer.ffn(u)) + branch.ffn_residual.output_norm(v + branch.ffn(v))
    assert_near(layer(Memory.of(h, tokens), [context]), expected)


def test_target_side_reads_the_source_only():
    """Invariant F20: what the target's branches read does not depend on the target."""
    model = build(fused(side="target"))
    batch = batch_of(examples(model))
    seen = []
    model.contexts["prlm"].register_forward_hook(lambda *args: seen.append(args[2].states))
    model(batch)
    batch.target_input.ids.fill_(9)
    model(batch)
    assert torch.equal(seen[0], seen[1])


def test_frozen_context_is_frozen():
    """Invariant F21: no gradient, evaluation mode, equal forwards, bit-identical after training."""
    model = build(fused()).train()
    context = model.contexts["prlm"]
    assert not context.encoder.training
    assert not any(module.training for module in context.encoder.modules())
    assert context.training
    before = deepcopy(context.encoder.state_dict())
    tokens = batch_of(examples(model)).contexts["prlm"]
    assert torch.equal(context.layers(tokens), context.layers(tokens))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        logits_of(model, batch_of(examples(model))).square().mean().backward()
        optimizer.step()
    assert all(p.grad is None for p in context.encoder.parameters())
    assert not differing(context.encoder, before)


def test_frozen_dropout_is_a_choice():
    """Invariant F21: the behaviour of Park and Zhao's released code is available as a setting."""
    config = ContextConfig(encoder=checkpoint("bert"), has_frozen_dropout=True)
    context = Context(config, HuggingFaceEncoder(hugging_face("bert"))).train()
    tokens = Tokens.from_lists([[9, 10, 11]])
    assert not torch.equal(context.layers(tokens), context.layers(tokens))
    assert not any(p.requires_grad for p in context.encoder.parameters())


@pytest.mark.parametrize(
    "kind", ["bert", "electra", "distilbert", "gpt2", "llama", "xlm_roberta", "mbart", "marian", "pegasus"]
)
def test_finetuned_context_trains_the_layers_it_uses(kind):
    """Invariant F21: the second-to-last state trains every layer but the last; sinusoids stay as they are."""
    config = fused(kind=kind).config
    tuned = config.contexts["prlm"].model_copy(update={"is_frozen": False, "lr_multiplier": 0.1})
    model = build(Case(config.model_copy(update={"contexts": {"prlm": tuned}}), {"prlm": kind}))
    assert model.lr_multipliers() == {"contexts.prlm.encoder.": 0.1}
    context = model.contexts["prlm"]
    trained = {name for name, p in context.encoder.named_parameters() if p.requires_grad}
    layers = {part for name in trained for part in ("0", "1", "2") if f".{part}." in name}
    assert layers == {"0", "1"}
    fixed = [name for name, p in context.encoder.named_parameters() if not p.requires_grad]
    assert any("embed_positions" in name for name in fixed) == (kind in ("marian", "pegasus"))
    context.train()(Tokens.from_lists([[9, 10, 11]])).states.square().sum().backward()
    assert {name for name, p in context.encoder.named_parameters() if p.grad is not None} == trained


def test_direct_has_no_source_table():
    """Invariant F22: the source is the encoder's tokens, and no table of the NMT model reads it."""
    model = build("direct")
    batch = batch_of(examples(model))
    memory = model.encode(batch.sources).bank[0]
    assert memory.states.shape[:2] == batch.sources[0].ids.shape
    tables = [p for name, p in model.named_parameters() if p.shape == (VOCAB, 16)]
    assert len(tables) == 1
    assert tables[0] is model.target_embedding.table.weight
