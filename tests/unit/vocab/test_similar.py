"""S_m: relations, order, cap and boundary rules."""

from __future__ import annotations

from nlgraft.vocab.methods.similar import Relation, SimilarTokens, hyperword_relation
from nlgraft.vocab.tokenizers.segmenters import GreedySegmenter
from nlgraft.vocab.tokenizers.tokens import SENTENCEPIECE, WORDPIECE, Kind, Tok
from nlgraft.vocab.tokenizers.vocabulary import make_vocabulary


def vocabulary(surfaces, marking=WORDPIECE, kinds=None):
    ids = {surface: i for i, surface in enumerate(surfaces)}
    kinds = kinds or [Kind.NORMAL] * len(surfaces)
    return make_vocabulary(surfaces, kinds, marking, GreedySegmenter(ids, marking))


def similar(tok, old, **options):
    return [
        (old.surfaces[member], int(relation)) for member, relation in SimilarTokens(old, **options).of(tok)
    ]


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
    assert similar(tok, old, cap=3) == [*subwords, ("abxxxx", 3)]
    assert len(similar(tok, old, cap=None)) == 5
    assert similar(tok, old, cap=1) == subwords


def test_a_piece_that_occurs_twice_counts_once():
    old = vocabulary(["an", "##an", "##x"])
    assert similar(WORDPIECE.canonical("##anxan"), old) == [("##an", 0), ("##x", 2)]


def test_special_byte_and_unused_entries_never_count():
    kinds = [Kind.SPECIAL, Kind.UNUSED, Kind.NORMAL, Kind.NORMAL]
    old = vocabulary(["[abc]", "abc", "▁", "▁ab"], SENTENCEPIECE, kinds)
    assert similar(Tok(b"a", True), old) == [("▁ab", 3)]
    assert similar(Tok(b"", True), old) == similar(Tok(b"a", True, None, Kind.SPECIAL), old) == []


def test_the_other_boundary_variant_is_no_member():
    old = vocabulary(["er", "##e", "##r"])
    assert similar(WORDPIECE.canonical("##er"), old) == [("##e", 0), ("##r", 1)]
