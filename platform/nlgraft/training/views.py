"""Encoded corpora, their sequences as a view selects them, and batches of these.

A corpus is encoded once, as bare ids. What is put around a sequence (EOS, a language id), how long it may
be, which streams are sources, contexts and target, and whether one source is drawn at a time, belongs to the
view, so that stages share the encoded data.

Nothing is dropped: a sequence that is too long is cut, counted and reported. Which examples share a batch and
what is drawn for them (one of several sources, a sampled segmentation, masked spans) depends on the seed and
the epoch alone.
"""

from __future__ import annotations

import logging
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError, StoreError, nearest
from nlgraft.evaluation.inputs import Inputs, Stream, pack
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.text.batches import IntArray, LengthBatches, Prepared, Ragged, batches_of
from nlgraft.text.files import check_alike, chunks
from nlgraft.text.mapped_arrays import header_of, read_mapped
from nlgraft.text.tokenizers import PAD, Tokenizer
from nlgraft.training.seeds import derive_seed, generator_for
from nlgraft.training.train_config import Side, View


@dataclass(frozen=True)
class Encoded:
    """One split as ids: sequence n of every stream belongs to example n.

    Attributes:
        streams: By name: ``source 0``, ``source 1``, ``target``, ``context electra``...; without BOS and EOS.
    """

    streams: Mapping[str, Ragged]

    def __post_init__(self) -> None:
        check_alike("the encoded streams", self.streams)

    def __len__(self) -> int:
        return len(next(iter(self.streams.values()), ()))

    def stream(self, name: str) -> Ragged:
        """Look up a stream.

        Raises:
            DataError: There is no such stream.
        """
        if name not in self.streams:
            raise DataError(f"no encoded stream '{name}'. {nearest(name, sorted(self.streams))}")
        return self.streams[name]

    def first(self, count: int) -> Encoded:
        """Take the first examples, at most ``count``."""
        rows = np.arange(min(count, len(self)))
        return Encoded({name: take(stream, rows) for name, stream in self.streams.items()})

    def write(self, path: Path) -> None:
        """Write all streams into one safetensors file."""
        write_encoded(path, self.streams.items())

    @staticmethod
    def read(path: Path) -> Encoded:
        """Map what ``write`` wrote into memory, which the processes of a machine share.

        Raises:
            StoreError: The file is missing or holds something else.
        """
        arrays = read_mapped(path, "encoded corpus")
        names = [name.removesuffix("/values") for name in arrays if name.endswith("/values")]
        if arrays.keys() != {f"{name}/{part}" for name in names for part in ("values", "offsets")}:
            raise StoreError(f"{path} holds no encoded corpus, but {', '.join(sorted(arrays))}")
        return Encoded({name: Ragged(arrays[f"{name}/values"], arrays[f"{name}/offsets"]) for name in names})


def write_encoded(path: Path, parts: Iterable[tuple[str, Ragged]]) -> None:
    """Write an encoded split as it comes: each part is a stream's name and its next sequences.

    One safetensors file, equal to that of its own writer, which would need all arrays at once.
    """
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        lengths: dict[str, list[IntArray]] = {}
        for name, part in parts:
            if name not in files:
                files[name] = stack.enter_context(TemporaryFile(dir=path.parent))
                lengths[name] = [np.zeros(1, dtype=np.int64)]
            files[name].write(np.ascontiguousarray(part.values, dtype="<i4").data)
            lengths[name].append(part.lengths)
        names = sorted(files)
        offsets = {name: np.cumsum(np.concatenate(lengths.pop(name))) for name in names}
        arrays = {f"{name}/offsets": ("I64", offsets[name].shape) for name in names}
        arrays |= {f"{name}/values": ("I32", (int(offsets[name][-1]),)) for name in names}
        with path.open("wb") as whole:
            whole.write(header_of(arrays)[0])
            for name in names:
                whole.write(offsets[name].data)
            for name in names:
                files[name].seek(0)
                shutil.copyfileobj(files[name], whole)


def surround(
    sequences: Ragged,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    is_empty_absent: bool = False,
) -> Ragged:
    """Put ids around every sequence.

    With ``is_empty_absent`` an empty one, which stands for a source that the example lacks, stays empty.
    """
    is_there = (sequences.lengths > 0) | (not is_empty_absent)
    offsets = np.zeros_like(sequences.offsets)
    np.cumsum(np.where(is_there, sequences.lengths + len(prefix) + len(suffix), 0), out=offsets[1:])
    values = np.empty(offsets[-1], dtype=np.int32)
    # What is not claimed by a prefix or suffix takes the sequences' own ids, in order.
    is_inside = np.ones(len(values), dtype=bool)
    starts, ends = offsets[:-1][is_there], offsets[1:][is_there]
    for where, ids in ((starts, prefix), (ends - len(suffix), suffix)):
        for place, token in enumerate(ids):
            values[where + place] = token
            is_inside[where + place] = False
    values[is_inside] = sequences.values
    return Ragged(values, offsets)


def prepare_side(
    encoded: Ragged,
    side: Side,
    *,
    is_empty_absent: bool = False,
) -> tuple[Prepared, int]:
    """Cut a stream's bare sequences and put ids around them.

    Returns:
        The sequences that the model reads, and how many were cut.
    """
    most = np.iinfo(np.int64).max if side.max_tokens is None else side.max_tokens
    lengths = encoded.lengths
    num_cut = int((lengths > most).sum())
    around = len(side.prefix) + len(side.suffix)
    prepared = np.where((lengths > 0) | (not is_empty_absent), np.minimum(lengths, most) + around, 0)

    def make(rows: IntArray) -> Ragged:
        cut, _ = take(encoded, rows).truncated(most)
        return surround(cut, side.prefix, side.suffix, is_empty_absent=is_empty_absent)

    # 32 bits are enough, and half the memory where there are tens of millions of sequences.
    return Prepared(prepared.astype(np.int32), make), num_cut


def surrounded(sequences: Ragged, begin: int, end: int) -> Prepared:
    """Put one id before every sequence and one behind it."""
    return prepare_side(sequences, Side(stream="", prefix=(begin,), suffix=(end,)))[0]


def join(streams: Sequence[Ragged]) -> Ragged:
    """Put streams of N sequences end to end: sequence n of stream k becomes number ``k * N + n``."""
    starts = np.cumsum([0, *(len(stream.values) for stream in streams)])
    offsets = [stream.offsets[:-1] + start for stream, start in zip(streams, starts, strict=False)]
    values = np.concatenate([stream.values for stream in streams])
    return Ragged(values, np.concatenate([*offsets, starts[-1:]]))


def prepare_beside(first: Prepared, second: Ragged) -> Prepared:
    """Put sequence n of one stream behind sequence n of another."""
    return Prepared(first.lengths + second.lengths, lambda rows: beside(first.make(rows), take(second, rows)))


def beside(first: Ragged, second: Ragged) -> Ragged:
    """Put sequence n of one stream behind sequence n of another, for all of them."""
    both = join([first, second])
    count = len(first)
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    pairs = take(both, order)
    # Every second boundary lies between two pairs; the others lie within one.
    return Ragged(pairs.values, pairs.offsets[::2])


def take(stream: Ragged, rows: IntArray) -> Ragged:
    """Take some sequences of a stream, in the order of ``rows``."""
    starts = stream.offsets[rows]
    return stream.parts(starts, stream.offsets[rows + 1] - starts)


# Batches, for training and for measuring losses.


_LOG = logging.getLogger(__name__)


BatchT = TypeVar("BatchT")


class LineData(ABC, Generic[BatchT]):
    """Lines as batches of similar length.

    Args:
        lines: Ids of each line as the model reads them.
        batch_tokens: Largest number of padded positions of a batch; or given batches.
        seed: Seed of the batches.
    """

    def __init__(
        self,
        lines: Prepared,
        batch_tokens: int | LengthBatches,
        seed: int,
    ) -> None:
        self._lines = lines
        self._batches = batches_of(lines.lengths, batch_tokens, seed)

    def __len__(self) -> int:
        return len(self._lines)

    def epoch(self, index: int) -> list[IntArray]:
        """Return the line numbers of each global batch of an epoch, in training order."""
        return self._batches.epoch(index)

    @abstractmethod
    def batch(self, rows: IntArray, epoch: int = 0) -> BatchT:
        """Make the batch of some lines, on the CPU; all epochs are alike."""

    def in_order(self) -> Iterator[tuple[IntArray, BatchT]]:
        """Iterate over all lines once, the longest first: their numbers and batch."""
        return ((rows, self.batch(rows)) for rows in self._batches.in_order())


class EpochStream(Protocol):
    """A stream that is another in every epoch, always of the same examples in the same order."""

    def __len__(self) -> int: ...

    def epoch(self, index: int, seed: int) -> Ragged:
        """Make the sequences of an epoch; they depend on its number and the seed alone."""
        ...


@dataclass(frozen=True)
class SampledText:
    """A stream that is segmented anew each epoch (unigram sampling, BPE dropout).

    Attributes:
        lines: Its text.
        tokenizer: The tokenizer.
        alpha: Smoothing of unigram sampling, or the dropout probability of BPE.
    """

    lines: Sequence[str]
    tokenizer: Tokenizer
    alpha: float

    def __len__(self) -> int:
        return len(self.lines)

    def epoch(self, index: int, seed: int) -> Ragged:
        """Segment all lines for an epoch."""
        rng = random.Random(derive_seed(seed, "segmentation", index) % 2**32)
        return Ragged.of(
            row for chunk in chunks(self.lines) for row in self.tokenizer.encode(chunk, self.alpha, rng)
        )


@dataclass(frozen=True)
class _Epoch:
    """An epoch's sequences as the model sees them."""

    index: int
    inputs: Inputs
    starts: NDArray[np.integer]  # what the decoder reads first, [N]
    target: Prepared
    batches: LengthBatches


class Seq2SeqData:
    """Examples with sources, contexts and a target, as batches.

    Attributes:
        view: What a batch holds.
        num_cut: By stream, how many sequences were longer than their side allows.
    """

    def __init__(
        self,
        encoded: Encoded,
        view: View,
        *,
        batch_tokens: int | LengthBatches,
        seed: int = 0,
        drawn: Mapping[str, EpochStream] | None = None,
        states: Mapping[str, FrozenStates] | None = None,
    ) -> None:
        """Set up the batches of a split.

        Args:
            encoded: The split's ids.
            view: What a batch holds.
            batch_tokens: Largest number of padded positions of a batch on any one side; or given batches,
                whose lengths do not depend on ids.
            seed: Seed of the batches and of all random draws.
            drawn: Streams that are drawn anew each epoch, by name.
            states: Precomputed states of a frozen encoder that take the place of a stream's tokens, by name;
                they were computed from the sequences with what the encoder wants around them.

        Raises:
            DataError: A stream of the view is missing or has another number of examples, or there are none.
        """
        self.view = view
        self.num_cut: dict[str, int] = {}
        self._encoded, self._batch_tokens, self._seed = encoded, batch_tokens, seed
        self._drawn, self._states = dict(drawn or {}), dict(states or {})
        for name, stream in {**self._drawn, **self._states}.items():
            if len(stream) != len(encoded):
                raise DataError(
                    f"stream '{name}' has {len(stream)} sequences, not {len(encoded)} as the others"
                )
        self._current = self._make_epoch(0)
        for name, num_cut in self.num_cut.items():
            if num_cut:
                _LOG.warning("%s: %d of %d sequences were cut", name, num_cut, len(encoded))

    def __len__(self) -> int:
        return len(self._encoded)

    def epoch(self, index: int) -> list[IntArray]:
        """Draw up the global batches of an epoch: row numbers of each, in training order."""
        return self._at(index).batches.epoch(index)

    def batch(self, rows: IntArray, epoch: int) -> Batch:
        """Make the batch of some rows [B], on the CPU; what is drawn depends on the epoch."""
        now = self._at(epoch)
        sources, contexts = now.inputs.pack(rows)
        output = pack(now.target, rows)
        starts_B1 = torch.from_numpy(now.starts[rows].astype(np.int64))[:, None]
        # Shifting moves the last token of a shorter target onto its padding, where PAD replaces it.
        shifted = torch.cat([starts_B1, output.ids[:, :-1]], dim=1)
        target_input = Tokens(shifted.where(output.valid, PAD), output.valid)
        return Batch(sources, target_input, output.ids, contexts)

    def in_order(self) -> Iterator[tuple[IntArray, Batch]]:
        """Go through all examples once, the longest first, with the draws of epoch 0: for losses."""
        return ((rows, self.batch(rows, 0)) for rows in self.batches.in_order())

    def inputs(self) -> Inputs:
        """Return the model's input for these examples, with the draws of epoch 0: for decoding."""
        return self._at(0).inputs

    @property
    def batches(self) -> LengthBatches:
        """Batches of epoch 0's sequences; those of all epochs where nothing is drawn."""
        return self._at(0).batches

    def longest(self) -> tuple[int, int]:
        """Measure the longest source and the longest target, with what is put around them."""
        now = self._at(0)
        sources = max(int(source.lengths.max(initial=0)) for source in now.inputs.sources)
        return sources, int(now.target.lengths.max(initial=0))

    def _at(self, index: int) -> _Epoch:
        if self._current.index != index:
            is_fixed = not self._drawn and not self.view.is_one_source_drawn
            # Without draws all epochs have the same sequences: only the order of their batches differs.
            self._current = replace(self._current, index=index) if is_fixed else self._make_epoch(index)
        return self._current

    def _make_epoch(self, index: int) -> _Epoch:
        drawn = {
            name: stream.epoch(index, derive_seed(self._seed, name)) for name, stream in self._drawn.items()
        }
        encoded = Encoded({**self._encoded.streams, **drawn})
        inputs, self.num_cut = prepare_inputs(encoded, self.view, self._states)
        target = self.view.target
        prepared, self.num_cut[target.stream] = prepare_side(encoded.stream(target.stream), target)
        if self.view.is_one_source_drawn:
            inputs = replace(inputs, sources=[self._draw_source(index, inputs.sources)])
        # contexts do not count: systems with and without them train on the same batches
        lengths = [stream.lengths for stream in (*inputs.sources, prepared)]
        batches = batches_of(np.stack(lengths, axis=1), self._batch_tokens, self._seed)
        return _Epoch(index, inputs, _starts(encoded, self.view), prepared, batches)

    def _draw_source(self, index: int, sources: Sequence[Stream]) -> Prepared:
        """Draw a source for every example, with equal probability among those it has."""
        streams = [stream for stream in sources if isinstance(stream, Prepared)]
        if len(streams) < len(sources):
            raise DataError("is_one_source_drawn draws among token sources; precomputed states are given")
        lengths_NK = np.stack([stream.lengths for stream in streams], axis=1)
        is_there_NK = lengths_NK > 0
        # An example without any source keeps its first one, which is empty.
        is_there_NK[~is_there_NK.any(1), 0] = True
        random_N = generator_for(self._seed, "one source", index).random(len(self))
        # The rank of the chosen source among those present; its index is where the running count reaches it.
        wanted_N = np.floor(random_N * is_there_NK.sum(1)).astype(np.int64) + 1
        drawn_N = (np.cumsum(is_there_NK, axis=1) == wanted_N[:, None]).argmax(1)

        def make(rows: IntArray) -> Ragged:
            count = np.arange(len(rows))
            return take(join([stream.make(rows) for stream in streams]), drawn_N[rows] * len(rows) + count)

        return Prepared(np.take_along_axis(lengths_NK, drawn_N[:, None], axis=1)[:, 0], make)


def prepare_inputs(
    encoded: Encoded,
    view: View,
    states: Mapping[str, FrozenStates] | None = None,
) -> tuple[Inputs, dict[str, int]]:
    """Prepare the sources and contexts of a view, for training and for decoding.

    Returns:
        What the model reads, and by stream how many sequences were cut.
    """
    num_cut: dict[str, int] = {}

    def prepare(side: Side, *, is_optional: bool = False) -> Stream:
        if states and side.stream in states:
            return states[side.stream]
        prepared, num_cut[side.stream] = prepare_side(
            encoded.stream(side.stream), side, is_empty_absent=is_optional
        )
        return prepared

    # of several sources an example may lack some; the only one is there even when it is empty
    sources = [prepare(side, is_optional=len(view.sources) > 1) for side in view.sources]
    if view.language is not None:
        languages = encoded.stream(view.language)
        sources = [prepare_beside(source, languages) for source in sources if isinstance(source, Prepared)]
    contexts = {name: prepare(side) for name, side in view.contexts.items()}
    return Inputs(sources, contexts, view.length_source), num_cut


def _starts(encoded: Encoded, view: View) -> NDArray[np.integer]:
    if view.language is None:
        return np.broadcast_to(np.int64(view.target_start), len(encoded))
    return encoded.stream(view.language).values
