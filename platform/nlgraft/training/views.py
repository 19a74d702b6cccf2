"""Encoded corpora, and their sequences as a view selects them.

A corpus is encoded once, as bare ids. What is put around a sequence (EOS, a language id), how long it may
be, which streams are sources, contexts and target, and whether one source is drawn at a time, belongs to the
view, so that stages share the encoded data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nlgraft.basics.errors import DataError, StoreError, nearest
from nlgraft.text.batches import Ragged
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
        arrays = {}
        for name, stream in self.streams.items():
            arrays[f"{name}/values"], arrays[f"{name}/offsets"] = stream.values, stream.offsets
        save_file(arrays, path)

    @staticmethod
    def read(path: Path) -> Encoded:
        """Read what ``write`` wrote.

        Raises:
            StoreError: The file is missing or holds something else.
        """
        try:
            arrays = load_file(path)
            names = [name.removesuffix("/values") for name in arrays if name.endswith("/values")]
            return Encoded(
                {name: Ragged(arrays[f"{name}/values"], arrays[f"{name}/offsets"]) for name in names}
            )
        except (OSError, SafetensorError, KeyError) as error:
            raise StoreError(f"{path}: not an encoded corpus ({error})") from error


def surround(
    sequences: Ragged, prefix: Sequence[int], suffix: Sequence[int], *, is_empty_absent: bool = False
) -> Ragged:
    """Put ids around every sequence.

    With ``is_empty_absent`` an empty one, which stands for a source that the example lacks, stays empty.
    """
    lengths = sequences.lengths
    is_there = (lengths > 0) | (not is_empty_absent)
    offsets = np.zeros_like(sequences.offsets)
    np.cumsum(np.where(is_there, lengths + len(prefix) + len(suffix), 0), out=offsets[1:])
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


def prepare_side(encoded: Ragged, side: Side, *, is_empty_absent: bool = False) -> tuple[Ragged, int]:
    """Cut a stream's bare sequences and put ids around them.

    Returns:
        The sequences that the model reads, and how many were cut.
    """
    cut, num_cut = encoded, 0
    if side.max_tokens is not None:
        cut, num_cut = encoded.truncated(side.max_tokens)
    return surround(cut, side.prefix, side.suffix, is_empty_absent=is_empty_absent), num_cut


def join(streams: Sequence[Ragged]) -> Ragged:
    """Put streams of N sequences end to end: sequence n of stream k becomes number ``k * N + n``."""
    starts = np.cumsum([0, *(len(stream.values) for stream in streams)])
    offsets = [stream.offsets[:-1] + start for stream, start in zip(streams, starts, strict=False)]
    return Ragged(np.concatenate([s.values for s in streams]), np.concatenate([*offsets, starts[-1:]]))


def beside(first: Ragged, second: Ragged) -> Ragged:
    """Put sequence n of one stream behind sequence n of another."""
    both = join([first, second])
    count = len(first)
    order = np.stack([np.arange(count), count + np.arange(count)], axis=1).ravel()
    pairs = take(both, order)
    # Every second boundary lies between two pairs; the others lie within one.
    return Ragged(pairs.values, pairs.offsets[::2])


def take(stream: Ragged, rows: IntArray) -> Ragged:
    """Take some sequences of a stream, in the order of ``rows``."""
    return stream.parts(stream.offsets[:-1][rows], stream.lengths[rows])
