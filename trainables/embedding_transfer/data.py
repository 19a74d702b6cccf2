"""Translation examples as the training loop reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.text.batches import Ragged, TokenBatches
from nlgraft.text.tokenizers import BOS, EOS, Tokenizer
from nlgraft.training.seeds import derive_seed

Rows = NDArray[np.int64]
SIDES = ("source", "target")


@dataclass(frozen=True)
class Encoded:
    """A split in token ids, without begin and end.

    Attributes:
        source: Source sentences.
        target: Target sentences.
    """

    source: Ragged
    target: Ragged

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Positions of every example on each side, the end of sentence counted, [N, 2]."""
        return np.stack([self.source.lengths + 1, self.target.lengths + 1], axis=1)

    def first(self, count: int) -> Encoded:
        """Take the first examples.

        Args:
            count: How many, at most.

        Returns:
            Those examples.
        """
        num = min(count, len(self))
        sides = (self.source, self.target)
        return Encoded(*(Ragged(s.values[: s.offsets[num]], s.offsets[: num + 1]) for s in sides))

    def write(self, directory: Path, split: str) -> None:
        """Write both sides.

        Args:
            directory: Artifact being written.
            split: Name of the split.
        """
        for side in SIDES:
            getattr(self, side).write(directory / f"{split}-{side}.safetensors")

    @classmethod
    def read(cls, directory: Path, split: str) -> Encoded:
        """Read what ``write`` wrote.

        Args:
            directory: The artifact.
            split: Name of the split.

        Returns:
            The split.
        """
        return cls(*(Ragged.read(directory / f"{split}-{side}.safetensors") for side in SIDES))

    def batch(self, rows: Rows) -> Batch:
        """Make the batch of some examples: sources end in EOS, targets are read from BOS and end in EOS.

        Args:
            rows: Example numbers [B].

        Returns:
            The batch.
        """
        source = _tokens(*self.source.padded(rows, last=EOS))
        target_input = _tokens(*self.target.padded(rows, first=BOS))
        target_output = torch.from_numpy(self.target.padded(rows, last=EOS)[0])
        return Batch([source], target_input, target_output)


def _tokens(ids: NDArray[np.int64], valid: NDArray[np.bool_]) -> Tokens:
    return Tokens(torch.from_numpy(ids), torch.from_numpy(valid))


@dataclass(frozen=True)
class Sampler:
    """Segments training text anew in every epoch (subword regularisation, BPE-dropout).

    Attributes:
        lines: Source and target lines.
        tokenizers: Source and target tokenizer.
        alpha: Smoothing or dropout probability.
        max_tokens: Longer sequences are cut.
    """

    lines: tuple[list[str], list[str]]
    tokenizers: tuple[Tokenizer, Tokenizer]
    alpha: float
    max_tokens: int

    def epoch(self, index: int, seed: int) -> Encoded:
        """Segment the text for an epoch.

        Args:
            index: Number of the epoch.
            seed: Of the training.

        Returns:
            The epoch's examples.
        """
        sides = [
            Ragged.of(tokenizer.encode(lines, self.alpha, derive_seed(seed, "segment", side, index) % 2**31))
            for side, lines, tokenizer in zip(SIDES, self.lines, self.tokenizers, strict=True)
        ]
        return Encoded(*(ragged.truncated(self.max_tokens)[0] for ragged in sides))


class EpochText(Protocol):
    """Text that is another in every epoch."""

    def epoch(self, index: int, seed: int) -> Encoded:
        """Give the examples of an epoch, always of the same lines in the same order."""
        ...


class TranslationData:
    """Batches of similar lengths; the training loop's view of a corpus."""

    def __init__(
        self, encoded: Encoded, batch_tokens: int, seed: int, sampler: EpochText | None = None
    ) -> None:
        """Set up the data.

        Args:
            encoded: Training examples.
            batch_tokens: Most padded positions of a batch on one side.
            seed: Of the order and of sampled segmentations.
            sampler: Gives every epoch its own text (other segmentations, holes); None: the fixed one.
        """
        self._encoded = encoded
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._sampler = sampler
        self._sampled = lru_cache(maxsize=1)(self._sample)

    def _sample(self, index: int) -> Encoded:
        return self._encoded if self._sampler is None else self._sampler.epoch(index, self._seed)

    def epoch(self, index: int) -> Sequence[Rows]:
        """Give the rows of each global batch of an epoch."""
        return TokenBatches(self._sampled(index).lengths, self._batch_tokens, self._seed).epoch(index)

    def batch(self, rows: Rows, epoch: int) -> Batch:
        """Make the batch of some rows."""
        return self._sampled(epoch).batch(rows)


def batches_in_order(encoded: Encoded, batch_tokens: int) -> Iterator[tuple[Rows, Batch]]:
    """Go once through a split, for evaluation.

    Args:
        encoded: The split.
        batch_tokens: Most padded positions of a batch on one side.

    Yields:
        Rows and their batch, the longest first.
    """
    for rows in TokenBatches(encoded.lengths, batch_tokens, seed=0).in_order():
        yield rows, encoded.batch(rows)
