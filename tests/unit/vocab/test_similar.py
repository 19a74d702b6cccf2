"""S_m: what is no member of it, and what is one only once."""

from nlgraft.vocab.methods.similar import SimilarTokens
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, WORDPIECE, Kind, Tok
from tests.tiny_vocabularies import greedy_vocabulary


def similar(tok, old):
    return [(old.surfaces[member], int(relation)) for member, relation in SimilarTokens(old).of(tok)]


def test_a_piece_that_occurs_twice_counts_once():
    old = greedy_vocabulary(["an", "##an", "##x"])
    assert similar(WORDPIECE.canonical("##anxan"), old) == [("##an", 0), ("##x", 2)]


def test_special_byte_and_unused_entries_never_count():
    kinds = [Kind.SPECIAL, Kind.UNUSED, Kind.NORMAL, Kind.NORMAL]
    old = greedy_vocabulary(["[abc]", "abc", "▁", "▁ab"], SENTENCEPIECE, kinds=kinds)
    assert similar(Tok(b"a", True), old) == [("▁ab", 3)]
    assert similar(Tok(b"", True), old) == similar(Tok(b"a", True, None, Kind.SPECIAL), old) == []


def test_the_other_boundary_variant_is_no_member():
    old = greedy_vocabulary(["er", "##e", "##r"])
    assert similar(WORDPIECE.canonical("##er"), old) == [("##e", 0), ("##r", 1)]
