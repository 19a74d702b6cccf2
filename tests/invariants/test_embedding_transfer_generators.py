"""Invariants V1 to V6: generators, by hand. E(a)=[1,0], E(b)=[0,1], S={a,b}."""

from __future__ import annotations

import math

import pytest
import torch

from nlgraft.vocab.methods.similar import Relation
from trainables.embedding_transfer.generators import EmbeddingGenerator

TABLE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
MEMBERS = torch.tensor([[0, 1]])
PREFIX_SUFFIX = torch.tensor([[Relation.SUB_PREFIX, Relation.SUB_SUFFIX]], dtype=torch.int64)
SUFFIX_PREFIX = PREFIX_SUFFIX.flip(1)
LN3 = torch.tensor([math.log(3), 0.0])


def generator(kind, weight=None, **options):
    made = EmbeddingGenerator(kind, 2, **options)
    if weight is not None:
        made.weight.data.copy_(weight)
    return made


def rows(made, members=MEMBERS, relations=PREFIX_SUFFIX, table=TABLE):
    return made(table, members, relations)


def test_average():
    """Invariant V1."""
    assert rows(generator("avg")).tolist() == [[0.5, 0.5]]


def test_attention_weighs_by_similarity_to_its_vector():
    """Invariant V2: softmax of [ln 3, 0] is [.75, .25]; a further 1/|S| only with scale inv_size."""
    assert rows(generator("att", LN3))[0].tolist() == pytest.approx([0.75, 0.25])
    literal = generator("att", LN3, scale="inv_size")
    assert rows(literal)[0].tolist() == pytest.approx([0.375, 0.125])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
def test_zero_weights_are_the_average_exactly(size):
    """Invariant V3: with W=0, ATT and PATT equal AVG bit for bit; the literal scale divides it by |S|."""
    torch.manual_seed(0)
    table = torch.randn(30, 8)
    members = torch.randint(0, 30, (20, size))
    relations = torch.randint(0, 6, (20, size))
    average = EmbeddingGenerator("avg", 8)(table, members, relations)
    for kind in ("att", "patt"):
        assert torch.equal(EmbeddingGenerator(kind, 8)(table, members, relations), average)
        literal = EmbeddingGenerator(kind, 8, scale="inv_size")(table, members, relations)
        assert torch.allclose(literal, average / size)
    assert torch.equal(EmbeddingGenerator("avg", 8, scale="inv_size")(table, members, relations), average)


def test_each_relation_has_its_own_row():
    """V4: only the prefix row is ln 3, so `a` counts three times as prefix and no more as suffix."""
    weight = torch.zeros(6, 2)
    weight[Relation.SUB_PREFIX] = LN3
    made = generator("patt", weight)
    assert rows(made)[0].tolist() == pytest.approx([0.75, 0.25])
    assert rows(made, relations=SUFFIX_PREFIX)[0].tolist() == pytest.approx([0.5, 0.5])


def test_six_equal_rows_are_attention():
    """Invariant V4, second half."""
    torch.manual_seed(1)
    table, weight = torch.randn(30, 8), torch.randn(8)
    members, relations = torch.randint(0, 30, (50, 5)), torch.randint(0, 7, (50, 5))
    attention = EmbeddingGenerator("att", 8)
    attention.weight.data.copy_(weight)
    positional = EmbeddingGenerator("patt", 8)
    positional.weight.data.copy_(weight.expand(6, 8))
    assert torch.allclose(
        attention(table, members, relations), positional(table, members, relations), atol=1e-6
    )


@pytest.mark.parametrize("kind", ["avg", "att", "patt"])
def test_padded_slots_have_no_influence(kind):
    """Invariant V5: E(pad)=[100,100] in padded slots changes nothing, gradients included."""
    torch.manual_seed(2)
    made = EmbeddingGenerator(kind, 2, init="normal")
    padded_members = torch.tensor([[0, 1, 2, 2]])
    pad = int(Relation.PAD)
    padded_relations = torch.tensor([[0, 1, pad, pad]])
    assert torch.allclose(rows(made), rows(made, padded_members, padded_relations))
    if made.weight is not None:
        rows(made).sum().backward()
        without = made.weight.grad.clone()
        made.weight.grad = None
        rows(made, padded_members, padded_relations).sum().backward()
        assert torch.allclose(made.weight.grad, without)


@pytest.mark.parametrize("kind", ["avg", "att", "patt"])
def test_a_single_similar_token_gives_its_row_exactly(kind):
    """Invariant V6: the authors' code gives the unknown token's row instead."""
    made = EmbeddingGenerator(kind, 2, init="normal")
    row = made(TABLE, torch.tensor([[1, 0]]), torch.tensor([[3, int(Relation.PAD)]]))
    assert torch.equal(row, TABLE[1:2])


@pytest.mark.parametrize("kind", ["avg", "att", "patt"])
def test_no_similar_token_gives_zero_and_no_nan(kind):
    """Invariant V13 in the generator: an empty set is handled by the plan's fallback, never by NaN."""
    made = EmbeddingGenerator(kind, 2, init="normal")
    pad = int(Relation.PAD)
    empty = made(TABLE, torch.tensor([[0, 0], [0, 1]]), torch.tensor([[pad, pad], [0, 1]]))
    assert empty[0].tolist() == [0, 0]
    empty.sum().backward() if made.weight is not None else None
    assert made.weight is None or torch.isfinite(made.weight.grad).all()


@pytest.mark.parametrize(("kind", "expected"), [("avg", 0), ("att", 768), ("patt", 4608)])
def test_number_of_parameters(kind, expected):
    """Invariant V7, first half: 0, d and 6d parameters; 4,608 at d=768."""
    assert sum(p.numel() for p in EmbeddingGenerator(kind, 768).parameters()) == expected
