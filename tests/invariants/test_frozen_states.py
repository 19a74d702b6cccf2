"""Invariant R4: states of a frozen encoder are a pure function of the sentence."""

import json
import random
import resource
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.context_config import ContextConfig
from nlgraft.nn.contextual import Context
from nlgraft.nn.frozen_states import FrozenStates, write_frozen_states
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.pooling import EncoderShape, LayerStates
from tests.tensors import assert_near
from tests.tiny_models import VOCAB, batch_of, build, checkpoint, examples, hugging_face, logits_of

POOLINGS = [{"kind": "index", "index": -2}, {"kind": "output"}, {"kind": "scalar_mix"}]
every_kind = pytest.mark.parametrize("kind", ["bert", "gpt2", "mbart"])
every_pooling = pytest.mark.parametrize("pooling", POOLINGS, ids=lambda pooling: pooling["kind"])


def make_context(kind, pooling):
    torch.manual_seed(0)
    config = ContextConfig(encoder=checkpoint(kind), pooling=pooling)
    return Context(config, HuggingFaceEncoder(hugging_face(kind))).eval()


def sentences(count=12):
    draw = random.Random(0)
    return [[4, *(draw.randrange(8, VOCAB) for _ in range(draw.randrange(9))), 5] for _ in range(count)]


@every_kind
@every_pooling
def test_states_equal_live_ones(kind, pooling, tmp_path):
    """Checkpoints of transformers: fp32 within 1e-6 of their size, fp16 within 1e-3."""
    context, texts = make_context(kind, pooling), sentences()
    for precision, tolerance in (("fp32", 1e-6), ("fp16", 1e-3)):
        path = tmp_path / precision
        write_frozen_states(path, context, texts, precision=precision, batch_tokens=24)
        states = FrozenStates(path)
        for row, text in enumerate(texts):
            live = context.layers(Tokens.from_lists([text]))
            stored = states.tokens([row]).layers
            assert stored.dtype == torch.float32
            torch.testing.assert_close(stored, live, rtol=tolerance, atol=tolerance * float(live.abs().max()))


@every_kind
@every_pooling
def test_bf16_states_are_those_of_a_bf16_training(kind, pooling, tmp_path):
    """Bit for bit what autocast gives in the same batch, in half the bytes, readable by safetensors."""
    context, texts = make_context(kind, pooling), sentences()
    for precision in ("bf16", "fp32"):
        write_frozen_states(tmp_path / precision, context, texts, precision=precision, batch_tokens=1)
    states = FrozenStates(tmp_path / "bf16")
    for row, text in enumerate(texts):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            live = context.layers(Tokens.from_lists([text]))
        stored = states.tokens([row]).layers
        assert stored.dtype == torch.float32
        assert torch.equal(stored, live.bfloat16().float())
    whole = FrozenStates(tmp_path / "fp32").states
    assert 2 * states.states.nbytes == whole.nbytes
    saved = (tmp_path / "fp32").stat().st_size - (tmp_path / "bf16").stat().st_size
    assert abs(saved - whole.nbytes // 2) <= 8  # headers are padded
    stored_states = safetensors.torch.load_file(tmp_path / "bf16")["states"]
    assert stored_states.dtype == torch.bfloat16
    assert torch.equal(
        stored_states[: len(texts[0])].float().transpose(0, 1), states.tokens([0]).layers[:, 0]
    )


class OneMap(nn.Module):
    """An encoder whose rounding errors can be bounded by hand: a table, and one linear map behind it."""

    vocab_size, shape = VOCAB, EncoderShape(2, 64, 48)

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 64)
        self.map = nn.Linear(64, 48, bias=False)

    def forward(self, tokens):
        states = self.table(tokens.ids)
        return LayerStates([states, self.map(states)], self.map(states))


@pytest.mark.parametrize("index", [0, -1])
def test_the_error_of_bf16_states_is_that_of_its_roundings(index, tmp_path):
    """Of 8 digits, so each rounding changes a number by at most a factor of 1 ± 2^-8.

    A state of the table is rounded once; a sum of products has both factors rounded, is added up in fp32
    (a factor of 1 ± 2^-24 for each of 64 terms) and rounded, so it is off by at most ((1 + 2^-8)^3 (1 +
    2^-24)^64 - 1) times the sum of the products' sizes.
    """
    torch.manual_seed(0)
    encoder, texts = OneMap(), sentences()
    context = Context(ContextConfig(encoder=checkpoint("bert"), pooling={"index": index}), encoder).eval()
    write_frozen_states(tmp_path / "states", context, texts, precision="bf16")
    states = FrozenStates(tmp_path / "states")
    rounded = torch.cat([states.tokens([row]).layers[0, 0] for row in range(len(texts))])
    x = encoder.table.weight.detach().double()[[i for text in texts for i in text]]
    weight, unit = encoder.map.weight.detach().double(), 2.0**-8
    exact, bound = x, unit * x.abs()
    if index:
        exact = x @ weight.T
        bound = ((1 + unit) ** 3 * (1 + 2.0**-24) ** 64 - 1) * (x.abs() @ weight.abs().T)
    error = (rounded.double() - exact).abs()
    assert bool((error <= bound).all())
    # More than a rounding at the end: the map is computed in bf16, not only kept.
    assert bool((error > unit * exact.abs()).any()) == bool(index)


def test_states_do_not_depend_on_the_batch(tmp_path):
    """A stored row is bitwise the same in any batch; computed in another batch it differs by rounding."""
    context, texts = make_context("bert", POOLINGS[2]), sentences()
    write_frozen_states(tmp_path / "one", context, texts, batch_tokens=1)
    write_frozen_states(tmp_path / "many", context, texts, batch_tokens=1000)
    small_batches, large_batches = FrozenStates(tmp_path / "one"), FrozenStates(tmp_path / "many")
    np.testing.assert_allclose(small_batches.states, large_batches.states, rtol=0, atol=5e-6)
    order = list(range(len(texts)))
    random.Random(1).shuffle(order)
    together = large_batches.tokens(order)
    for place, row in enumerate(order):
        assert int(together.valid[place].sum()) == len(texts[row])
        alone = large_batches.tokens([row]).layers[:, 0]
        assert torch.equal(together.layers[:, place, : len(texts[row])], alone)


@pytest.mark.parametrize("family", ["prlm", "direct", "src_elmo"])
def test_models_read_stored_states_as_live_ones(family, tmp_path):
    """Logits with stored states equal those with a live encoder, for branches and for embeddings."""
    model = build(family).float()
    rows = examples(model, count=4)
    live = batch_of(rows)
    is_branch = bool(model.config.fusion.contexts)
    reader = model.contexts["prlm"] if is_branch else model.source_embedding
    texts = [row.contexts["prlm"] if is_branch else row.sources[0] for row in rows]
    write_frozen_states(tmp_path / "states", reader, texts)
    tokens = FrozenStates(tmp_path / "states").tokens(range(4))
    stored = Batch(
        live.sources if is_branch else [tokens],
        live.target_input,
        live.target_output,
        {"prlm": tokens} if is_branch else {},
    )
    with torch.no_grad():
        assert_near(logits_of(model, stored), logits_of(model, live), 1e-5)


def test_only_what_is_read_is_loaded(tmp_path):
    """Opening two gibibytes and reading ten sentences needs little memory."""
    path, num_sentences, shape = tmp_path / "states", 1 << 17, (1 << 22, 1, 256)
    offsets = np.arange(0, shape[0] + 1, 32, dtype="<i8")
    middle, end = offsets.nbytes, offsets.nbytes + 2 * shape[0] * shape[2]
    header = json.dumps(
        {
            "offsets": {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, middle]},
            "states": {"dtype": "F16", "shape": shape, "data_offsets": [middle, end]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:  # a sparse file: the states take no space on disk
        file.write(struct.pack("<Q", len(header)) + header + offsets.tobytes())
        file.truncate(8 + len(header) + end)
    assert end > 1 << 31
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    states = FrozenStates(path)
    assert len(states) == num_sentences
    assert states.tokens(range(0, len(states), num_sentences // 10)).layers.shape == (1, 11, 32, 256)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
