"""Canonical tokens: what each tokenizer's marks mean, and cutting and joining them."""

import pytest

from nlgraft.vocab.tokenizers.vocabulary import (
    BYTE_LEVEL,
    BYTE_LEVEL_END_OF_WORD,
    END_OF_WORD,
    SENTENCEPIECE,
    SENTENCEPIECE_SUFFIX,
    SUBWORD_NMT,
    WORDPIECE,
    Kind,
    Tok,
    byte_alphabet,
    character_boundaries,
    merge_toks,
    split_tok,
)


@pytest.mark.parametrize(
    ("marking", "surface", "core", "starts_word", "ends_word"),
    [
        (SENTENCEPIECE, "▁the", b"the", True, None),
        (SENTENCEPIECE, "the", b"the", False, None),
        (SENTENCEPIECE, "▁", b"", True, None),
        (SENTENCEPIECE, "▁a▁b", b"a b", True, None),
        (SENTENCEPIECE_SUFFIX, "the▁", b"the", None, True),
        (WORDPIECE, "the", b"the", True, None),
        (WORDPIECE, "##the", b"the", False, None),
        (WORDPIECE, "##", b"##", True, None),
        (BYTE_LEVEL, "Ġthe", b"the", True, None),
        (BYTE_LEVEL, "Ã©", "é".encode(), False, None),
        (BYTE_LEVEL, "Ã", b"\xc3", False, None),
        (SUBWORD_NMT, "the@@", b"the", None, False),
        (SUBWORD_NMT, "the", b"the", None, True),
        (SUBWORD_NMT, "@@", b"@@", None, True),
        (END_OF_WORD, "the</w>", b"the", None, True),
        (END_OF_WORD, "the", b"the", None, False),
        (BYTE_LEVEL_END_OF_WORD, "Ã©</w>", "é".encode(), None, True),
    ],
)
def test_marks_are_read_and_written_back(marking, surface, core, starts_word, ends_word):
    tok = marking.canonical(surface)
    assert tok == Tok(core, starts_word, ends_word)
    assert marking.surface(tok) == surface


def test_byte_and_special_tokens_keep_their_surface():
    assert SENTENCEPIECE.canonical("<0xE2>", Kind.BYTE) == Tok(b"\xe2", None, None, Kind.BYTE)
    assert SENTENCEPIECE.surface(Tok(b"\xe2", None, None, Kind.BYTE)) == "<0xE2>"
    special = WORDPIECE.canonical("[CLS]", Kind.SPECIAL)
    assert special.kind is Kind.SPECIAL
    assert WORDPIECE.surface(special) == "[CLS]"


def test_byte_alphabet_is_one_to_one_and_gpt2s():
    table = byte_alphabet()
    assert len(set(table.values())) == 256
    assert table[ord(" ")] == "Ġ"
    assert table[ord("\n")] == "Ċ"
    assert table[ord("a")] == "a"


def test_half_a_character_cannot_be_spelled_in_characters():
    assert SENTENCEPIECE.characters(b"\xc3") is None
    assert BYTE_LEVEL.characters(b"\xc3") == [("Ã", 1)]
    assert Tok(b"\xc3").text == "\\xc3"


def test_cutting_marks_the_new_boundaries():
    """Invariant V17: each tokenizer marks what it would mark itself."""
    cases = [
        (WORDPIECE, "nothing", ["noth", "##ing"]),
        (SUBWORD_NMT, "nothing", ["noth@@", "ing"]),
        (SENTENCEPIECE, "▁nothing", ["▁noth", "ing"]),
        (SUBWORD_NMT, "nothing@@", ["noth@@", "ing@@"]),
        (WORDPIECE, "##nothing", ["##noth", "##ing"]),
        (END_OF_WORD, "nothing</w>", ["noth", "ing</w>"]),
    ]
    for marking, surface, expected in cases:
        pieces = split_tok(marking.canonical(surface), [4])
        assert [marking.surface(piece) for piece in pieces] == expected
        assert marking.surface(merge_toks(pieces)) == surface


def test_cuts_never_fall_inside_what_a_reader_sees_as_one_character():
    assert character_boundaries("aé".encode()) == [1]
    assert character_boundaries("ée".encode()) == [2]
    assert character_boundaries("é̂x".encode()) == [4]
    assert character_boundaries("👩‍🚀a".encode()) == [11]
    assert character_boundaries(b"\xc3\xa9\xc3") == []
    assert character_boundaries(b"") == []
