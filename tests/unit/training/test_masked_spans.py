"""Text infilling."""

from __future__ import annotations

import numpy as np

from nlgraft.text.batches import Ragged
from nlgraft.training.masked_text import MaskedSpans, mask_spans
from nlgraft.training.seeds import generator_for

MASK = 4


def test_masked_tokens_are_the_share_that_was_asked_for():
    ids = list(range(10, 50))
    for seed in range(50):
        read = mask_spans(ids, MASK, rate=0.35, mean_tokens=3.5, generator=np.random.default_rng(seed))
        kept = [i for i in read if i != MASK]
        assert len(kept) == 40 - 14
        assert kept == sorted(kept), "what stays keeps its order"
        assert 1 <= read.count(MASK) <= 40


def test_one_long_span_is_one_mask():
    """A mean span far above the share: the one span is cut to 14 of 40 tokens, 27 remain with the mask."""
    read = mask_spans(range(10, 50), MASK, rate=0.35, mean_tokens=1e4, generator=np.random.default_rng(0))
    assert read.count(MASK) == 1
    assert len(read) == 27
    before = read.index(MASK)
    assert read[:before] == list(range(10, 10 + before))
    assert read[before + 1 :] == list(range(10 + before + 14, 50))


def test_nothing_is_masked_in_empty_text_and_all_of_it_at_rate_one():
    generator = np.random.default_rng(0)
    assert mask_spans([], MASK, rate=0.35, mean_tokens=3.5, generator=generator) == []
    assert mask_spans([7], MASK, rate=0.99, mean_tokens=1e4, generator=generator) == [MASK]


def test_masked_spans_depend_on_seed_epoch_and_line_only():
    lines = Ragged.of([list(range(10, 30)), list(range(10, 30))])
    stream = MaskedSpans(lines, MASK, 0.35, 3.5)
    first, again, other = stream.epoch(0, 5), stream.epoch(0, 5), stream.epoch(1, 5)
    assert np.array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
    assert first[0].tolist() != first[1].tolist()
    generator = generator_for(5, "masked spans", 0, 1)
    alone = mask_spans(range(10, 30), MASK, rate=0.35, mean_tokens=3.5, generator=generator)
    assert first[1].tolist() == alone
