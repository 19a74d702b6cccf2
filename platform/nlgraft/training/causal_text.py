"""Text of causal language models: lines end to end in sequences of one length, and lines by themselves.

Shape letters: N lines, W windows, B windows of a batch, T positions of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import pack
from nlgraft.nn.batch import Tokens
from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.training.losses import Predictions, TokenObjective, segment_losses
from nlgraft.training.views import IntArray, surround, take
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary


@dataclass(frozen=True)
class LineEnds:
    """Special tokens at the ends of a line; one token may be both.

    Attributes:
        begin: What the first token is predicted from.
        end: What stands for the end of the line.
    """

    begin: int
    end: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> LineEnds:
        """Find them by their roles; a model with one of the two has it at both ends.

        Raises:
            DataError: There is neither.
        """
        begin, end = (vocabulary.roles.get(role) for role in ("bos", "eos"))
        begin, end = (begin if begin is not None else end), (end if end is not None else begin)
        if begin is None or end is None:
            raise DataError(
                f"{vocabulary.name}: no special token begins or ends a text (bos, eos); name one in "
                "special_tokens_map.json beside the tokenizer"
            )
        return cls(begin, end)

    def around(self, lines: Ragged) -> Ragged:
        """Put them around every line."""
        return surround(lines, (self.begin,), (self.end,))


def windows(sequences: Ragged, max_tokens: int) -> tuple[Ragged, IntArray]:
    """Cut sequences into windows in which every token but a sequence's first is predicted once.

    A window begins with the last token of the one before, so it has up to ``max_tokens`` + 1 tokens.

    Returns:
        W windows, and the sequence of each, [W].
    """
    counts = -(-(sequences.lengths - 1) // max_tokens)
    owner = np.repeat(np.arange(len(sequences)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = sequences.offsets[owner] + number * max_tokens
    ends = np.minimum(starts + max_tokens + 1, sequences.offsets[owner + 1])
    return sequences.parts(starts, ends - starts), owner


class PackedText:
    """Training text: batches of whole lines in a new order in every epoch, packed into windows.

    The lines of a batch depend on their sizes, the budget, the seed and the epoch. Where sizes are those of
    the text, e.g. in characters, all vocabularies read the same lines at the same step.
    """

    def __init__(
        self, lines: Ragged, sizes: IntArray, ends: LineEnds, *, budget: int, max_tokens: int, seed: int
    ) -> None:
        """Set up the text.

        Args:
            lines: Bare ids of each line.
            sizes: Size of each line, [N].
            ends: Special tokens around a line.
            budget: Size of a batch: a line belongs to the batch in which it begins.
            max_tokens: Predicted tokens of a window at most.
            seed: Seed of the order.
        """
        self._lines, self._sizes, self._ends = lines, sizes, ends
        self._budget, self._max_tokens, self._seed = budget, max_tokens, seed
        # Batches of one epoch are asked for in turn, so one packing is kept.
        self._packed = lru_cache(maxsize=1)(self._pack)

    def batches(self, index: int) -> list[IntArray]:
        """List the lines of each batch of an epoch."""
        order = np.random.default_rng([self._seed, index]).permutation(len(self._lines))
        sizes = self._sizes[order]
        batch_of = (np.cumsum(sizes) - sizes) // self._budget
        return np.split(order, np.flatnonzero(np.diff(batch_of)) + 1)

    def epoch(self, index: int) -> list[IntArray]:
        """List the windows of each batch of an epoch."""
        _, firsts = self._packed(index)
        return [np.arange(first, end) for first, end in pairwise(firsts.tolist())]

    def batch(self, rows: IntArray, epoch: int) -> Tokens:
        """Pack some windows of one batch, [B, T + 1], on the CPU."""
        batches, firsts = self._packed(epoch)
        number = int(np.searchsorted(firsts, rows[0], side="right")) - 1
        text = self._around(take(self._lines, batches[number]))
        stream = Ragged(text.values, text.offsets[[0, -1]])
        if self._ends.begin == self._ends.end:
            stream = surround(stream, (self._ends.begin,), ())
        return pack(windows(stream, self._max_tokens)[0], rows - firsts[number])

    def times_read(self, num_batches: int) -> IntArray:
        """Count how often each line was read in a number of batches from the start, [N]."""
        times = np.zeros(len(self._lines), dtype=np.int64)
        index = 0
        while num_batches > 0:
            taken = self.batches(index)[:num_batches]
            times[np.concatenate(taken)] += 1
            num_batches -= len(taken)
            index += 1
        return times

    def _around(self, lines: Ragged) -> Ragged:
        # A token that is both ends stands between two lines once.
        begin, end = self._ends.begin, self._ends.end
        return surround(lines, () if begin == end else (begin,), (end,))

    def _pack(self, index: int) -> tuple[list[IntArray], IntArray]:
        """Return the lines of each batch, and the number of its first window; last the number of them all."""
        batches, lengths = self.batches(index), self._lines.lengths
        is_one = self._ends.begin == self._ends.end
        sizes = [int(lengths[rows].sum()) + len(rows) * (2 - is_one) + is_one for rows in batches]
        counts = [-(-(size - 1) // self._max_tokens) for size in sizes]
        return batches, np.cumsum([0, *counts])


def token_counts(lines: Ragged, times: IntArray, size: int) -> IntArray:
    """Count how often each of ``size`` ids occurs in lines that were read several times, int64 [size]."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(lines), _COUNTED_LINES):
        rows = slice(start, start + _COUNTED_LINES)
        edges = lines.offsets[start : start + _COUNTED_LINES + 1]
        weights = np.repeat(times[rows], np.diff(edges))
        counts += np.bincount(lines.values[edges[0] : edges[-1]], weights, size).astype(np.int64)
    return counts


_COUNTED_LINES = 100_000
"""Lines whose tokens are counted at once, which bounds memory."""

# Objective and losses of causal language models.
#
# Shape letters: N lines, W windows.


_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


def predict_tokens(model: TransformersCausalLM, tokens: Tokens) -> Predictions:
    """Predict every token of sequences [B, T] but the first of each."""
    is_predicted = tokens.valid[:, 1:]
    rows = is_predicted.nonzero()[:, 0]
    return Predictions(model(tokens.ids[:, :-1])[is_predicted], tokens.ids[:, 1:][is_predicted], rows)


causal_objective = TokenObjective(predict_tokens)


def causal_losses(
    model: TransformersCausalLM,
    lines: Ragged,
    ends: LineEnds,
    max_tokens: int,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Compute nats and predicted tokens of every line by itself, its end included, [N, 2].

    A line of more than ``max_tokens`` tokens is read in windows, so that no text is left out.
    """
    text, line_W = windows(ends.around(lines), max_tokens)
    batches = LengthBatches(text.lengths, _SCORING_TOKENS, 0).in_order()
    packed = ((line_W[rows], pack(text, rows)) for rows in batches)
    return segment_losses(model, packed, len(lines), device, predict_tokens)


def check_positions(model: TransformersCausalLM, max_tokens: int) -> None:
    """Refuse windows for which a model has no positions.

    Raises:
        DataError: It has fewer.
    """
    if model.max_tokens is not None and max_tokens > model.max_tokens:
        raise DataError(
            f"max_tokens is {max_tokens}, but the model has positions for {model.max_tokens}; set it to at "
            f"most {model.max_tokens}"
        )
