"""Encoded corpora, and their sequences as a view selects them.

A corpus is encoded once, as bare ids. What is put around a sequence (EOS, a language id), how long it may
be, which streams are sources, contexts and target, and whether one source is drawn at a time, belongs to the
view, so that stages share the encoded data.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from nlgraft.basics.errors import DataError, StoreError, nearest
from nlgraft.text.batches import Prepared, Ragged
from nlgraft.text.mapped_arrays import header_of, read_mapped
from nlgraft.training.train_config import Side

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Encoded:
    """One split as ids: sequence n of every stream belongs to example n.

    Attributes:
        streams: By name: ``source 0``, ``source 1``, ``target``, ``context electra``...; without BOS and EOS.
    """

    streams: Mapping[str, Ragged]

    def __post_init__(self) -> None:
        counts = {name: len(stream) for name, stream in self.streams.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(f"the encoded streams differ in length: {listed}")

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
    sequences: Ragged, prefix: Sequence[int], suffix: Sequence[int], *, is_empty_absent: bool = False
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


def prepare_side(encoded: Ragged, side: Side, *, is_empty_absent: bool = False) -> tuple[Prepared, int]:
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
    return Ragged(np.concatenate([s.values for s in streams]), np.concatenate([*offsets, starts[-1:]]))


def prepare_beside(first: Prepared, second: Ragged) -> Prepared:
    """Put sequence n of one stream behind sequence n of another."""
    return Prepared(first.lengths + second.lengths, lambda rows: beside(first.make(rows), take(second, rows)))


def beside(first: Ragged, second: Ragged) -> Ragged:
    """Put sequence n of one stream behind sequence n of another, for all of them."""
    both = join([first, second])
    count = len(first)
    order = np.stack([np.arange(count), count + np.arange(count)], axis=1).ravel()
    pairs = take(both, order)
    # Every second boundary lies between two pairs; the others lie within one.
    return Ragged(pairs.values, pairs.offsets[::2])


def take(stream: Ragged, rows: IntArray) -> Ragged:
    """Take some sequences of a stream, in the order of ``rows``."""
    starts = stream.offsets[rows]
    return stream.parts(starts, stream.offsets[rows + 1] - starts)
