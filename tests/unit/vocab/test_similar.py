"""S_m: relations, order, cap and boundary rules."""

from __future__ import annotations

import numpy as np
import pytest

from nlgraft.basics.errors import DataError
from nlgraft.vocab.methods.similar import Relation, hyperword_relation, similar_tokens
from nlgraft.vocab.tokenizers.segmenters import GreedySegmenter
from nlgraft.vocab.tokenizers.tokens import SENTENCEPIECE, WORDPIECE, Kind, Tok
from nlgraft.vocab.tokenizers.vocabulary import make_vocabulary


def vocabulary(surfaces, marking=WORDPIECE, kinds=None):
    ids = {surface: i for i, surface in enumerate(surfaces)}
    kinds = kinds or [Kind.NORMAL] * len(surfaces)
    return make_vocabulary(surfaces, kinds, marking, GreedySegmenter(ids, marking))


def found(table, old, index=0):
    return [(old.surfaces[member], int(relation)) for member, relation in table.of(index)]


def test_precedence_is_prefix_then_suffix_then_infix():
    assert hyperword_relation(Tok(b"an", None), Tok(b"ananan", None)) is Relation.HYP_PREFIX
    assert hyperword_relation(Tok(b"an", None), Tok(b"xanxan", None)) is Relation.HYP_SUFFIX
    assert hyperword_relation(Tok(b"an", None), Tok(b"xanx", None)) is Relation.HYP_INFIX
    assert hyperword_relation(Tok(b"an", False), Tok(b"anxanx", True)) is Relation.HYP_INFIX
    assert hyperword_relation(Tok(b"an", True), Tok(b"anxan", False)) is None
    assert hyperword_relation(Tok(b"an"), Tok(b"an")) is None


def test_end_marks_are_respected():
    assert hyperword_relation(Tok(b"er", None, True), Tok(b"worker", None, True)) is Relation.HYP_SUFFIX
    assert hyperword_relation(Tok(b"er", None, True), Tok(b"worker", None, False)) is None
    assert hyperword_relation(Tok(b"er", None, False), Tok(b"worker", None, True)) is None
    assert hyperword_relation(Tok(b"er", None, False), Tok(b"workerx", None, True)) is Relation.HYP_INFIX


def test_order_and_cap():
    old = vocabulary(["a", "##b", "abxxxx", "abx", "abxx"])
    tok = WORDPIECE.canonical("ab")
    subwords = [("a", 0), ("##b", 1)]
    by_id = similar_tokens([tok], old, cap=3)
    assert found(by_id, old) == [*subwords, ("abxxxx", 3)]
    shortest = similar_tokens([tok], old, cap=3, order="shortest")
    assert found(shortest, old) == [*subwords, ("abx", 3)]
    frequent = similar_tokens([tok], old, cap=3, order="frequency", frequencies=[1, 1, 1, 2, 9])
    assert found(frequent, old) == [*subwords, ("abxx", 3)]
    assert len(similar_tokens([tok], old, cap=None).of(0)) == 5
    assert found(similar_tokens([tok], old, cap=1), old) == subwords
    with pytest.raises(DataError, match="frequency"):
        similar_tokens([tok], old, order="frequency")


def test_a_piece_that_occurs_twice_counts_once():
    old = vocabulary(["an", "##an", "##x"])
    table = similar_tokens([WORDPIECE.canonical("##anxan")], old)
    assert found(table, old) == [("##an", 0), ("##x", 2)]


def test_special_byte_and_unused_entries_never_count():
    kinds = [Kind.SPECIAL, Kind.UNUSED, Kind.NORMAL, Kind.NORMAL]
    old = vocabulary(["[abc]", "abc", "▁", "▁ab"], SENTENCEPIECE, kinds)
    table = similar_tokens([Tok(b"a", True), Tok(b"", True), Tok(b"a", True, None, Kind.SPECIAL)], old)
    assert found(table, old) == [("▁ab", 3)]
    assert table.sizes.tolist() == [1, 0, 0]


def test_the_other_boundary_variant_is_no_member():
    old = vocabulary(["er", "##e", "##r"])
    assert found(similar_tokens([WORDPIECE.canonical("##er")], old), old) == [("##e", 0), ("##r", 1)]


def test_padded_table():
    old = vocabulary(["a", "##b", "abc"])
    members, relations = similar_tokens([Tok(b"ab", True), Tok(b"zz", True), Tok(b"b", False)], old).padded()
    assert members.tolist() == [[0, 1, 2], [0, 0, 0], [2, 0, 0]]
    assert relations.tolist() == [[0, 1, 3], [6, 6, 6], [5, 6, 6]]
    assert members.dtype == np.int64
    empty, pads = similar_tokens([], old).padded()
    assert empty.shape == pads.shape == (0, 1)
