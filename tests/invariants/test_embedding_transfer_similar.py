"""Invariants V8 to V16: similar tokens, by hand and against brute force."""

import random

import numpy as np
import pytest

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.similar import SimilarTokens
from nlgraft.vocab.tokenizers.tokenizer_json import read_tokenizer_json
from nlgraft.vocab.tokenizers.vocabulary import BYTE_LEVEL, SENTENCEPIECE, SUBWORD_NMT, WORDPIECE, Tok
from tests.tiny_vocabularies import greedy_vocabulary

PAPER = [
    *("work", "writ", "sing", "worker", "writer", "singer", "error", "##ers", "motor"),
    *("##cycle", "##e", "##r", "motorcyclist", "motorcycles"),
]


def members(surface, old, **options):
    similar = SimilarTokens(old, **options).of(old.marking.canonical(surface))
    return [(old.surfaces[member], int(relation)) for member, relation in similar]


def test_suffix_finds_its_words_but_not_a_word_that_only_begins_so():
    """Invariant V8: `##er`."""
    old = greedy_vocabulary(PAPER, WORDPIECE)
    expected = [("##e", 0), ("##r", 1), ("worker", 4), ("writer", 4), ("singer", 4), ("##ers", 3)]
    assert members("##er", old) == expected


def test_word_finds_its_parts_and_its_plural():
    """Invariant V9: `motorcycle`; `motorcyclist` does not contain it."""
    old = greedy_vocabulary(PAPER, WORDPIECE)
    assert members("motorcycle", old) == [("motor", 0), ("##cycle", 1), ("motorcycles", 3)]


def test_cap_keeps_all_subwords_then_lowest_ids():
    """Invariant V10: two subwords and twelve hyperwords under a cap of ten."""
    hyperwords = [f"abc{letter}" for letter in "zyxwvutsrqpo"]
    old = greedy_vocabulary(["ab", "##c", *hyperwords], WORDPIECE)
    expected = [("ab", 0), ("##c", 1), *((word, 3) for word in hyperwords[:8])]
    assert members("abc", old) == expected
    assert members("abc", old, cap=1) == expected[:2]
    assert len(members("abc", old, cap=None)) == 14


def test_relations_of_subwords_come_from_their_place():
    """Invariant V11: `motor@@ cycle` are first and last piece (string tests on marks say infix)."""
    old = greedy_vocabulary(["motor@@", "cycle"], SUBWORD_NMT)
    assert members("motorcycle", old) == [("motor@@", 0), ("cycle", 1)]


def test_digits_survive_segmentation():
    """Invariant V12: `##110` is spelled by pieces of 110."""
    old = greedy_vocabulary(["##11", "##0", "##1"], WORDPIECE)
    assert members("##110", old) == [("##11", 0), ("##0", 1)]


def test_an_unknown_token_has_no_similar_tokens():
    """Invariant V13, first half: what cannot be spelled contributes nothing."""
    old = greedy_vocabulary(["a", "##b"], WORDPIECE)
    assert members("qqq", old) == []


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_the_unknown_token_is_no_similar_token(kind):
    """Invariant V13: where the tokenizer itself says `[UNK]`, S_m is empty, and the plan has a fallback."""
    tokens = ["[UNK]", "a", "##b"] if kind == "wordpiece" else ["[UNK]", "▁a", "b"]
    settings = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {t: i for i, t in enumerate(tokens)}}
    if kind == "unigram":
        settings = {"type": "Unigram", "unk_id": 0, "vocab": [[t, -1.0] for t in tokens]}
    old = read_tokenizer_json({"model": settings}, specials={"unk_token": "[UNK]"})
    word = Tok(b"qqq", starts_word=True, ends_word=True)
    assert [*map(SimilarTokens(old).of, [word, Tok(b"q", False)])] == [[], []]
    plan = build_plan(old, greedy_vocabulary(["qqq"], WORDPIECE), "avg")
    assert plan.describe(0) == "qqq: noise (no similar token and no known character)"
    assert np.isfinite(plan.apply(np.eye(3, dtype=np.float32))).all()


def brute_force(tok, old):
    """Hyperwords by the definition, written independently over text."""
    hyperwords = []
    core = tok.core.decode()
    for identity, old_tok in enumerate(old.tokens):
        text = old_tok.core.decode()
        if not core or len(text) <= len(core) or not old_tok.core:
            continue
        relations = []
        for offset in range(len(text) - len(core) + 1):
            if text[offset : offset + len(core)] != core:
                continue
            is_first, is_last = offset == 0, offset + len(core) == len(text)
            starts = old_tok.starts_word if is_first else False
            ends = old_tok.ends_word if is_last else False
            if {tok.starts_word, starts} == {True, False} or {tok.ends_word, ends} == {True, False}:
                continue
            relations.append(3 if is_first else 4 if is_last else 5)
        if relations:
            hyperwords.append((identity, min(relations)))
    return hyperwords


@pytest.mark.parametrize(("marking", "seed"), [(SENTENCEPIECE, 14), (WORDPIECE, 15), (SUBWORD_NMT, 16)])
def test_similar_tokens_equal_brute_force(marking, seed):
    """V14: 1,002 random vocabularies in all, with the bare word mark and accents among the tokens."""
    rng = random.Random(seed)
    for _ in range(334):
        words = {"".join(rng.choices("abé", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 25))}
        toks = [Tok(w.encode(), rng.choice([True, False]), rng.choice([True, False])) for w in sorted(words)]
        surfaces = sorted({marking.surface(tok) for tok in toks} | {marking.surface(Tok(b"", True))} - {""})
        rng.shuffle(surfaces)
        old = greedy_vocabulary(surfaces, marking)
        queries = [marking.canonical(surface) for surface in surfaces[:6]] + toks[:6] + [Tok(b"", True)]
        expected = [brute_force(tok, old) for tok in queries]
        index = SimilarTokens(old, cap=None)
        assert [[(member, int(r)) for member, r in index.of(tok) if r >= 3] for tok in queries] == expected


def test_same_text_is_found_across_tokenizers():
    """Invariant V15: `Ġthe` is `▁the`; `Ã©` is `é` in bytes; half a character is harmless."""
    old = greedy_vocabulary(["▁the", "é", "the"], SENTENCEPIECE)
    assert old.find(BYTE_LEVEL.canonical("Ġthe")) == 0
    assert old.find(BYTE_LEVEL.canonical("the")) == 2
    assert old.find(BYTE_LEVEL.canonical("Ã©")) == 1
    half = BYTE_LEVEL.canonical("Ã")
    assert old.find(half) is None
    assert len(SimilarTokens(old, cap=None).of(half)) == 1
    assert SimilarTokens(greedy_vocabulary(["e"], SENTENCEPIECE)).of(half) == []


def test_the_old_tokenizers_normalisation_applies():
    """Invariant V16: an uncased old tokenizer reaches `motor` from `Motor`."""
    old = greedy_vocabulary(["motor", "##cycle"], WORDPIECE, normalise=str.lower)
    assert old.find(old.normalised(WORDPIECE.canonical("Motor"))) == 0
    assert members("MotorCycle", old) == [("motor", 0), ("##cycle", 1)]
