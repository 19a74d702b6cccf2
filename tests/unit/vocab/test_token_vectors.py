"""Token vectors from text."""

import numpy as np
import pytest

from nlgraft.basics.errors import DataError
from nlgraft.vocab.methods.token_vectors import VectorOptions, learn_vectors


def sentences():
    """Two topics that never meet: tokens 0-4 and 5-9; token 10 occurs once; 11 never."""
    generator = np.random.default_rng(0)
    made = [generator.integers(0, 5, size=8) + 5 * (i % 2) for i in range(300)]
    return [*made, np.array([10, 0, 1])]


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_tokens_of_one_topic_lie_together(kind):
    options = VectorOptions(kind=kind, width=12, window_tokens=3, epochs=4, batch_size=256)
    learned = learn_vectors(sentences(), 12, options, seed=1)
    unit = learned.vectors[:10] / np.linalg.norm(learned.vectors[:10], axis=1, keepdims=True)
    cosines = unit @ unit.T
    within = np.concatenate([cosines[:5, :5][np.triu_indices(5, 1)], cosines[5:, 5:][np.triu_indices(5, 1)]])
    assert within.min() > cosines[:5, 5:].max()
    assert learned.counts[10:].tolist() == [1, 0]
    assert learned.is_known.tolist() == [True] * 11 + [False]


def test_vectors_depend_on_the_seed_alone():
    options = VectorOptions(width=4, epochs=1, min_count=2)
    first, again, other = (learn_vectors(sentences(), 12, options, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.vectors, again.vectors)
    assert not np.array_equal(first.vectors, other.vectors)
    assert not first.is_known[10]


def test_text_without_neighbours_is_refused():
    with pytest.raises(DataError, match="two tokens"):
        learn_vectors([[1], []], 3, VectorOptions(), seed=0)
