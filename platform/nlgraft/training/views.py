"""Encoded corpora and the views of them that a batch holds.

A corpus is encoded once, as bare ids. What is put around a sequence (EOS, a language id), how long it may
be, which streams are sources, contexts and target, and whether one source is drawn at a time, is the view's
business, so that stages share the encoded data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nlgraft.errors import DataError, StoreError, nearest
from nlgraft.text.batches import Ragged
from nlgraft.text.tokenizers import BOS, EOS, Tokenizer

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Encoded:
    """One split as ids: sequence n of every stream belongs to example n.

    Attributes:
        streams: By role: ``source 0``, ``source 1``, ``target``, ``context electra``...; without BOS and EOS.
    """

    streams: Mapping[str, Ragged]

    def __post_init__(self) -> None:
        counts = {role: len(stream) for role, stream in self.streams.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{role} {count}" for role, count in counts.items())
            raise DataError(f"the encoded streams differ in length: {told}")

    def __len__(self) -> int:
        return len(next(iter(self.streams.values()), ()))

    def stream(self, role: str) -> Ragged:
        """Look up a stream.

        Args:
            role: E.g. ``source 0``.

        Returns:
            Its sequences.

        Raises:
            DataError: There is no such stream.
        """
        if role not in self.streams:
            raise DataError(f"no encoded stream '{role}'. {nearest(role, sorted(self.streams))}")
        return self.streams[role]

    def write(self, path: Path) -> None:
        """Write all streams into one safetensors file.

        Args:
            path: File to write.
        """
        arrays = {}
        for role, stream in self.streams.items():
            arrays[f"{role}/values"], arrays[f"{role}/offsets"] = stream.values, stream.offsets
        save_file(arrays, path)

    @staticmethod
    def read(path: Path) -> Encoded:
        """Read what ``write`` wrote.

        Args:
            path: File to read.

        Returns:
            The encoded split.

        Raises:
            StoreError: The file is missing or holds something else.
        """
        try:
            arrays = load_file(path)
            roles = [name.removesuffix("/values") for name in arrays if name.endswith("/values")]
            return Encoded(
                {role: Ragged(arrays[f"{role}/values"], arrays[f"{role}/offsets"]) for role in roles}
            )
        except (OSError, SafetensorError, KeyError) as error:
            raise StoreError(f"{path}: not an encoded corpus ({error})") from error


def encode_streams(lines: Mapping[str, Sequence[str]], tokenizers: Mapping[str, Tokenizer]) -> Encoded:
    """Encode text streams with their tokenizers.

    Args:
        lines: Text by role, as ``Corpus.streams()`` gives it.
        tokenizers: By role; a role without one is left out (labels, documents).

    Returns:
        The encoded split.

    Raises:
        DataError: A tokenizer is given for a stream that is not there, or the streams differ in length.
    """
    missing = sorted(set(tokenizers) - set(lines))
    if missing:
        raise DataError(f"no text of {', '.join(missing)} to encode; the corpus has: {', '.join(lines)}")
    return Encoded(
        {role: Ragged.of(tokenizer.encode(list(lines[role]))) for role, tokenizer in tokenizers.items()}
    )


@dataclass(frozen=True, kw_only=True)
class Side:
    """One stream of a view, and what is put around its sequences.

    Attributes:
        stream: Role in the encoded corpus.
        prefix: Ids before every sequence.
        suffix: Ids after every sequence, e.g. EOS, or EOS and a language id.
        max_tokens: Longest sequence before these are put around it; longer ones are cut. None: any length.
    """

    stream: str
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = (EOS,)
    max_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """Which tokenisations a batch holds, and as what.

    Attributes:
        sources: One side per source. Of several, an example may lack some (an empty sequence).
        target: What is learned; its suffix is predicted too.
        contexts: Input of each fusion context, by the context's name.
        target_start: Id that the decoder reads first: BOS, or a language id.
        is_one_source_drawn: Whether a batch holds one source per example, drawn anew each epoch with equal
            probability among those the example has (TRICE's single-source stage).
    """

    sources: tuple[Side, ...] = (Side(stream="source 0"),)
    target: Side = Side(stream="target")
    contexts: Mapping[str, Side] = field(default_factory=dict)
    target_start: int = BOS
    is_one_source_drawn: bool = False

    def __post_init__(self) -> None:
        if self.is_one_source_drawn and len(self.sources) < 2:
            raise DataError("is_one_source_drawn needs at least two sources in the view")

    def sides(self) -> list[Side]:
        """List the sides: sources, contexts, target last."""
        return [*self.sources, *self.contexts.values(), self.target]


def surround(
    sequences: Ragged, prefix: Sequence[int], suffix: Sequence[int], *, is_empty_absent: bool = False
) -> Ragged:
    """Put ids around every sequence.

    Args:
        sequences: Bare sequences.
        prefix: Ids before each.
        suffix: Ids after each.
        is_empty_absent: Whether an empty sequence stays empty: the example has no such source.

    Returns:
        The longer sequences.
    """
    lengths = sequences.lengths
    is_there = (lengths > 0) | (not is_empty_absent)
    offsets = np.zeros_like(sequences.offsets)
    np.cumsum(np.where(is_there, lengths + len(prefix) + len(suffix), 0), out=offsets[1:])
    values = np.empty(offsets[-1], dtype=np.int32)
    is_inside = np.ones(len(values), dtype=bool)
    starts, ends = offsets[:-1][is_there], offsets[1:][is_there]
    for where, ids in ((starts, prefix), (ends - len(suffix), suffix)):
        for place, token in enumerate(ids):
            values[where + place] = token
            is_inside[where + place] = False
    values[is_inside] = sequences.values
    return Ragged(values, offsets)


def prepare_side(encoded: Ragged, side: Side, *, is_empty_absent: bool = False) -> tuple[Ragged, int]:
    """Cut a stream's sequences and put ids around them.

    Args:
        encoded: Bare sequences.
        side: What to do with them.
        is_empty_absent: Whether an empty sequence stays empty.

    Returns:
        What the model sees, and how many sequences were cut.
    """
    cut, num_cut = encoded, 0
    if side.max_tokens is not None:
        cut, num_cut = encoded.truncated(side.max_tokens)
    return surround(cut, side.prefix, side.suffix, is_empty_absent=is_empty_absent), num_cut


def join(streams: Sequence[Ragged]) -> Ragged:
    """Put streams one after the other: sequence n of stream k becomes number ``k * N + n``.

    Args:
        streams: Streams of N sequences each.

    Returns:
        One stream of K * N sequences.
    """
    starts = np.cumsum([0, *(len(stream.values) for stream in streams)])
    offsets = [stream.offsets[:-1] + start for stream, start in zip(streams, starts, strict=False)]
    return Ragged(np.concatenate([s.values for s in streams]), np.concatenate([*offsets, starts[-1:]]))


def take(stream: Ragged, rows: IntArray) -> Ragged:
    """Take some sequences of a stream.

    Args:
        stream: Sequences.
        rows: Which of them, in which order.

    Returns:
        Those sequences.
    """
    lengths = stream.lengths[rows]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.arange(offsets[-1]) + np.repeat(stream.offsets[rows] - offsets[:-1], lengths)
    return Ragged(stream.values[places], offsets)
