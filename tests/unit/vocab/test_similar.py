"""S_m: what is no member of it, and what is one only once."""

import pytest

from nlgraft.vocab.methods.similar import SimilarTokens
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, WORDPIECE, Kind, Tok
from tests.tiny_vocabularies import greedy_vocabulary


def similar(tok, old):
    return [(old.surfaces[member], int(relation)) for member, relation in SimilarTokens(old).of(tok)]


@pytest.mark.parametrize(
    ("old", "new", "members"),
    [
        (["an", "##an", "##x"], "##anxan", [("##an", 0), ("##x", 2)]),  # one that occurs twice counts once
        (["er", "##e", "##r"], "##er", [("##e", 0), ("##r", 1)]),  # nor does the other boundary variant
    ],
)
def test_members_by_hand(old, new, members):
    assert similar(WORDPIECE.canonical(new), greedy_vocabulary(old)) == members


def test_special_byte_and_unused_entries_never_count():
    kinds = [Kind.SPECIAL, Kind.UNUSED, Kind.NORMAL, Kind.NORMAL]
    old = greedy_vocabulary(["[abc]", "abc", "▁", "▁ab"], SENTENCEPIECE, kinds=kinds)
    assert similar(Tok(b"a", True), old) == [("▁ab", 3)]
    assert similar(Tok(b"", True), old) == similar(Tok(b"a", True, None, Kind.SPECIAL), old) == []
