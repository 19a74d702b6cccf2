"""Invariants V29 to V38: VIPI's partitions of a new token into old tokens."""

import itertools
import random
import time
from fractions import Fraction

import numpy as np
import pytest

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanChoices
from nlgraft.vocab.methods.partitions import Partitions, Spelling, partitions_of
from nlgraft.vocab.tokenizers.vocabulary import (
    BYTE_LEVEL,
    END_OF_WORD,
    SENTENCEPIECE,
    SUBWORD_NMT,
    WORDPIECE,
)
from nlgraft.vocab.transfer_plan import Provenance
from tests.tiny_vocabularies import greedy_vocabulary

PUNCTUATION = "-.',"
EIGHT, FOUR = "ab cde abc de abcd a bcde e", "bat es b ates"


def vocabulary(surfaces, marking=SENTENCEPIECE, **options):
    return greedy_vocabulary(
        surfaces,
        marking,
        [surface for surface in surfaces if surface.startswith("[")],
        is_isolated=lambda character: marking is WORDPIECE and character in PUNCTUATION,
        **options,
    )


def weights(token, old, method="vipi", marking=SENTENCEPIECE, old_marking=None, **choices):
    """Old token -> weight in the new row."""
    old = vocabulary(old, old_marking or marking)
    return first_row(build_plan(old, vocabulary([token], marking), method, PlanChoices(**choices)))


def first_row(plan):
    row = plan.matrix[0]
    return {plan.old_surfaces[i]: pytest.approx(w) for i, w in zip(row.indices, row.data, strict=True)}


@pytest.mark.parametrize(
    ("number", "token", "old", "expected"),
    [
        (
            29,
            "unhappiness",
            "un happi ness unhapp iness unhappi happiness u n",
            {"un": 0.5, "happiness": 0.5},
        ),
        (30, "abcde", "ab cde abc de abcd a bcde e", dict.fromkeys(["a", "bcde", "abcd", "e"], 0.25)),
        (31, "cats", "cat s", {"cat": 0.5, "s": 0.5}),
        (32, "abab", "a b ab", {"ab": 1.0}),
        (33, "aaa", "a aa", {"a": 0.5, "aa": 0.5}),
        (36, "bates", FOUR, {"b": 0.5, "ates": 0.5}),
    ],
)
def test_by_hand(number, token, old, expected):
    assert weights(token, old.split()) == expected, number


def test_by_hand_when_the_number_of_pieces_alone_counts():
    """Invariants V30 and V36 under the rule of the released code."""
    eight = EIGHT.split()
    assert weights("abcde", eight, "vipi_count") == dict.fromkeys(eight, 0.125)
    four = FOUR.split()
    assert weights("bates", four, "vipi_count") == dict.fromkeys(four, 0.25)


def test_a_token_of_millions_of_partitions_takes_no_time():
    """Invariant V34: two chosen of 8,388,607; and of 300 characters, more than any list could hold."""
    old = vocabulary(["a" * size for size in range(1, 24)])
    token = vocabulary(["a" * 24]).token(0)
    began_s = time.process_time()
    (partitions,) = partitions_of([token], old, "longest")
    assert time.process_time() - began_s < 1  # listed, they take many
    assert partitions.number == 2
    (partitions,) = partitions_of([vocabulary(["a" * 300]).token(0)], vocabulary(["a", "aa", "aaa"]), "count")
    assert partitions.number == 1
    (partitions,) = partitions_of([vocabulary(["a" * 299]).token(0)], vocabulary(["a", "aa", "aaa"]), "count")
    assert partitions.number == 100
    assert sum(partitions.occurrences().values()) == 100 * 100


def by_definition(text, old, ties):
    """Occurrences of each old token in all chosen partitions, and their number, by listing all partitions."""
    cuts = range(1, len(text))
    partitions = [
        [text[a:b] for a, b in itertools.pairwise((0, *chosen, len(text)))]
        for size in range(len(text))
        for chosen in itertools.combinations(cuts, size)
    ]
    partitions = [pieces for pieces in partitions if set(pieces) <= set(old)]
    if not partitions:
        return None
    fewest = min(map(len, partitions))
    partitions = [pieces for pieces in partitions if len(pieces) == fewest]
    if ties == "longest":
        longest = max(len(piece) for pieces in partitions for piece in pieces)
        partitions = [pieces for pieces in partitions if max(map(len, pieces)) == longest]
    share = Fraction(1, len(partitions) * fewest)
    sums = {}
    for piece in itertools.chain.from_iterable(partitions):
        sums[piece] = sums.get(piece, 0) + share
    return sums


def test_sums_equal_their_definition():
    """Invariant V35: 2,000 random tokens and vocabularies under both rules, in exact fractions."""
    draw = random.Random(0)
    num_tied = 0
    for _ in range(2000):
        text = "".join(draw.choices("abc", k=draw.randrange(2, 10)))
        spans = [(i, j) for i in range(len(text)) for j in range(i + 1, len(text) + 1) if j - i < len(text)]
        old = sorted({text[i:j] for i, j in draw.sample(spans, draw.randrange(1, len(spans) + 1))})
        old_vocabulary = vocabulary(old)
        edges, length = Spelling(old_vocabulary).edges(vocabulary([text]).token(0))
        for ties in ("longest", "count"):
            expected = by_definition(text, old, ties)
            partitions = Partitions.of(edges, length, ties)
            if expected is None:
                assert partitions is None
                continue
            total = partitions.number * partitions.num_pieces
            occurrences = partitions.occurrences()
            assert {old[i]: Fraction(n, total) for i, n in occurrences.items()} == expected, (text, old)
            assert sum(occurrences.values()) == total
            num_tied += partitions.number > 1
    assert num_tied > 500, "ties are what this is about"


@pytest.mark.parametrize(
    ("token", "old", "marking", "expected"),
    [
        ("▁cats", ["▁", "cats", "▁c", "at"], SENTENCEPIECE, {"▁": 0.5, "cats": 0.5}),
        ("cats", ["▁cat", "cat", "s"], SENTENCEPIECE, {"cat": 0.5, "s": 0.5}),
        ("##ing", ["in", "##in", "##g", "g"], WORDPIECE, {"##in": 0.5, "##g": 0.5}),
        ("##ing", ["in", "g"], WORDPIECE, {}),
        ("ing", ["in", "##in", "##g", "g"], WORDPIECE, {"in": 0.5, "##g": 0.5}),
        ("Ġcats", ["Ġ", "cats", "at"], BYTE_LEVEL, {"Ġ": 0.5, "cats": 0.5}),
        ("Ã©s", ["Ã", "©", "s"], BYTE_LEVEL, dict.fromkeys(["Ã", "©", "s"], 1 / 3)),
        ("cats", ["cat@@", "cat", "s", "s@@"], SUBWORD_NMT, {"cat@@": 0.5, "s": 0.5}),
        ("cats@@", ["cat@@", "s", "s@@"], SUBWORD_NMT, {"cat@@": 0.5, "s@@": 0.5}),
        ("cats</w>", ["cat", "s", "s</w>", "cats"], END_OF_WORD, {"cat": 0.5, "s</w>": 0.5}),
    ],
)
def test_marks_of_words(token, old, marking, expected):
    """Invariant V37, for every notation."""
    assert weights(token, old, marking=marking) == expected


@pytest.mark.parametrize(
    ("token", "old", "expected"),
    [
        ("▁e-mail", ["e", "-", "mail", "##mail"], dict.fromkeys(["e", "-", "mail"], 1 / 3)),
        ("'s", ["'", "s", "##s"], {"'": 0.5, "s": 0.5}),
        ("▁e-mail", ["e", "-", "##mail"], {}),
        ("▁.", [".", "e"], {".": 1.0}),
        ("mail", ["mail", "##mai", "##l"], {"##mai": 0.5, "##l": 0.5}),
        ("▁Mails", ["mail", "##s"], {"mail": 0.5, "##s": 0.5}),
        ("▁", ["a", "##a"], {}),
    ],
)
def test_punctuation_and_marks_across_tokenizers(token, old, expected):
    """BERT makes a word of its own of a punctuation mark, and another begins behind it."""
    plan = build_plan(vocabulary(old, WORDPIECE, normalise=str.lower), vocabulary([token]), "vipi")
    assert first_row(plan) == expected
    if not expected:
        assert plan.provenance[0] == Provenance.NOISE


OLD = ["[PAD]", "[UNK]", *"abcdefgh", *(f"x{a}" for a in "abcdefgh")]
NEW = ["abc", "dxe", "xaxbxc", "hgf"]


def test_shuffled_rows_have_as_many_old_tokens():
    """Invariant V38: as many as a partition has, no special token, the same for a seed, not VIPI's."""
    for token, pieces in zip(NEW, (3, 2, 3, 3), strict=True):
        rows = [weights(token, OLD, "vipi_shuffled", seed=seed) for seed in range(20)]
        assert all(len(row) == pieces and not {"[PAD]", "[UNK]"} & set(row) for row in rows)
        assert rows[3] == weights(token, OLD, "vipi_shuffled", seed=3)
        assert sum(row != weights(token, OLD) for row in rows) >= 19
        assert len({tuple(sorted(row)) for row in rows}) > 10


def test_one_partition_is_drawn_uniformly():
    """`abcde` has two partitions of which each is drawn half of the time."""
    rows = [weights("abcde", EIGHT.split(), "vipi_one", seed=seed) for seed in range(200)]
    pairs = [tuple(sorted(row)) for row in rows]
    assert set(pairs) == {("a", "bcde"), ("abcd", "e")}
    assert 70 < pairs.count(("a", "bcde")) < 130


def test_all_rows_of_text_may_be_drawn():
    old, new = (vocabulary(["[PAD]", "a", "b", *more]) for more in ([], ["ab"]))
    plan = build_plan(old, new, "all_random")
    assert plan.counts() == {"special": 1, "noise": 3}
    rows = plan.apply(np.ones((3, 4000), dtype=np.float32))
    assert abs(rows[1:].std() / 0.02 - 1) < 0.05
