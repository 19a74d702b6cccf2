"""Rows from character n-grams."""

import numpy as np
import pytest

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanMaterial
from nlgraft.vocab.methods.reconstruction import character_ngrams
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, Tok
from nlgraft.vocab.transfer_plan import Provenance
from tests.tiny_vocabularies import greedy_vocabulary


def test_ngrams_mark_known_word_boundaries():
    assert character_ngrams(Tok(b"abcd", False, None)) == ["abc", "bcd", "abcd"]
    assert character_ngrams(Tok(b"ab", True, True)) == ["<ab", "ab>", "<ab>"]
    assert character_ngrams(Tok(b"a", False, None)) == ["a"]
    assert character_ngrams(Tok("é".encode(), True, None)) == ["<é"]
    assert character_ngrams(Tok(b"\xc3", False)) == ["Ã"]


def test_old_rows_are_given_back_and_shared_parts_carry_over():
    """Each token has an n-gram of its own, so the fit is exact; a new token gets the mean of its parts."""
    old = greedy_vocabulary(["abc", "xyz"], SENTENCEPIECE)
    rows = np.array([[4.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    new = greedy_vocabulary(["abcxyz", "abc", "▁abc", "qq"], SENTENCEPIECE)
    plan = build_plan(old, new, "reconstruction", material=PlanMaterial(old_rows=rows))
    made = plan.apply(rows)
    assert made[1].tolist() == [4, 0]
    assert made[0] == pytest.approx([2, 1], abs=0.01)
    assert made[2] == pytest.approx([4, 0], abs=0.01)
    assert plan.provenance.tolist()[:3] == [Provenance.DENSE, Provenance.COPY, Provenance.DENSE]
    assert plan.provenance[3] == Provenance.NOISE


def test_the_fit_follows_a_composition():
    """Rows that are sums of stem and ending: an unseen pair is nearer to its truth than the mean is."""
    generator = np.random.default_rng(0)
    stems = {
        stem: generator.normal(size=16) for stem in ("lamo", "tirke", "bonut", "sedag", "quvit", "romas")
    }
    endings = {ending: generator.normal(size=16) for ending in ("ingu", "erba", "osti", "umane")}
    words = {s + e: stems[s] + endings[e] for s in stems for e in endings}
    unseen = ["lamoerba", "sedagosti", "quvitingu"]
    seen = [word for word in words if word not in unseen]
    rows = np.array([words[word] for word in seen], dtype=np.float32)
    vocabularies = (greedy_vocabulary(words, SENTENCEPIECE) for words in (seen, unseen))
    plan = build_plan(*vocabularies, "reconstruction", material=PlanMaterial(old_rows=rows))
    truth = np.array([words[word] for word in unseen])
    error = np.linalg.norm(plan.apply(rows) - truth, axis=1)
    assert (error < 0.6 * np.linalg.norm(rows.mean(axis=0) - truth, axis=1)).all()
