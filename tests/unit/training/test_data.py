"""Views of encoded corpora and the batches made from them."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.text.batches import Ragged
from nlgraft.training.train_config import Side, View
from nlgraft.training.views import (
    Encoded,
    SampledText,
    Seq2SeqData,
    beside,
    join,
    surround,
    take,
    write_encoded,
)

BOTH = (Side(stream="source 0"), Side(stream="source 1"))
SOURCES = [[5, 6], [7], [8, 9, 10, 5]]
SECOND = [[6], [], [9, 9]]
TARGETS = [[7, 8, 9], [5], []]
PARTS = ("values", "offsets")


def encoded():
    return Encoded(
        {"source 0": Ragged.of(SOURCES), "source 1": Ragged.of(SECOND), "target": Ragged.of(TARGETS)}
    )


def batch_of(view, rows, corpus=None):
    """The batch of some examples in the first epoch."""
    return Seq2SeqData(corpus or encoded(), view, batch_tokens=100).batch(np.array(rows), 0)


def rows_of(tokens):
    return [ids[valid].tolist() for ids, valid in zip(tokens.ids, tokens.valid, strict=True)]


def test_batch_by_hand():
    batch = batch_of(View(), [2, 0])
    assert batch.sources[0].ids.tolist() == [[8, 9, 10, 5, 3], [5, 6, 3, 0, 0]]
    assert batch.target_input.ids.tolist() == [[2, 0, 0, 0], [2, 7, 8, 9]]
    assert batch.target_output.tolist() == [[3, 0, 0, 0], [7, 8, 9, 3]]
    assert batch.target_input.valid.tolist() == [[True, False, False, False], [True] * 4]
    assert batch.sources[0].ids.dtype == torch.int64


def test_language_ids_go_where_mbart_wants_them():
    """Source ``x </s> LID``, decoder input ``LID y </s>``, labels ``y </s> LID`` (Huang et al. 2021)."""
    view = View(
        sources=(Side(stream="source 0", suffix=(3, 40)), Side(stream="source 1", suffix=(3, 41))),
        target=Side(stream="target", suffix=(3, 42)),
        target_start=42,
    )
    batch = batch_of(view, [0])
    assert [rows_of(source) for source in batch.sources] == [[[5, 6, 3, 40]], [[6, 3, 41]]]
    assert rows_of(batch.target_input) == [[42, 7, 8, 9, 3]]
    assert batch.target_output.tolist() == [[7, 8, 9, 3, 42]]


def test_a_source_that_an_example_lacks_has_no_valid_token():
    batch = batch_of(View(sources=BOTH), [1])
    assert rows_of(batch.sources[1]) == [[]]
    assert batch.sources[1].ids.shape == (1, 1)
    alone = View(sources=(Side(stream="source 1"),))
    assert rows_of(batch_of(alone, [1]).sources[0]) == [[3]]


def test_contexts_have_their_own_tokenisation():
    streams = {**encoded().streams, "context bert": Ragged.of([[70], [71, 72], [73]])}
    view = View(contexts={"bert": Side(stream="context bert", prefix=(101,), suffix=(102,))})
    batch = batch_of(view, [1, 0], Encoded(streams))
    assert rows_of(batch.contexts["bert"]) == [[101, 71, 72, 102], [101, 70, 102]]


def test_long_sequences_are_cut_and_counted_never_dropped(caplog):
    view = View(sources=(Side(stream="source 0", max_tokens=2),), target=Side(stream="target", max_tokens=2))
    data = Seq2SeqData(encoded(), view, batch_tokens=100)
    assert data.num_cut == {"source 0": 1, "target": 1}
    assert data.longest() == (3, 3)
    assert "source 0: 1 of 3 sequences were cut" in caplog.text
    batch = data.batch(np.arange(3), 0)
    assert rows_of(batch.sources[0]) == [[5, 6, 3], [7, 3], [8, 9, 3]]
    assert sorted(np.concatenate(data.epoch(0)).tolist()) == [0, 1, 2]


def many(num=600, seed=0):
    rng = np.random.default_rng(seed)
    streams = {
        role: Ragged.of(rng.integers(4, 11, rng.integers(1, 9)).tolist() for _ in range(num))
        for role in ("source 0", "source 1", "source 2", "target")
    }
    return Encoded(streams)


def test_one_source_is_drawn_per_example_each_with_its_language_id():
    """Invariant F11: over many draws each source has frequency 1/K (chi-squared), and its own language id."""
    view = View(
        sources=tuple(Side(stream=f"source {k}", suffix=(3, 40 + k)) for k in range(3)),
        is_one_source_drawn=True,
    )
    corpus = many()
    data = Seq2SeqData(corpus, view, batch_tokens=400, seed=1)
    counts = np.zeros(3)
    seen = set()
    for epoch in range(4):
        for rows in data.epoch(epoch):
            batch = data.batch(rows, epoch)
            assert len(batch.sources) == 1
            for row, ids in zip(rows, rows_of(batch.sources[0]), strict=True):
                k = ids[-1] - 40
                assert ids[:-2] == corpus.stream(f"source {k}")[row].tolist()
                counts[k] += 1
                seen.add((int(row), k))
    expected = counts.sum() / 3
    assert ((counts - expected) ** 2 / expected).sum() < 9.21  # 99 % quantile of chi-squared with 2 df
    assert len(seen) > 1200  # drawn anew each epoch, not once for each example


def test_one_source_is_drawn_among_those_there_are():
    view = View(sources=BOTH, is_one_source_drawn=True)
    data = Seq2SeqData(encoded(), view, batch_tokens=100)
    for epoch in range(20):
        assert rows_of(data.batch(np.array([1]), epoch).sources[0]) == [[7, 3]]
    with pytest.raises(ValueError, match="at least two sources"):
        View(is_one_source_drawn=True)


def test_every_epoch_holds_every_example_once_in_an_order_of_seed_and_epoch_alone():
    """Asked in another order, by another process of the same seed: the same batches."""
    view = View(sources=BOTH, is_one_source_drawn=True)
    dataset = Seq2SeqData(many(), view, batch_tokens=100, seed=7)
    other = Seq2SeqData(many(), view, batch_tokens=100, seed=7)
    forward = [dataset.epoch(epoch) for epoch in range(3)]
    backward = [other.epoch(epoch) for epoch in (2, 1, 0)][::-1]
    for first, second in zip(forward, backward, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert sorted(np.concatenate(first).tolist()) == list(range(600))
    assert not all(np.array_equal(a, b) for a, b in zip(*forward[:2], strict=False))
    rows = np.arange(5)
    assert torch.equal(dataset.batch(rows, 1).sources[0].ids, other.batch(rows, 1).sources[0].ids)
    different = Seq2SeqData(many(), view, batch_tokens=100, seed=8).epoch(0)
    assert not all(np.array_equal(a, b) for a, b in zip(forward[0], different, strict=False))


class Letters:
    """Stands for a tokenizer: samples by splitting words in two at a place the seed decides."""

    def encode(self, lines, sample_alpha, generator):
        return [[4 + len(line)] * generator.randint(1, 2) for line in lines]


def test_sampled_streams_are_segmented_anew_each_epoch():
    text = SampledText(["ab", "c", "def"], Letters(), 0.1)
    data = Seq2SeqData(encoded(), View(), batch_tokens=100, drawn={"source 0": text})
    epochs = [rows_of(data.batch(np.arange(3), epoch).sources[0]) for epoch in range(6)]
    assert len({str(rows) for rows in epochs}) > 1
    assert epochs[2] == rows_of(data.batch(np.arange(3), 2).sources[0])
    assert rows_of(data.batch(np.arange(3), 0).target_input) == [[2, *target] for target in TARGETS]
    with pytest.raises(DataError, match="has 1 sequences, not 3"):
        Seq2SeqData(encoded(), View(), batch_tokens=9, drawn={"source 0": SampledText(["a"], Letters(), 0.1)})


def test_encoded_round_trip_and_errors(tmp_path):
    encoded().write(tmp_path / "train.safetensors")
    again = Encoded.read(tmp_path / "train.safetensors")
    expected = {"source 0": SOURCES, "source 1": SECOND, "target": TARGETS}
    assert {role: lists(stream) for role, stream in again.streams.items()} == expected
    with pytest.raises(StoreError, match="no encoded corpus"):
        Encoded.read(tmp_path / "nothing.safetensors")
    save_file({"a/values": np.zeros(1, np.int32)}, tmp_path / "half.safetensors")
    with pytest.raises(StoreError, match="no encoded corpus, but a/values"):
        Encoded.read(tmp_path / "half.safetensors")
    with pytest.raises(DataError, match="Did you mean 'source 1'"):
        again.stream("source 11")
    with pytest.raises(DataError, match="differ in length: a 1, b 2"):
        Encoded({"a": Ragged.of([[1]]), "b": Ragged.of([[1], [2]])})


def test_an_encoded_file_is_that_of_the_library_and_is_mapped(tmp_path):
    """Stores hold files of both writers; written in parts, in any order, the bytes are the same."""
    streams = many(50).streams
    arrays = {f"{name}/{part}": getattr(each, part) for name, each in streams.items() for part in PARTS}
    save_file(arrays, tmp_path / "library")
    halves = [slice(0, 20), slice(20, 50)]
    parts = [(name, take(each, np.arange(50)[half])) for half in halves for name, each in streams.items()]
    write_encoded(tmp_path / "parts", parts)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "library").read_bytes()
    target = Encoded.read(tmp_path / "library").stream("target")
    assert not target.values.flags.owndata
    assert not target.values.flags.writeable
    Encoded({"a": Ragged.of([]), "b": Ragged.of([])}).write(tmp_path / "empty")
    assert len(Encoded.read(tmp_path / "empty")) == 0


def test_batches_of_mapped_text_are_those_of_text_in_memory(tmp_path):
    """Everything that is put around, cut, drawn or set beside is made for the rows of a batch alone."""
    corpus = many(60)
    languages = Ragged.of([[40 + number % 2] for number in range(60)])
    streams = {**corpus.streams, "language": languages}
    Encoded(streams).write(tmp_path / "train")
    sides = tuple(Side(stream=f"source {k}", max_tokens=4, suffix=(3, 50 + k)) for k in range(3))
    view = View(sources=sides, language="language", is_one_source_drawn=True)
    data = Seq2SeqData(Encoded.read(tmp_path / "train"), view, batch_tokens=60, seed=3)
    for rows in data.epoch(1):
        batch = data.batch(rows, 1)
        starts = batch.target_input.ids[:, 0].tolist()
        for row, ids, start in zip(rows, rows_of(batch.sources[0]), starts, strict=True):
            drawn = streams[f"source {ids[-2] - 50}"][row][:4].tolist()
            assert ids == [*drawn, 3, ids[-2], 40 + row % 2]
            assert start == 40 + row % 2
        assert np.array_equal(data._at(1).inputs.sources[0].lengths[rows], batch.sources[0].valid.sum(1))


def test_the_first_examples_of_every_stream():
    two = encoded().first(2)
    assert [*map(lists, two.streams.values())] == [SOURCES[:2], SECOND[:2], TARGETS[:2]]
    assert len(encoded().first(9)) == 3


def lists(stream):
    return [ids.tolist() for ids in stream]


def test_surround_and_join():
    bare = Ragged.of([[5], [], [6, 7]])
    assert lists(surround(bare, (1, 2), (3,))) == [[1, 2, 5, 3], [1, 2, 3], [1, 2, 6, 7, 3]]
    assert lists(surround(bare, (), (3,), is_empty_absent=True)) == [[5, 3], [], [6, 7, 3]]
    both = join([bare, Ragged.of([[8], [9], []])])
    assert lists(both) == [[5], [], [6, 7], [8], [9], []]
    assert lists(take(both, np.array([2, 5, 3, 2]))) == [[6, 7], [], [8], [6, 7]]


def write_states(path, lengths, width=4):
    """States whose value is their sentence's number, as nn's frozen states lay them out."""
    offsets = np.cumsum([0, *lengths])
    states = np.repeat(np.arange(len(lengths)), lengths)[:, None, None] * np.ones((1, 2, width))
    save_file({"offsets": offsets.astype(np.int64), "states": states.astype(np.float32)}, path)
    return FrozenStates(path)


def test_precomputed_states_take_the_place_of_a_streams_tokens(tmp_path):
    states = write_states(tmp_path / "states.safetensors", [2, 1, 4])
    view = View(contexts={"bert": Side(stream="context bert")})
    data = Seq2SeqData(encoded(), view, batch_tokens=100, states={"context bert": states})
    batch = data.batch(np.array([2, 1]), 0)
    assert batch.contexts["bert"].layers.shape == (2, 2, 4, 4)
    assert batch.contexts["bert"].valid.sum(1).tolist() == [4, 1]
    assert batch.contexts["bert"].layers[0, :, 0, 0].tolist() == [2.0, 1.0]
    inputs = data.inputs()
    assert inputs.pack(np.array([0]))[1]["bert"].layers.shape == (2, 1, 2, 4)
    source = Seq2SeqData(encoded(), View(), batch_tokens=100, states={"source 0": states})
    assert source.inputs().lengths.tolist() == [2, 1, 4]
    assert source.batch(np.array([0]), 0).sources[0].layers is not None
    short = {"source 0": write_states(tmp_path / "short.safetensors", [2])}
    with pytest.raises(DataError, match="has 1 sequences, not 3"):
        Seq2SeqData(encoded(), View(), batch_tokens=100, states=short)


def test_text_of_several_languages_by_hand():
    """Denoising as mBART: ``x </s> LID`` in, LID first in the decoder, each line with its own language."""
    languages = Ragged.of([[40], [41], [40]])
    text = Encoded({"target": Ragged.of(TARGETS), "language": languages})
    side = Side(stream="target")
    view = View(sources=(side,), target=side, language="language")
    batch = batch_of(view, [1, 0], text)
    assert rows_of(batch.sources[0]) == [[5, 3, 41], [7, 8, 9, 3, 40]]
    assert rows_of(batch.target_input) == [[41, 5], [40, 7, 8, 9]]
    assert batch.target_output.tolist() == [[5, 3, 0, 0], [7, 8, 9, 3]]


def test_sequences_beside_one_another():
    both = beside(Ragged.of([[1, 2], [], [3]]), Ragged.of([[7], [8], []]))
    assert lists(both) == [[1, 2, 7], [8], [3]]
