"""FOCUS, WECHSEL-style and the vectors of the text themselves, by hand."""

import numpy as np
import pytest

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanMaterial, TokenVectors
from nlgraft.vocab.methods.neighbours import largest, procrustes, sparsemax
from nlgraft.vocab.transfer_plan import Provenance
from tests.tiny_vocabularies import greedy_vocabulary


def vectors(rows, counts=None):
    made = np.array(rows, dtype=np.float32)
    return TokenVectors(made, np.ones(len(rows), dtype=np.int64) if counts is None else np.array(counts))


OLD = greedy_vocabulary(["a", "b", "c"])
NEW = greedy_vocabulary(["b", "x", "a", "y"])
ROWS = np.array([[1, 0], [0, 1], [5, 5]], dtype=np.float32)


def test_sparsemax_by_hand():
    """z=[.5,.3,-1]: support 2, threshold (.8-1)/2=-.1, weights .6 and .4; a clear winner takes all."""
    weights = sparsemax(np.float32([[0.5, 0.3, -1.0], [3.0, 0.0, 0.0], [0.2, 0.2, 0.2]]))
    assert weights == pytest.approx(np.array([[0.6, 0.4, 0.0], [1, 0, 0], [1 / 3] * 3]), abs=1e-6)


def test_focus_weighs_shared_tokens_by_use():
    """x points like b and a little like a: cosines 1 and 0 give b alone; y is unknown to the text."""
    new_vectors = vectors([[0, 2], [0, 3], [4, 0], [1, 1]], counts=[1, 1, 1, 0])
    plan = build_plan(OLD, NEW, "focus", material=PlanMaterial(new_vectors=new_vectors))
    assert plan.provenance.tolist() == [
        Provenance.COPY,
        Provenance.COMPOSED,
        Provenance.COPY,
        Provenance.NOISE,
    ]
    assert plan.apply(ROWS)[1].tolist() == [0, 1]
    between = vectors([[0, 2], [3, 3], [4, 0], [1, 1]])
    assert build_plan(OLD, NEW, "focus", material=PlanMaterial(new_vectors=between)).apply(ROWS)[
        1
    ] == pytest.approx([0.5, 0.5])


def test_vectors_of_the_text_are_taken_as_they_are():
    new_vectors = vectors([[9, 9], [2, 3], [9, 9], [1, 1]], counts=[1, 1, 1, 0])
    plan = build_plan(OLD, NEW, "word2vec", material=PlanMaterial(new_vectors=new_vectors))
    assert plan.apply(ROWS)[:3].tolist() == [[0, 1], [2, 3], [1, 0]]
    assert plan.provenance[3] == Provenance.NOISE
    replaced = build_plan(OLD, NEW, "cbow", material=PlanMaterial(new_vectors=new_vectors))
    assert replaced.apply(ROWS)[:3].tolist() == [[9, 9], [2, 3], [9, 9]]


def test_procrustes_finds_a_rotation():
    generator = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(generator.normal(size=(5, 5)))
    source = generator.normal(size=(40, 5)).astype(np.float32)
    fitted = procrustes(source, (source @ rotation).astype(np.float32))
    assert np.allclose(fitted, rotation, atol=1e-4)
    assert np.allclose(fitted @ fitted.T, np.eye(5), atol=1e-5)


@pytest.mark.parametrize(("width", "count"), [(30, 10), (30, 1), (5, 10), (10, 10), (0, 10)])
def test_the_largest_are_those_of_a_whole_sort(width, count):
    """Also among many equal ones."""
    scores = np.random.default_rng(0).integers(0, 6, (200, width)).astype(np.float32)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert [row.tolist() for row in largest(scores, count)] == expected.tolist()


def test_wechsel_finds_the_nearest_in_the_aligned_space():
    """New vectors are the old ones turned by 90 degrees; x lies where c lies."""
    old_vectors = vectors([[1, 0], [0, 1], [-1, 0.2]])
    turn = np.array([[0, 1], [-1, 0]], dtype=np.float32)
    placed = np.float32([[0, 1], [-1, 0.2], [1, 0], [0, 0]]) @ turn
    new_vectors = vectors(placed.tolist(), counts=[1, 1, 1, 0])
    plan = build_plan(
        OLD, NEW, "wechsel", material=PlanMaterial(new_vectors=new_vectors, old_vectors=old_vectors)
    )
    row = plan.matrix[1].toarray()[0]
    assert row.argmax() == 2
    cosines = np.array([-0.9806, 0.1961, 1.0])
    expected = np.exp(cosines / 0.1) / np.exp(cosines / 0.1).sum()
    assert row == pytest.approx(expected, abs=1e-3)
    assert plan.provenance.tolist() == [2, 2, 2, 5]
    assert plan.matrix.sum(axis=1).ravel().tolist() == [pytest.approx([1, 1, 1, 0])]
