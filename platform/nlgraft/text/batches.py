"""Batches of sentences that are alike in length, and the arrays they become.

Padding is the whole lever of training speed on short sentences: batches of random sentences are more than
half padding, these are not. Which sentences share a batch depends on the seed and the epoch alone, never on
the number of workers: a global batch is drawn up first and its rows are dealt out afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nlgraft.errors import DataError, StoreError
from nlgraft.text.tokenizers import PAD

IntArray = NDArray[np.int64]

_FILL = (
    0.92  # of a batch's budget, to begin with: padding takes the rest (least padding and fullest on Multi30k)
)


@dataclass(frozen=True)
class Ragged:
    """Sequences of ids of different lengths, end to end.

    Attributes:
        values: All ids, int32 [total].
        offsets: Sequence n is ``values[offsets[n]:offsets[n + 1]]``, int64 [N + 1].
    """

    values: NDArray[np.int32]
    offsets: IntArray

    @staticmethod
    def of(sequences: Iterable[Sequence[int]]) -> Ragged:
        """Put sequences end to end.

        Args:
            sequences: Ids of every sequence.

        Returns:
            The same sequences.
        """
        rows = [np.asarray(row, dtype=np.int32) for row in sequences]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Ragged(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> IntArray:
        """Length of every sequence, [N]."""
        return np.diff(self.offsets)

    def truncated(self, max_length: int) -> tuple[Ragged, int]:
        """Cut every sequence to its first ids.

        Args:
            max_length: Longest length allowed.

        Returns:
            The sequences, and how many were cut: none is dropped, and a caller reports the count.
        """
        lengths = self.lengths
        num_cut = int((lengths > max_length).sum())
        if num_cut == 0:
            return self, 0
        position = np.arange(len(self.values)) - np.repeat(self.offsets[:-1], lengths)
        offsets = np.zeros_like(self.offsets)
        np.cumsum(np.minimum(lengths, max_length), out=offsets[1:])
        return Ragged(self.values[position < max_length], offsets), num_cut

    def padded(
        self, rows: IntArray, *, first: int | None = None, last: int | None = None
    ) -> tuple[IntArray, NDArray[np.bool_]]:
        """Pack chosen sequences into a rectangle.

        Args:
            rows: Which sequences, [B].
            first: Id put before every sequence, e.g. BOS.
            last: Id put after every sequence, e.g. EOS.

        Returns:
            Ids [B, T] with PAD behind each sequence, and which of them are real, [B, T]. T is the longest
            sequence with what was put around it.
        """
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        lead = 0 if first is None else 1
        whole = lengths + lead + (0 if last is None else 1)
        width = int(whole.max(initial=0))
        column = np.arange(width)
        ids = np.full((len(rows), width), PAD, dtype=np.int64)
        valid = column[None, :] < whole[:, None]
        within = (column[None, :] >= lead) & (column[None, :] < (lengths + lead)[:, None])
        where = (self.offsets[rows] - lead)[:, None] + column[None, :]
        ids[within] = self.values[where[within]]
        if first is not None and width:
            ids[:, 0] = first
        if last is not None:
            ids[np.arange(len(rows)), whole - 1] = last
        return ids, valid

    def write(self, path: Path) -> None:
        """Write the sequences as safetensors.

        Args:
            path: The file.
        """
        save_file({"values": self.values, "offsets": self.offsets}, path)

    @staticmethod
    def read(path: Path) -> Ragged:
        """Read what ``write`` wrote.

        Args:
            path: The file.

        Returns:
            The sequences.

        Raises:
            StoreError: The file is missing or holds something else.
        """
        try:
            arrays = load_file(path)
            return Ragged(arrays["values"], arrays["offsets"])
        except (OSError, SafetensorError, KeyError) as error:
            raise StoreError(f"{path}: not a file of id sequences ({error})") from error


@dataclass(frozen=True)
class PaddingReport:
    """How much of an epoch's batches is text.

    Attributes:
        num_batches: Batches of the epoch.
        efficiency: Real positions over padded positions, over all sides.
        side_efficiency: The same for every side, in the order of the lengths' columns.
        num_over_budget: Batches of one example that alone is longer than the budget.
    """

    num_batches: int
    efficiency: float
    side_efficiency: tuple[float, ...]
    num_over_budget: int


class TokenBatches:
    """Batches of a token budget from examples of similar length on every side.

    An epoch divides the examples in two again and again, each time along the side where most of the padding
    is, until every part fits the budget; then it shuffles the parts. Lengths carry a little noise, so that
    every epoch has other batches.

    **Determinism**: an epoch's batches depend on the lengths, the budget, the noise, the seed and the number
    of the epoch. Every example is in exactly one batch of each epoch.
    """

    def __init__(self, lengths: IntArray, batch_tokens: int, seed: int, *, noise_tokens: float = 1.0) -> None:
        """Set up the batches of a corpus.

        Args:
            lengths: Positions that each example takes on each side, special tokens included, [N, sides], or
                [N] for one side.
            batch_tokens: Most padded positions of a batch on any one side: rows times longest. An example
                that alone is longer gets a batch of its own.
            seed: Of the noise and of the order of batches.
            noise_tokens: Examples are compared as if up to this many tokens longer. Up to 1, only which of
                equally long ones go together is left to chance; more mixes lengths and costs padding.

        Raises:
            DataError: There are no examples, or the budget is not positive.
        """
        lengths = np.asarray(lengths, dtype=np.int64)
        self.lengths: IntArray = lengths[:, None] if lengths.ndim == 1 else lengths
        if self.lengths.shape[0] == 0:
            raise DataError("no examples to make batches from")
        if batch_tokens < 1:
            raise DataError(f"batch_tokens is {batch_tokens}; give a positive number of positions")
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.noise_tokens = noise_tokens

    def epoch(self, index: int) -> list[IntArray]:
        """Draw up the batches of an epoch.

        Args:
            index: Number of the epoch, from 0.

        Returns:
            Example ids of every batch, in training order.
        """
        rng = np.random.default_rng([self.seed, index])
        batches = self._divide(self.lengths + rng.random(self.lengths.shape) * self.noise_tokens)
        return [batches[number] for number in rng.permutation(len(batches))]

    def in_order(self) -> list[IntArray]:
        """Draw up batches for evaluation: without noise, the longest first.

        Returns:
            Example ids of every batch.
        """
        batches = self._divide(self.lengths)
        return sorted(batches, key=lambda batch: -int(self.lengths[batch].max()))

    def _divide(self, keys: NDArray[np.int64] | NDArray[np.float64]) -> list[IntArray]:
        longest = self.lengths.max(axis=1)
        num_batches = math.ceil(longest.sum() / (self.batch_tokens * _FILL))
        batches: list[IntArray] = []
        waiting = [(np.arange(len(longest)), max(1, num_batches))]
        while waiting:
            rows, parts = waiting.pop()
            most = self.lengths[rows].max(axis=0)
            if len(rows) == 1 or len(rows) * most.max() <= self.batch_tokens:
                batches.append(rows)
                continue
            first_parts = max(1, parts // 2)
            side = int(np.argmax(most - self.lengths[rows].mean(axis=0)))
            rows = rows[np.argsort(keys[rows, side], kind="stable")]
            tokens = np.cumsum(longest[rows])
            middle = int(np.searchsorted(tokens, tokens[-1] * first_parts / max(2, parts)))
            middle = min(max(middle, 1), len(rows) - 1)
            waiting.append((rows[middle:], max(1, parts - first_parts)))
            waiting.append((rows[:middle], first_parts))
        return batches

    def padding(self, batches: Sequence[IntArray]) -> PaddingReport:
        """Measure how much of some batches is text.

        Args:
            batches: As ``epoch`` or ``in_order`` gave them.

        Returns:
            The share of real positions.
        """
        sides = range(self.lengths.shape[1])
        taken = [self.lengths[batch] for batch in batches]
        real = [sum(int(rows[:, side].sum()) for rows in taken) for side in sides]
        padded = [sum(len(rows) * int(rows[:, side].max()) for rows in taken) for side in sides]
        return PaddingReport(
            num_batches=len(batches),
            efficiency=sum(real) / max(1, sum(padded)),
            side_efficiency=tuple(r / max(1, p) for r, p in zip(real, padded, strict=True)),
            num_over_budget=sum(int(rows.max()) > self.batch_tokens for rows in taken),
        )


def shard(batch: IntArray, rank: int, world_size: int) -> IntArray:
    """Deal the rows of a global batch to one worker.

    Args:
        batch: Example ids of the global batch.
        rank: The worker.
        world_size: Number of workers.

    Returns:
        Every ``world_size``-th row; empty when the batch has fewer rows than workers.
    """
    return batch[rank::world_size]
