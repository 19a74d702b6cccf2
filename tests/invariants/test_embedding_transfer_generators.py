"""Invariants V1 to V6: generators, by hand. E(a)=[1,0], E(b)=[0,1], S={a,b}."""

import math

import pytest
import torch

from nlgraft.vocab.methods.similar import Relation
from trainables.embedding_transfer.generators import EmbeddingGenerator, combine

TABLE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
MEMBERS = torch.tensor([[0, 1]])
PREFIX_SUFFIX = torch.tensor([[Relation.SUB_PREFIX, Relation.SUB_SUFFIX]], dtype=torch.int64)
PAD = int(Relation.PAD)
LN3 = torch.tensor([math.log(3), 0.0])


def generated(made, members=MEMBERS, relations=PREFIX_SUFFIX, table=TABLE):
    return combine(made.weights(table[members], relations), table[members])


def generator(kind, weight, **options):
    made = EmbeddingGenerator(kind, weight.shape[-1], **options)
    made.weight.data.copy_(weight)
    return made


def drawn(kind):
    torch.manual_seed(2)
    return generator(kind, torch.randn(EmbeddingGenerator(kind, 2).weight.shape))


def test_attention_weighs_by_similarity_to_its_vector():
    """Invariant V2: softmax of [ln 3, 0] is [.75, .25]; no further 1/|S|."""
    assert generated(generator("att", LN3))[0].tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("kind", ["att", "patt"])
def test_zero_weights_are_the_average_exactly(kind, size):
    """Invariant V3: with W=0, ATT and PATT are AVG bit for bit."""
    torch.manual_seed(0)
    table = torch.randn(30, 8)
    lookup = (torch.randint(0, 30, (20, size)), torch.randint(0, 6, (20, size)), table)
    average = table[lookup[0]].mean(1)
    made = EmbeddingGenerator(kind, 8)
    assert torch.equal(made.weights(table[lookup[0]], lookup[1]), torch.ones(20, size) / size)
    assert torch.allclose(generated(made, *lookup), average, atol=1e-6)


def test_each_relation_has_its_own_row():
    """V4: only the prefix row is ln 3, so `a` counts three times as prefix and no more as suffix."""
    weight = torch.zeros(6, 2)
    weight[Relation.SUB_PREFIX] = LN3
    made = generator("patt", weight)
    assert generated(made)[0].tolist() == pytest.approx([0.75, 0.25])
    assert generated(made, relations=PREFIX_SUFFIX.flip(1))[0].tolist() == pytest.approx([0.5, 0.5])


def test_six_equal_rows_are_attention():
    """Invariant V4, second half."""
    torch.manual_seed(1)
    table, weight = torch.randn(30, 8), torch.randn(8)
    lookup = (torch.randint(0, 30, (50, 5)), torch.randint(0, 7, (50, 5)), table)
    attention, positional = generator("att", weight), generator("patt", weight.expand(6, 8))
    assert torch.allclose(generated(attention, *lookup), generated(positional, *lookup), atol=1e-6)


@pytest.mark.parametrize("kind", ["att", "patt"])
def test_padded_slots_have_no_influence(kind):
    """Invariant V5: E(pad)=[100,100] in padded slots changes nothing, gradients included."""
    rows, gradients = [], []
    for members, relations in (
        (MEMBERS, PREFIX_SUFFIX),
        (torch.tensor([[0, 1, 2, 2]]), torch.tensor([[0, 1, PAD, PAD]])),
    ):
        made = drawn(kind)
        rows.append(generated(made, members, relations))
        rows[-1].sum().backward()
        gradients.append(made.weight.grad)
    assert torch.allclose(*rows)
    assert torch.allclose(*gradients)


@pytest.mark.parametrize("kind", ["att", "patt"])
def test_a_single_similar_token_gives_its_row_exactly(kind):
    """Invariant V6: the authors' code gives the unknown token's row instead."""
    row = generated(drawn(kind), torch.tensor([[1, 0]]), torch.tensor([[3, PAD]]))
    assert torch.equal(row, TABLE[1:2])


@pytest.mark.parametrize("kind", ["att", "patt"])
def test_no_similar_token_gives_zero_and_no_nan(kind):
    """Invariant V13 in the generator: an empty set is handled by the plan's fallback, never by NaN."""
    made = drawn(kind)
    empty = generated(made, torch.tensor([[0, 0], [0, 1]]), torch.tensor([[PAD, PAD], [0, 1]]))
    assert empty[0].tolist() == [0, 0]
    empty.sum().backward()
    assert torch.isfinite(made.weight.grad).all()


@pytest.mark.parametrize(("kind", "expected"), [("att", 768), ("patt", 4608)])
def test_number_of_parameters(kind, expected):
    """Invariant V7, first half: d and 6d parameters; 4,608 at d=768."""
    assert sum(p.numel() for p in EmbeddingGenerator(kind, 768).parameters()) == expected
