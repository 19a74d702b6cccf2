"""Invariants F1 to F9: several sources, the fine encoder, parameter counts."""

import pytest
import torch

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Attention, Memory
from nlgraft.nn.batch import Tokens
from nlgraft.nn.layers import FineEncoder, FineLayer
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import NORM_EPS, TransformerConfig
from nlgraft.training.weights import carry_over
from tests.tensors import assert_near, draw
from tests.tiny_models import SIZES, VOCAB, Case, Example, batch_of, build, examples, family_config, logits_of
from trainables.multi_source.graph import NEW

both_norms = pytest.mark.parametrize("norm", ["pre", "post"])
EXACT = {"rtol": 0, "atol": 1e-9}
PLAIN = {"segments": "none", "fine_encoder": {"num_layers": 0}}


def make(family="trice", **settings):
    return build(Case(family_config(family, **{**SIZES, **settings}), {}))


def fine_parameters(**fine):
    """Parameters of the fine encoder at d=1024, f=4096 on a 12-layer coarse encoder."""
    config = TransformerConfig(
        preset="big", num_encoder_layers=12, num_sources=2, fine_encoder={"num_layers": 0, **fine}
    )
    with torch.device("meta"):
        return sum(p.numel() for p in FineEncoder(config).parameters())


def test_depth_0_joint_equals_dualbart():
    """Invariant F1."""
    trice = family_config("trice", **{**SIZES, **PLAIN, "cross_attention": "joint"})
    assert trice == family_config("dualbart", **SIZES)
    separated = make(**PLAIN)
    joint = make("dualbart")
    joint.load_state_dict(separated.state_dict())
    batch = batch_of(examples(joint))
    bank = joint.encode(batch.sources).bank
    for memory, expected in zip(separated.encode(batch.sources).bank, bank, strict=True):
        assert torch.equal(memory.states, expected.states)


def test_parameter_counts_are_the_papers():
    """Invariant F1: exact at d=1024, f=4096, biases and layer norms included."""
    assert [fine_parameters(num_layers=depth) for depth in (1, 2, 3)] == [16_796_672, 33_593_344, 50_390_016]
    assert fine_parameters(num_layers=1, cross_memory="none") == 12_596_224
    assert fine_parameters(ffn_adapter="per_layer") == 100_724_736
    assert fine_parameters(ffn_adapter="top") == 8_393_728


@pytest.mark.parametrize("cross_attention", ["joint", "separated"])
def test_one_source_without_extras_is_the_plain_model(cross_attention):
    """Invariant F2, first half (against Hugging Face: see the conversion tests)."""
    model = make(**PLAIN, cross_attention=cross_attention)
    plain = build(Case(TransformerConfig(**SIZES), {}))
    plain.load_state_dict(model.state_dict())
    batch = batch_of(examples(model, num_sources=1))
    assert_near(logits_of(model, batch), logits_of(plain, batch))


@both_norms
def test_one_source_with_a_fine_encoder_attends_to_nothing(norm):
    """Invariant F2, second half: SA + (zero CA) + FFN."""
    model = make(fine_encoder={"num_layers": 1, "norm": norm})
    layer = model.fine_encoder.layers[0]
    batch = batch_of(examples(model, num_sources=1))
    assert logits_of(model, batch).isfinite().all()
    model.fine_encoder.norm = None
    coarse = Memory.of(draw(*batch.sources[0].ids.shape, 16), batch.sources[0])
    [fine] = model.fine_encoder([coarse])
    x = layer.attend_self(coarse)
    middle = x.states if norm == "pre" else layer.cross_residual.output_norm(x.states)
    expected = layer.ffn_residual.leave(middle, layer.ffn(layer.ffn_residual.enter(middle)))
    assert_near(fine.states, expected)


@pytest.mark.parametrize("cross_attention", ["joint", "separated"])
@pytest.mark.parametrize("encoding", ["joint", "separate"])
def test_two_identical_sources_are_one(cross_attention, encoding):
    """Invariant F3."""
    model = make(**PLAIN, cross_attention=cross_attention, encoding=encoding)
    single = examples(model, num_sources=1)
    double = [Example(row.sources * 2, row.target, {}) for row in single]
    assert_near(logits_of(model, batch_of(double)), logits_of(model, batch_of(single)))


@both_norms
def test_own_encoders_with_equal_weights_are_one_encoder_per_source(norm):
    model = make(**PLAIN, encoding="own", norm=norm, num_sources=3)
    separate = make(**PLAIN, encoding="separate", norm=norm, num_sources=3)
    separate.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("further_")})
    batch = batch_of(examples(model, num_sources=3))
    assert not torch.allclose(logits_of(model, batch), logits_of(separate, batch))
    for encoder in model.further_encoders:
        encoder.load_state_dict(model.encoder.state_dict())
    for final in model.further_norms:
        final.load_state_dict(model.encoder_norm.state_dict())
    assert_near(logits_of(model, batch), logits_of(separate, batch))


def test_serial_attention_is_one_sublayer_after_the_other():
    """Junczys-Dowmunt and Grundkiewicz (2018): by hand for one layer, and its order matters."""
    model = make(**PLAIN, encoding="separate", cross_attention="serial", norm="pre")
    layer = model.decoder[0]
    tokens = Tokens.from_lists([[9, 10, 11, 3]] * 2)
    bank = [Memory.of(draw(2, 4, 16), tokens) for _ in range(2)]
    x = draw(2, 3, 16)
    query = layer.attention_residual.enter(x)
    middle = x + layer.attention(query, [layer.attention.project_states(query)], is_causal=True)
    attentions = [(layer.cross_attention, layer.cross_residual)]
    attentions += list(zip(layer.further_attentions, layer.further_residuals, strict=True))
    for (attention, connection), memory in zip(attentions, bank, strict=True):
        middle = middle + attention(connection.enter(middle), [attention.project(memory)])
    expected = middle + layer.ffn(layer.ffn_residual.enter(middle))
    assert_near(layer(x, bank, []), expected)
    assert not torch.allclose(layer(x, bank[::-1], []), expected)


@both_norms
def test_an_absent_second_source_has_no_serial_sublayer(norm):
    """The same as one source, also beside a sentence that has both."""
    model = make(**PLAIN, encoding="own", cross_attention="serial", norm=norm)
    rows = examples(model)
    alone = [Example(row.sources[:1], row.target, {}) for row in rows]
    absent = [Example([row.sources[0], []], row.target, {}) for row in rows]
    expected = logits_of(model, batch_of(alone))
    assert_near(logits_of(model, batch_of(absent)), expected)
    mixed = logits_of(model, batch_of([rows[0], *absent[1:]]))
    assert_near(mixed[1:], expected[1:])
    assert not torch.allclose(mixed[0], expected[0])


@both_norms
def test_an_absent_first_source_has_no_serial_sublayer(norm):
    """The second source's sublayer alone, by hand for one layer."""
    layer = make(**PLAIN, encoding="separate", cross_attention="serial", norm=norm).decoder[0]
    states = draw(2, 4, 16)
    present = torch.ones(2, 4, dtype=torch.bool)
    absent, second = Memory(states, ~present, True, True), Memory(states.flip(0), present, False, False)
    x = draw(2, 3, 16)
    query = layer.attention_residual.enter(x)
    attended = layer.attention(query, [layer.attention.project_states(query)], is_causal=True)
    middle = layer.attention_residual.leave(x, attended)
    attention, connection = layer.further_attentions[0], layer.further_residuals[0]
    middle = connection.leave(middle, attention(connection.enter(middle), [attention.project(second)]))
    expected = layer.ffn_residual.leave(middle, layer.ffn(layer.ffn_residual.enter(middle)))
    actual = layer(x, [absent, second], [])
    assert_near(actual, expected)


@pytest.mark.parametrize("segments", ["none", "halves", "interleaved", "learned"])
def test_order_of_sources_matters_only_with_segments(segments):
    """Invariant F4."""
    model = make(segments=segments, fine_encoder={"num_layers": 2})
    rows = examples(model)
    swapped = [Example(row.sources[::-1], row.target, {}) for row in rows]
    there, back = logits_of(model, batch_of(rows)), logits_of(model, batch_of(swapped))
    assert torch.allclose(there, back, **EXACT) == (segments == "none")


def test_positions_restart_for_every_source():
    """Invariant F6: two identical sources enter the encoder as the same vectors, segments aside."""
    model = make(segments="none", source_positions="learned")
    inputs = []
    model.encoder[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0].states))
    source = Tokens.from_lists([[9, 10, 11, 3]])
    model.encode([source, source])
    assert torch.equal(inputs[0][:, :4], inputs[0][:, 4:])


def eager_attention(query, key, value, mask=None, dropout_p=0.0, is_causal=False):
    """The textbook's attention: softmax over minus infinities gives NaN where all is masked."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("is_eager", [False, True])
def test_an_absent_source_counts_for_nothing(is_eager, monkeypatch):
    """Invariant F7: separated cross-attention with source 2 masked equals one source; never NaN."""
    if is_eager:
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", eager_attention)
    model = make(**PLAIN)
    rows = examples(model, num_sources=1)
    absent = [Example([row.sources[0], []], row.target, {}) for row in rows]
    with_room = batch_of(absent)
    ids = torch.full((3, 4), 9)
    with_room.sources[1] = Tokens(ids, torch.zeros_like(ids, dtype=torch.bool))
    expected = logits_of(model, batch_of(rows))
    assert_near(logits_of(model, with_room), expected)
    assert_near(logits_of(model, batch_of(absent)), expected)
    nothing = batch_of([Example([[], []], row.target, {}) for row in rows])
    nothing.sources[:] = [with_room.sources[1]] * 2
    assert logits_of(model, nothing).isfinite().all()


def test_attention_over_nothing_is_exactly_zero():
    """Invariant F7: the output bias is silenced too."""
    attention = Attention(8, 2)
    torch.nn.init.ones_(attention.output.bias)
    valid = torch.tensor([[True, False], [False, False]])
    memory = Memory(torch.randn(2, 2, 8), valid, has_padding=True, has_absent=True)
    result = attention(torch.randn(2, 3, 8), [attention.project(memory)])
    assert result[1].abs().max() == 0
    assert result[0].abs().min() > 0


def normed(states, times):
    """The norm of an untrained layer, so many times."""
    for _ in range(times):
        states = torch.nn.functional.layer_norm(states, states.shape[-1:], eps=NORM_EPS)
    return states


@pytest.mark.parametrize(
    ("norm", "fine", "num_norms"),
    [
        ("pre", {"num_layers": 2}, 0),
        ("pre", {"num_layers": 2, "ffn_adapter": "top"}, 0),
        ("pre", {"num_layers": 2, "ffn_adapter": "per_layer"}, 0),
        ("post", {"num_layers": 1}, 3),
        ("post", {"num_layers": 2}, 6),
        ("post", {"num_layers": 2, "cross_memory": "coarse"}, 6),
        ("post", {"num_layers": 2, "cross_memory": "none"}, 4),
        ("post", {"num_layers": 2, "ffn_adapter": "top"}, 7),
        ("post", {"num_layers": 0, "ffn_adapter": "top"}, 1),
    ],
)
def test_a_fine_encoder_with_zero_initial_weights_begins_as_its_norms(norm, fine, num_norms):
    """Where f is zero, x + f(LN(x)) is x, up to a final norm, and LN(x + f(x)) is LN(x)."""
    fine = {"norm": norm, "init": "zero", **fine}
    config = TransformerConfig(**SIZES, norm=norm, num_sources=2, fine_encoder=fine)
    model = FineEncoder(config).double().eval()
    model.norm = None
    states = 3 * draw(2, 2, 5, 16) + 1
    valid = torch.ones(2, 5, dtype=torch.bool)
    coarse = [Memory(source_states, valid, False, False) for source_states in states]
    for before, after in zip(coarse, model(coarse), strict=True):
        assert_near(after.states, normed(before.states, num_norms))
        assert torch.allclose(after.states, before.states, atol=0.1) == (num_norms == 0)


def carried(plain, norm, fine_norm):
    """A TRICE as its training begins, with the weights of a model without fine encoder."""
    fine = {"num_layers": 2, "init": "zero", "norm": fine_norm}
    settings = {**SIZES, "segments": "none", "norm": norm, "fine_encoder": fine}
    model = Seq2Seq(family_config("trice", **settings), VOCAB, VOCAB).double().eval()
    carry_over(model, plain.state_dict(), fresh=[NEW])
    return model


@both_norms
@pytest.mark.parametrize(("fine_norm", "num_norms"), [("pre", 1), ("post", 6)])
def test_what_a_carried_model_says_before_its_first_step(norm, fine_norm, num_norms, monkeypatch):
    """The model before, of whose encoder's output the fine encoder takes the norm: gain and bias are lost."""
    plain = make(**PLAIN, norm=norm)
    batch = batch_of(examples(plain))
    before, after = logits_of(plain, batch), logits_of(carried(plain, norm, fine_norm), batch)
    assert not torch.allclose(after, before, atol=1e-2), "a trained gain and bias of the last norm count"

    def norms(coarse):
        return [memory.with_states(normed(memory.states, num_norms)) for memory in coarse]

    with monkeypatch.context() as patched:
        patched.setattr(plain.fine_encoder, "forward", norms)
        assert_near(after, logits_of(plain, batch))


@pytest.mark.parametrize("cross_memory", ["same_layer", "coarse"])
def test_what_the_fine_encoder_sees_of_other_sources(cross_memory):
    """Invariant F8: only "same_layer" sees how a neighbour changed in the layer before."""
    config = TransformerConfig(**SIZES, num_sources=2, fine_encoder={"cross_memory": cross_memory})
    torch.manual_seed(0)
    layer = FineLayer(config.fine_encoder, 16, 2, 24).double().eval()
    tokens = Tokens.from_lists([[9, 9, 9]])
    coarse = [Memory.of(draw(1, 3, 16), tokens) for _ in range(2)]
    changed = [coarse[0], coarse[1].with_states(coarse[1].states + 1)]
    before, after = layer(coarse, coarse)[0].states, layer(changed, coarse)[0].states
    assert torch.equal(before, after) == (cross_memory == "coarse")


@pytest.mark.parametrize("cross_memory", ["same_layer", "none"])
def test_gradient_flows_between_sources_only_by_cross_attention(cross_memory):
    """Invariant F9."""
    model = make(
        encoding="separate", segments="none", fine_encoder={"num_layers": 1, "cross_memory": cross_memory}
    )
    batch = batch_of(examples(model))
    inputs = []

    def keep(_, args):
        args[0].states.retain_grad()
        inputs.append(args[0].states)

    model.encoder[0].register_forward_pre_hook(keep)
    model.encode(batch.sources).bank[0].states.square().sum().backward()
    gradient = inputs[1].grad
    reaches = gradient is not None and bool(gradient.abs().max() > 0)
    assert reaches == (cross_memory == "same_layer")


def test_learned_segments_begin_with_the_constant_ones_and_change():
    learned, halves = make(segments="learned"), make(segments="halves")
    table = learned.source_input.segments
    assert torch.equal(table, halves.source_input.segments)
    assert set(learned.state_dict()) - set(halves.state_dict()) == {"source_input.segments"}
    logits_of(learned, batch_of(examples(learned))).sum().backward()
    assert (table.grad.abs().sum(1) > 0).all()


def test_segments_by_hand():
    """The released code's segment 0 is [0.., 1..]; the paper's k=1 alternates sin and cos."""
    halves = make(segments="halves").source_input.segments
    assert halves[0].tolist() == [0.0] * 8 + [1.0] * 8
    interleaved = make(segments="interleaved").source_input.segments
    angle = torch.tensor(1000.0, dtype=torch.float64)
    assert_near(interleaved[0, 0].double(), angle.sin(), 1e-7)
    assert_near(interleaved[1, 1].double(), (2 * angle).cos(), 1e-7)
    frequency = 10000 ** (-2 / 16)
    assert_near(interleaved[0, 2].double(), (angle * frequency).sin(), 1e-7)


def test_too_many_sources_are_refused():
    model = Seq2Seq(TransformerConfig(**SIZES), VOCAB, VOCAB)
    tokens = Tokens.from_lists([[9, 3]])
    with pytest.raises(ContractError, match="2 sources, the model takes 1 to 1"):
        model.encode([tokens, tokens])
