"""Caches of hypotheses against histories that are kept one by one."""

import torch

from nlgraft.nn.attention import KeyValue
from nlgraft.nn.decoder_state import StackCache


def entry(values):
    """One token of every row whose key and value are a number."""
    key = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1)
    return KeyValue(key, -key)


def visible(memory, num_sentences, beam):
    """Memory rows that each hypothesis sees, sorted."""
    keys = memory.key[:, 0, :, 0]
    assert torch.equal(memory.value[:, 0, :, 0], -keys)
    if memory.mask is None:
        return [[sorted(keys[b].tolist())] for b in range(num_sentences)]
    mask = memory.mask[:, 0]
    return [[sorted(keys[b][mask[b, k]].tolist()) for k in range(beam)] for b in range(num_sentences)]


def walk(num_steps, beam, num_sentences=3, leaves=(), num_shared=0):
    """Random reorders; returns the largest number of slots that was kept."""
    draw = torch.Generator().manual_seed(0)
    cache = StackCache(1)
    for step in range(num_shared):
        cache.step(num_sentences, torch.device("cpu"))
        cache.layers[0].append(entry([-float(step)] * num_sentences))
    cache.expand(beam)
    histories = [
        [[-float(step) for step in range(num_shared)] for _ in range(beam)] for _ in range(num_sentences)
    ]
    widest = 0
    for step in range(num_steps):
        rows = len(histories) * beam
        assert cache.step(rows, torch.device("cpu")) == step + num_shared
        values = [float(1000 * step + row) for row in range(rows)]
        memory = cache.layers[0].append(entry(values))
        widest = max(widest, memory.key.shape[2])
        for row, value in enumerate(values):
            histories[row // beam][row % beam].append(value)
        assert visible(memory, len(histories), beam) == [[sorted(h) for h in hs] for hs in histories]
        parents = torch.randint(beam, (len(histories), beam), generator=draw)
        cache.reorder(parents)
        histories = [[list(hs[p]) for p in row] for hs, row in zip(histories, parents.tolist(), strict=True)]
        if step in leaves:
            cache.select(torch.tensor([0, len(histories) - 1]))
            histories = [histories[0], histories[-1]]
    return widest


def test_each_hypothesis_sees_its_ancestors():
    """Also beyond the first buffer and the first time slots are dropped."""
    widest = walk(num_steps=90, beam=4, leaves=(20,))
    assert widest < 90 * 4 * 0.8


def test_hypotheses_share_what_was_said_before_them():
    assert walk(num_steps=40, beam=3, num_shared=2) < 122


def test_one_hypothesis_needs_no_mask():
    assert walk(num_steps=40, beam=1) == 40
