"""Contexts of token distillation, by hand; what becomes of rows is an invariant of llm_vocabulary."""

import numpy as np

from nlgraft.text.batches import Ragged
from nlgraft.training.token_distillation import AlignedText, Contexts, Segmented, draw

SIZES = np.array([5, 1, 1, 1, 1, 2, 3])
"""Bytes of begin, a, b, c, d, of a token of two and of one of three letters."""
BEGIN, A, B, C, D, TWO, THREE = range(7)
OLD = Ragged.of([[A, B, C, D], [TWO, C], [A, B, C]])
NEW = Ragged.of([[TWO, C, D], [A, TWO], [THREE]])


def aligned(new=NEW, sizes=SIZES):
    return AlignedText(Segmented(OLD, BEGIN, SIZES), Segmented(new, BEGIN, sizes))


def is_new(*ids):
    return np.isin(np.arange(len(SIZES)), ids)


def test_new_tokens_are_found_where_they_stand_for_several_old_ones():
    """Of the second line both vocabularies share the ends alone."""
    text = aligned()
    edges, ids = text.replaced(is_new(TWO, THREE))
    assert list(ids) == [TWO, THREE]
    whole = Contexts(text, (text.begins, text.begins), max_tokens=9, num_contexts=3, seed=0)
    batch = whole.batch(np.arange(3), 0)
    assert batch.old.ids.tolist() == [[BEGIN, A, B, C, D], [BEGIN, TWO, C, 0, 0], [BEGIN, A, B, C, 0]]
    assert [np.flatnonzero(row).tolist() for row in batch.is_old_edge] == [[0, 2, 3, 4], [0, 2], [0, 3]]
    assert [np.flatnonzero(row).tolist() for row in batch.is_new_edge] == [[0, 1, 2, 3], [0, 2], [0, 1]]
    contexts = Contexts(text, (edges - 1, edges), max_tokens=3, num_contexts=1, seed=0)
    batch = contexts.batch(np.arange(2), 0)
    assert batch.old.ids.tolist() == [[BEGIN, A, B, C], [BEGIN, A, B, C]]
    assert batch.new.ids.tolist() == [[BEGIN, TWO, C], [BEGIN, THREE, 0]]
    assert sorted(int(rows[0]) for rows in contexts.epoch(3)) == [0, 1]


def test_a_token_that_stands_for_one_old_token_and_other_text_have_no_contexts():
    assert not len(aligned(OLD).replaced(is_new(*range(7)))[0])
    longer = SIZES + 4 * is_new(THREE)
    assert list(aligned(sizes=longer).replaced(is_new(TWO, THREE))[1]) == [TWO]


def test_contexts_are_drawn_by_the_seed():
    ids = np.array([4, 2, 4, 4, 2, 7])
    drawn = [draw(ids, 2, seed) for seed in (1, 1, 2, 3)]
    assert all(sorted(ids[rows]) == [2, 2, 4, 4, 7] for rows in drawn)
    assert list(drawn[0]) == list(drawn[1])
    assert len({tuple(rows) for rows in drawn}) > 1
