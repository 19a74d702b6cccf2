"""What a model reads, as streams of sequences from which batches are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.nn.batch import Tokens
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.text.batches import Ragged
from nlgraft.text.tokenizers import PAD

Rows = NDArray[np.int64]


Stream = Ragged | FrozenStates
"""Token sequences as the model sees them, or the precomputed states of a frozen encoder on them."""


def stream_lengths(stream: Stream) -> Rows:
    """Measure every sequence of a stream.

    Args:
        stream: Token sequences or states.

    Returns:
        Tokens of each, [N].
    """
    return np.diff(stream.offsets)


def pack(stream: Stream, rows: Rows) -> Tokens:
    """Pack sequences into a rectangle with at least one column.

    Args:
        stream: Sequences as the model sees them, or states.
        rows: Which of them, [B].

    Returns:
        Tokens [B, T] on the CPU.
    """
    if isinstance(stream, FrozenStates):
        return stream.tokens(rows.tolist())
    ids, valid = stream.padded(rows)
    if ids.shape[1] == 0:
        ids, valid = np.full((len(rows), 1), PAD, dtype=np.int64), np.zeros((len(rows), 1), dtype=bool)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(valid))


@dataclass(frozen=True)
class Inputs:
    """What a model reads to produce text: sequences as the model sees them, with EOS and the like.

    Attributes:
        sources: One stream for each source; an empty sequence is a source that the example lacks.
        contexts: One stream for each fusion context.
    """

    sources: Sequence[Stream]
    contexts: Mapping[str, Stream] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources[0])

    @property
    def lengths(self) -> Rows:
        """Tokens of all sources of each example, [N]."""
        return np.sum([stream_lengths(stream) for stream in self.sources], axis=0)

    def pack(self, rows: Rows) -> tuple[list[Tokens], dict[str, Tokens]]:
        """Pack some examples.

        Args:
            rows: Example numbers [B].

        Returns:
            Sources and contexts, each [B, T].
        """
        return (
            [pack(stream, rows) for stream in self.sources],
            {name: pack(stream, rows) for name, stream in self.contexts.items()},
        )
