"""Attention, banks and the pieces around them, by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Attention, Memory, concatenate, split
from nlgraft.nn.batch import Batch, Tokens, truncate_middle
from nlgraft.nn.embedding import LearnedPositions, SinusoidalPositions, sinusoids
from nlgraft.nn.language_models import UniLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import LlamaConfig, TransformerConfig
from nlgraft.nn.transformers_lms import fresh_llama
from tests.tensors import assert_near
from tests.tiny_models import UNI


def identity_attention(dim=2, heads=1):
    """Queries, keys, values and output are the inputs themselves."""
    attention = Attention(dim, heads).double()
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(dim))
        attention.key_value.weight.copy_(torch.cat([torch.eye(dim)] * 2))
        attention.output.weight.copy_(torch.eye(dim))
    return attention


def memory_of(rows, valid=None):
    states = torch.tensor(rows, dtype=torch.float64)
    valid = torch.ones(states.shape[:2], dtype=torch.bool) if valid is None else torch.tensor(valid)
    return Memory(states, valid, not bool(valid.all()), not bool(valid.any(1).all()))


def test_one_head_by_hand():
    attention = identity_attention()
    memory = memory_of([[[1.0, 0.0], [0.0, 1.0]]])
    query = torch.tensor([[[math.sqrt(2) * math.log(3), 0.0]]], dtype=torch.float64)
    result = attention(query, [attention.project(memory)])
    assert_near(result[0, 0], torch.tensor([0.75, 0.25], dtype=torch.float64), 1e-12)


def test_separated_is_the_mean_over_present_memories():
    attention = identity_attention()
    torch.nn.init.constant_(attention.output.bias, 0.5)
    bank = [
        memory_of([[[1.0, 0.0]], [[1.0, 0.0]]]),
        memory_of([[[0.0, 4.0]], [[0.0, 4.0]]], [[True], [False]]),
    ]
    query = torch.zeros(2, 1, 2, dtype=torch.float64)
    result = attention(query, [attention.project(memory) for memory in bank])
    assert result[:, 0].tolist() == [[1.0, 2.5], [1.5, 0.5]]


def test_open_slot_can_always_be_attended_to():
    attention = Attention(4, 2, has_open_slot=True).double()
    nothing = torch.zeros(1, 1, 1, 3, dtype=torch.bool)
    memory = attention.project_states(torch.randn(1, 3, 4, dtype=torch.float64), nothing)
    assert memory.mask.tolist() == [[[[False, False, False, True]]]]
    result = attention(torch.randn(1, 2, 4, dtype=torch.float64), [memory])
    expected = attention.output(attention.open_slot[4:])
    assert_near(result, expected.expand(1, 2, 4), 1e-12)


def test_banks_are_put_together_and_taken_apart():
    bank = [
        memory_of([[[1.0]], [[2.0]]]),
        memory_of([[[3.0], [4.0]], [[5.0], [6.0]]], [[True, True], [False, False]]),
    ]
    joint = concatenate(bank)
    assert joint.states[..., 0].tolist() == [[1, 3, 4], [2, 5, 6]]
    assert joint.mask[:, 0, 0].tolist() == [[True, True, True], [True, False, False]]
    assert joint.present is None
    parts = split(joint, bank)
    assert [part.states[..., 0].tolist() for part in parts] == [[[1], [2]], [[3, 4], [5, 6]]]
    assert parts[1].present.tolist() == [True, False]
    assert concatenate(bank[:1]) is bank[0]


def translated(tokens):
    sizes = {"d_model": 16, "ffn_dim": 16, "num_heads": 2, "dropout": 0.0}
    return Seq2Seq(TransformerConfig(preset="tiny", **sizes), 12, 12)(Batch([tokens], tokens, tokens.ids))


def continued(tokens):
    llama = fresh_llama(LlamaConfig(d_model=16, num_heads=2), 12, end_id=1, max_tokens=9, seed=1)
    return llama(tokens.ids)


@pytest.mark.parametrize("compute", [translated, continued, lambda tokens: UniLM(UNI)(tokens).output])
def test_flash_kernels_can_be_chosen_where_nothing_is_padded(compute, monkeypatch):
    """They take no mask on a GPU; on a CPU, where they take one, they have to be there."""
    attend, masks = F.scaled_dot_product_attention, []

    def noted(query, key, value, attn_mask=None, **options):
        masks.append(attn_mask)
        return attend(query, key, value, attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        compute(Tokens.from_lists([[4, 5, 6], [7, 8, 9]])).sum().backward()
    assert len(masks) >= 2
    assert masks == [None] * len(masks)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("halves", [math.sin(3), math.sin(3e-4), math.cos(3), math.cos(3e-4)]),
        ("interleaved", [math.sin(3), math.cos(3), math.sin(3e-2), math.cos(3e-2)]),
        ("marian", [math.sin(3), math.sin(3e-2), math.cos(3), math.cos(3e-2)]),
    ],
)
def test_sinusoids_by_hand(layout, expected):
    """Width 4: frequencies 1 and 1/10000 (halves) or 1 and 1/100."""
    assert sinusoids(torch.tensor([3]), 4, layout)[0].tolist() == pytest.approx(expected, abs=1e-7)


def test_sinusoids_grow_as_needed():
    positions = SinusoidalPositions(4, "halves", num_positions=2)
    expected = sinusoids(torch.arange(50), 4, "halves")
    assert torch.equal(positions(0, 2), expected[:2])
    assert torch.equal(positions(40, 10), expected[40:])
    assert not positions.state_dict()


def test_learned_positions_end_somewhere():
    positions = LearnedPositions(4, 6)
    assert torch.equal(positions(2, 3), positions.table[2:5])
    with pytest.raises(ContractError, match="7 tokens with learned positions for 6"):
        positions(3, 4)


def test_long_inputs_keep_head_and_tail():
    tokens = Tokens.from_lists([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3], [1, 2, 3, 4, 5, 6]])
    cut = truncate_middle(tokens, 5)
    assert [ids[v].tolist() for ids, v in zip(cut.ids, cut.valid, strict=True)] == [
        [1, 2, 3, 6, 7],
        [1, 2, 3],
        [1, 2, 3, 5, 6],
    ]
    assert truncate_middle(tokens, 7) is tokens
