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
from nlgraft.evaluation.shares import SHARE
from nlgraft.nn.batch import Movable, Tokens
from nlgraft.nn.modes import evaluating
from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.training.losses import Predictions, TokenObjective, segment_losses
from nlgraft.training.views import IntArray, beside, surround, take
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


@dataclass(eq=False)
class LineBatches:
    """Batches of whole lines in a new order in every epoch.

    The lines of a batch depend on their sizes, the budget, the seed and the epoch. Where sizes are those of
    the text, e.g. in characters, all vocabularies read the same lines at the same step.

    Attributes:
        sizes: Size of each line, [N].
        budget: Size of a batch: a line belongs to the batch in which it begins.
        seed: Seed of the order.
    """

    sizes: IntArray
    budget: int
    seed: int

    def batches(self, index: int) -> list[IntArray]:
        """List the lines of each batch of an epoch."""
        order = np.random.default_rng([self.seed, index]).permutation(len(self.sizes))
        sizes = self.sizes[order]
        batch_of = (np.cumsum(sizes) - sizes) // self.budget
        return np.split(order, np.flatnonzero(np.diff(batch_of)) + 1)

    def times_read(self, num_batches: int) -> IntArray:
        """Count how often each line was read in a number of batches from the start, [N]."""
        times = np.zeros(len(self.sizes), dtype=np.int64)
        index = 0
        while num_batches > 0:
            taken = self.batches(index)[:num_batches]
            times[np.concatenate(taken)] += 1
            num_batches -= len(taken)
            index += 1
        return times


@dataclass(eq=False)
class PackedText(LineBatches):
    """Training text: batches of whole lines, packed into windows.

    Attributes:
        lines: Bare ids of each line.
        ends: Special tokens around a line.
        max_tokens: Predicted tokens of a window at most.
    """

    lines: Ragged
    ends: LineEnds
    max_tokens: int

    def __post_init__(self) -> None:
        # Batches of one epoch are asked for in turn, so one packing is kept.
        self._packed = lru_cache(maxsize=1)(self._pack)

    def epoch(self, index: int) -> list[IntArray]:
        """List the windows of each batch of an epoch."""
        _, firsts = self._packed(index)
        return [np.arange(first, end) for first, end in pairwise(firsts.tolist())]

    def batch(self, rows: IntArray, epoch: int) -> Tokens:
        """Pack some windows of one batch, [B, T + 1], on the CPU."""
        batches, firsts = self._packed(epoch)
        number = int(np.searchsorted(firsts, rows[0], side="right")) - 1
        begin, end = (self.ends.begin,), (self.ends.end,)
        # A token that is both ends stands between two lines once.
        text = surround(take(self.lines, batches[number]), () if begin == end else begin, end)
        stream = Ragged(text.values, text.offsets[[0, -1]])
        if begin == end:
            stream = surround(stream, begin, ())
        return pack(windows(stream, self.max_tokens)[0], rows - firsts[number])

    def _pack(self, index: int) -> tuple[list[IntArray], IntArray]:
        """Return the lines of each batch, and the number of its first window; last the number of them all."""
        batches, lengths = self.batches(index), self.lines.lengths
        is_one = self.ends.begin == self.ends.end
        sizes = [int(lengths[rows].sum()) + len(rows) * (2 - is_one) + is_one for rows in batches]
        counts = [-(-(size - 1) // self.max_tokens) for size in sizes]
        return batches, np.cumsum([0, *counts])


@dataclass(frozen=True)
class PromptedTokens(Movable):
    """Sequences of a prompt that is read and a target that is predicted.

    Attributes:
        tokens: Both, [B, T].
        num_read: Tokens of each prompt, int64 [B].
    """

    tokens: Tokens
    num_read: torch.Tensor


class Prompted:
    """Prompts with their targets, the special tokens at the ends of each sequence included."""

    def __init__(self, prompts: Ragged, targets: Ragged) -> None:
        """Put each prompt and its target end to end."""
        self.num_read, self.sequences = prompts.lengths, beside(prompts, targets)

    def pack(self, rows: IntArray) -> PromptedTokens:
        """Pack some pairs, on the CPU."""
        return PromptedTokens(pack(self.sequences, rows), torch.from_numpy(self.num_read[rows]))


@dataclass(eq=False)
class PromptedText(LineBatches):
    """Training text of prompts and targets: every pair is a sequence by itself."""

    pairs: Prompted

    def epoch(self, index: int) -> list[IntArray]:
        """List the pairs of each batch of an epoch."""
        return self.batches(index)

    def batch(self, rows: IntArray, epoch: int) -> PromptedTokens:
        """Pack some pairs, on the CPU."""
        return self.pairs.pack(rows)


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
    return _predict(model, tokens, tokens.valid)


def predict_targets(model: TransformersCausalLM, batch: PromptedTokens) -> Predictions:
    """Predict every token of the targets from the prompt and those before it."""
    position_T = torch.arange(batch.tokens.ids.shape[1], device=batch.num_read.device)
    return _predict(model, batch.tokens, batch.tokens.valid & (position_T >= batch.num_read[:, None]))


def _predict(
    model: TransformersCausalLM,
    tokens: Tokens,
    is_predicted_BT: torch.Tensor,
) -> Predictions:
    is_predicted = is_predicted_BT[:, 1:]
    rows = is_predicted.nonzero()[:, 0]
    return Predictions(model(tokens.ids[:, :-1])[is_predicted], tokens.ids[:, 1:][is_predicted], rows)


causal_objective = TokenObjective(predict_tokens)
target_objective = TokenObjective(predict_targets)


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


def target_losses(
    model: TransformersCausalLM, pairs: Prompted, device: torch.device | str
) -> NDArray[np.float64]:
    """Compute nats and tokens of every target after its prompt, [N, 2]."""
    batches = LengthBatches(pairs.sequences.lengths, _SCORING_TOKENS, 0).in_order()
    packed = ((rows, pairs.pack(rows)) for rows in batches)
    return segment_losses(model, packed, len(pairs.sequences), device, predict_targets)


def target_confidences(
    model: TransformersCausalLM, pairs: Prompted, device: torch.device | str
) -> list[list[float]]:
    """Compute the probability of every token of every target after its prompt."""
    confidences: dict[int, list[float]] = {}
    share = SHARE.get()
    with evaluating(model):
        for rows in share.of(LengthBatches(pairs.sequences.lengths, _SCORING_TOKENS, 0).in_order()):
            logits_PV, tokens_P, row_P = predict_targets(model, pairs.pack(rows).to(device))
            probability_P = logits_PV.float().softmax(-1).gather(1, tokens_P[:, None])[:, 0]
            for place, row in enumerate(rows.tolist()):
                confidences[row] = probability_P[row_P == place].tolist()
    return share.gather_rows(confidences)


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
