import math
import random
from collections import Counter

import pytest

from nlgraft.text import sampling
from nlgraft.text.sampling import BpeSampler, PieceTable, UnigramSampler

# Three ways to write ▁ab: ▁|a|b, ▁a|b, ▁|ab.
IDS = {"\u2581": 4, "a": 5, "b": 6, "\u2581a": 7, "ab": 8}
UNIGRAM = PieceTable(IDS, {4: -1.0, 5: -2.0, 6: -3.0, 7: -2.5, 8: -4.5}, unknown=1)
BPE = PieceTable({**IDS, "\u2581ab": 9}, {8: -0.0, 9: -1.0, 7: -2.0, 4: -3.0, 5: -4.0, 6: -5.0}, unknown=1)


def shares(sampler, line="\u2581ab", draws=20_000):
    rng = random.Random(1)
    counts = Counter(tuple(sampler.line(line, rng)) for _ in range(draws))
    return {ids: count / draws for ids, count in counts.items()}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_unigram_shares_by_hand(alpha):
    """Log-likelihoods -6.0, -5.5, -5.5; shares are exp(alpha times these), normalised."""
    logs = {(4, 5, 6): -6.0, (7, 6): -5.5, (4, 8): -5.5}
    total = sum(math.exp(alpha * log) for log in logs.values())
    drawn = shares(UnigramSampler(UNIGRAM, alpha))
    assert set(drawn) == set(logs)
    for ids, log in logs.items():
        assert drawn[ids] == pytest.approx(math.exp(alpha * log) / total, abs=0.015)  # 4 standard errors


def test_bpe_dropout_shares_by_hand():
    """Merges by rank: a+b, then ▁+ab, and ▁+a (only while a is free). Skipped with p = 0.3.

    ab made (0.7): ▁ab with 0.7, else ▁|ab. ab skipped (0.3): ▁a with 0.7, then no merge ▁a+b is tried since
    it makes the same piece ▁ab: tried with 0.7; else ▁a|b; ▁+a skipped too: ▁|a|b.
    """
    drawn = shares(BpeSampler(BPE, 0.3))
    expected = {
        (9,): 0.7 * 0.7 + 0.3 * 0.7 * 0.7,
        (4, 8): 0.7 * 0.3,
        (7, 6): 0.3 * 0.7 * 0.3,
        (4, 5, 6): 0.3 * 0.3,
    }
    assert set(drawn) == set(expected)
    for ids, share in expected.items():
        assert drawn[ids] == pytest.approx(share, abs=0.015)


def test_nothing_skipped_is_plain_bpe():
    assert shares(BpeSampler(BPE, 0.0), draws=10) == {(9,): 1.0}
    assert shares(BpeSampler(BPE, 1.0), draws=10) == {(4, 5, 6): 1.0}


@pytest.mark.parametrize("sampler", [UnigramSampler(UNIGRAM, 1.0), BpeSampler(BPE, 0.0)])
def test_unknown_neighbours_are_one_unknown(sampler):
    ids = sampler.line("\u2581xyb\u2581z", random.Random(1))
    assert ids == [4, 1, 6, 4, 1]
    assert sampler.line("", random.Random(1)) == []


@pytest.mark.parametrize("kind", [UnigramSampler, BpeSampler])
def test_forgetting_changes_nothing(monkeypatch, kind):
    words = [f"\u2581{''.join(random.Random(n).choices('ab', k=6))}" for n in range(50)]

    def drawn():
        sampler, rng = kind(UNIGRAM if kind is UnigramSampler else BPE, 0.3), random.Random(7)
        return [sampler.line("".join(words), rng) for _ in range(5)]

    remembered = drawn()
    monkeypatch.setattr(sampling, "_MAX_WORDS", 3)
    monkeypatch.setattr(sampling, "_MAX_STEPS", 3)
    assert drawn() == remembered
