"""Invariant V40: the same vocabulary with its ids reversed."""

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.stages.run.exchange_stages import exchange_tables
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanChoices
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE
from tests.small_studies import TINY
from tests.tiny_vocabularies import greedy_vocabulary

SURFACES = [
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "▁",
    *(f"▁w{i}" for i in range(20)),
    *(f"s{i}" for i in range(15)),
]
SIZE = len(SURFACES)


def reversed_ids(tokens):
    return Tokens(SIZE - 1 - tokens.ids, tokens.valid)


@pytest.mark.parametrize("method", ["avg", "random", "fvt"])
@pytest.mark.parametrize(
    ("tying", "sides"),
    [("none", "both"), ("decoder", "decoder"), ("decoder", "encoder"), ("all", "both"), ("all", "decoder")],
)
def test_reversed_vocabulary(method, tying, sides):
    """Hidden states are identical, logits are once re-indexed; copying, ids, bias and tying all show here."""
    torch.manual_seed(0)
    options = TINY | {"dropout": 0.0}
    config = TransformerConfig(**options, tying=tying, has_output_bias=True)
    body = Seq2Seq(config, SIZE, SIZE).eval()
    with torch.no_grad():
        body.output_projection.bias.normal_()
    old, new = (greedy_vocabulary(order, SENTENCEPIECE, SURFACES[:4]) for order in (SURFACES, SURFACES[::-1]))
    plan = build_plan(old, new, method, PlanChoices(seed=1))
    assert set(plan.counts()) == {"copy", "special"}
    changed = ("encoder", "decoder") if sides == "both" else (sides,)
    model = exchange_tables(body, dict.fromkeys(changed, plan)).eval()
    source = Tokens.from_lists([[5, 9, 3], [7, 30, 31, 12, 3]])
    target = Tokens.from_lists([[2, 8, 33], [2, 6]])
    batch = Batch([source], target, target.ids)
    other_source = reversed_ids(source) if "encoder" in changed else source
    other_target = reversed_ids(target) if "decoder" in changed else target
    hidden = body(batch)
    other_hidden = model(Batch([other_source], other_target, target.ids))
    assert torch.allclose(hidden, other_hidden, atol=1e-6)
    logits = model.logits(other_hidden)
    assert torch.allclose(body.logits(hidden), logits.flip(-1) if "decoder" in changed else logits, atol=1e-6)
