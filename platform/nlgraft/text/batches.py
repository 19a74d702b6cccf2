"""Batches of sentences of similar length, and the arrays they become.

Padding decides the training speed on short sentences: batches of random sentences are more than half padding,
these are not. The sentences of a batch depend on the seed and the epoch alone, never on the number of
workers: a global batch is formed first, then its rows are distributed over the workers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.text.corpus_config import PAD

IntArray = NDArray[np.int64]

_FILL = 0.92
"""Share of a batch's budget to fill at first, since padding takes the rest (measured on Multi30k)."""


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
        """Put sequences of ids end to end, one at a time, so that they may come from an iterator."""
        values, offsets = bytearray(), array("q", [0])
        for row in sequences:
            values += np.asarray(row, dtype=np.int32).tobytes()
            offsets.append(offsets[-1] + len(row))
        return Ragged(np.frombuffer(values, dtype=np.int32), np.frombuffer(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> IntArray:
        """Length of every sequence, [N]."""
        return np.diff(self.offsets)

    def parts(self, starts: IntArray, lengths: IntArray) -> Ragged:
        """Take a sequence of each length [M] from each place of ``values`` [M]."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # Vectorised: each part's range, shifted to its place in the source.
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values[places], offsets)

    def truncated(self, max_length: int) -> tuple[Ragged, int]:
        """Cut every sequence to its first ``max_length`` ids.

        Returns the sequences and how many were cut; none is dropped, and callers report the count.
        """
        lengths = self.lengths
        num_cut = int((lengths > max_length).sum())
        if not num_cut:
            return self, 0
        return self.parts(self.offsets[:-1], np.minimum(lengths, max_length)), num_cut

    def padded(self, rows: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Pack chosen sequences [B] into a rectangle.

        Returns:
            Ids [B, T] with PAD behind each sequence, and a mask of the real ones, [B, T].
        """
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        valid = np.arange(lengths.max(initial=0)) < lengths[:, None]
        ids = np.full(valid.shape, PAD, dtype=np.int64)
        ids[valid] = self.parts(self.offsets[rows], lengths).values
        return ids, valid


@dataclass(frozen=True)
class Prepared:
    """Sequences that are made of others for the rows that are asked for: nothing is copied beforehand.

    Attributes:
        lengths: Length of every sequence, [N].
        make: Makes some of them from their row numbers [B].
    """

    lengths: NDArray[np.integer]
    make: Callable[[IntArray], Ragged]

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, rows: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Pack chosen sequences [B] into a rectangle, as those of a ``Ragged``."""
        return self.make(rows).padded(np.arange(len(rows)))

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return iter(self.make(np.arange(len(self))))


@dataclass(eq=False)
class LengthBatches:
    """Batches of a budget from examples of similar length on every side.

    An epoch splits the examples in two recursively, each time along the side with most padding, until every
    part fits the budget; then it shuffles the parts. Lengths carry a little noise, so that epochs differ.

    **Determinism**: an epoch's batches depend on the lengths, the budget, the noise, the seed and the number
    of the epoch. Every example is in exactly one batch of each epoch.

    Attributes:
        lengths: Length of each example on each side, [N, sides], or [N] for one side: positions, special
            tokens included, or characters.
        budget: Upper bound of the padded length of a batch on any one side: rows times longest. An example
            that alone is longer gets a batch of its own.
        seed: Seed of the noise and of the order of batches.
        noise: Largest random addition to a length when examples are sorted. Up to 1, it only orders examples
            of equal length; more mixes lengths and costs padding.
        is_by_count: If true, the budget is a number of examples: all batches but one have just as many.

    Raises:
        DataError: There are no examples, or the budget is not positive.
    """

    lengths: NDArray[np.integer]
    budget: int
    seed: int
    noise: float = 1.0
    is_by_count: bool = False

    def __post_init__(self) -> None:
        # Half the memory of the default type: there may be tens of millions of them.
        lengths = np.asarray(self.lengths, dtype=np.int32)
        if not len(lengths):
            raise DataError("no examples to make batches from")
        if self.budget < 1:
            raise DataError(f"the budget of a batch is {self.budget}; give a positive number")
        self.lengths = lengths[:, None] if lengths.ndim == 1 else lengths

    def epoch(self, index: int) -> list[IntArray]:
        """Return the example ids of every batch of an epoch (counted from 0), in training order."""
        rng = np.random.default_rng([self.seed, index])
        keys = rng.random(self.lengths.shape)
        keys *= self.noise
        keys += self.lengths
        batches = self._divide(keys)
        return [batches[number] for number in rng.permutation(len(batches))]

    def in_order(self) -> list[IntArray]:
        """Return the example ids of every batch for evaluation: by exact length, the longest first."""
        batches = self._divide(self.lengths)
        return sorted(batches, key=lambda batch: -int(self.lengths[batch].max()))

    def _divide(self, keys: NDArray[np.integer] | NDArray[np.float64]) -> list[IntArray]:
        longest = self.lengths.max(axis=1)
        needed = len(longest) if self.is_by_count else longest.sum() / _FILL
        batches = []
        # A stack instead of recursion; it takes the shorter half first, so the order is fixed.
        num_parts = max(1, math.ceil(needed / self.budget))
        waiting = [(np.arange(len(longest)), num_parts)]
        while waiting:
            rows, parts = waiting.pop()
            most = self.lengths[rows].max(axis=0)
            taken = len(rows) * (1 if self.is_by_count else int(most.max()))
            if len(rows) == 1 or taken <= self.budget:
                batches.append(rows)
                continue
            first_parts = max(1, parts // 2)
            # Examples that differ most in length waste most padding: split along that side.
            side = int(np.argmax(most - self.lengths[rows].mean(axis=0)))
            rows = rows[np.argsort(keys[rows, side], kind="stable")]
            if self.is_by_count:
                middle = first_parts * self.budget
            else:
                sums = np.cumsum(longest[rows])
                share = sums[-1] * first_parts / max(2, parts)
                middle = int(np.searchsorted(sums, share))
                middle = min(max(middle, 1), len(rows) - 1)
            waiting.append((rows[middle:], max(1, parts - first_parts)))
            waiting.append((rows[:middle], first_parts))
        return batches


def batches_of(
    lengths: NDArray[np.integer],
    budget: int | LengthBatches,
    seed: int,
) -> LengthBatches:
    """Make batches of a number of padded positions, or return the given ones."""
    if isinstance(budget, LengthBatches):
        return budget
    return LengthBatches(lengths, budget, seed)
