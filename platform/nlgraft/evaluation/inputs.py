"""Inputs of a model, as streams of sequences from which batches are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.text.batches import Prepared, Ragged
from nlgraft.text.tokenizers import PAD

Rows = NDArray[np.int64]


Stream = Ragged | Prepared | FrozenStates
"""Token sequences as the model sees them, or the precomputed states of a frozen encoder on them."""


def pack(stream: Stream, rows: Rows) -> Tokens:
    """Pack some sequences of a stream, ``rows`` [B], into tokens [B, T] on the CPU, with T at least 1."""
    if isinstance(stream, FrozenStates):
        return stream.tokens(rows.tolist())
    ids, valid = stream.padded(rows)
    # Attention needs one position at least; here it is padding.
    if ids.shape[1] == 0:
        shape = (len(rows), 1)
        ids, valid = np.full(shape, PAD), np.zeros(shape, dtype=bool)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(valid))


@dataclass(frozen=True)
class Inputs:
    """Sequences that a model reads to produce text, with EOS and the like.

    Attributes:
        sources: One stream for each source; an empty sequence is a source that the example lacks.
        contexts: One stream for each fusion context.
        length_source: Index of the source that limits the length of a hypothesis; None: the longest of an
            example.
    """

    sources: Sequence[Stream]
    contexts: Mapping[str, Stream] = field(default_factory=dict)
    length_source: int | None = None

    def __len__(self) -> int:
        return len(self.sources[0])

    @property
    def lengths(self) -> Rows:
        """Tokens of all sources of each example, [N]."""
        return np.sum([stream.lengths for stream in self.sources], axis=0)

    def pack(self, rows: Rows) -> tuple[list[Tokens], dict[str, Tokens]]:
        """Pack the sources and contexts of some examples, ``rows`` [B], each into tokens [B, T]."""
        return (
            [pack(stream, rows) for stream in self.sources],
            {name: pack(stream, rows) for name, stream in self.contexts.items()},
        )


def with_foreign_source(inputs: Inputs, source: int, seed: int) -> Inputs:
    """Replace one source of every example by another example's sentence: an adversarial test.

    The loss in quality shows how much a system relies on that source. References stay as they are.

    Args:
        inputs: The examples.
        source: Index of the source that is replaced.
        seed: Seed of the draw; each example draws among all sentences that differ from its own.

    Raises:
        DataError: The source is none, is precomputed, or all of its sentences are alike.

    Source: Huang et al. (2021), Table 8.
    """
    if not 0 <= source < len(inputs.sources):
        raise DataError(f"source {source} of examples with {len(inputs.sources)}; they count from 0")
    stream = inputs.sources[source]
    if isinstance(stream, FrozenStates):
        raise DataError(f"source {source} holds precomputed states: replace its tokens, then compute them")
    sentences = [tuple(row.tolist()) for row in stream]
    number_of = {sentence: number for number, sentence in enumerate(dict.fromkeys(sentences))}
    if len(number_of) < 2:
        raise DataError(f"all {len(sentences)} sentences of source {source} are alike: none is another's")
    content_N = np.array([number_of[sentence] for sentence in sentences])
    random = np.random.default_rng(seed)
    drawn_N = np.arange(len(sentences))
    # Only examples that drew a sentence equal to their own draw again.
    while len(unchanged := (content_N[drawn_N] == content_N).nonzero()[0]):
        drawn_N[unchanged] = random.integers(0, len(sentences), len(unchanged))
    foreign = Ragged.of([sentences[row] for row in drawn_N])
    return replace(inputs, sources=[foreign if k == source else old for k, old in enumerate(inputs.sources)])
