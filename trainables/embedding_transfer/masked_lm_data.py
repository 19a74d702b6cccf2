"""Batches of masked text.

Shape letters: B lines, T positions of a line with begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.text.batches import TokenBatches
from nlgraft.training.seeds import generator_for
from trainables.embedding_transfer.data import Rows
from trainables.embedding_transfer.masked_lm_text import EncodedText, MaskedTokenizer

NOT_ASKED = -100
"""Label of positions that are not to be predicted."""
SCORING_SEED = 0
"""Seed of the words that evaluation masks: the same in every trial."""


@dataclass(frozen=True)
class MaskedBatch:
    """Lines with holes.

    Attributes:
        ids: What the model reads, begin and end included, int64 [B, T].
        valid: True where there is a token, bool [B, T].
        labels: True token where it is to be predicted, ``NOT_ASKED`` elsewhere, int64 [B, T].
    """

    ids: Tensor
    valid: Tensor
    labels: Tensor

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], pad: int) -> MaskedBatch:
        """Pack lines.

        Args:
            ids: Tokens of each line, begin and end included.
            labels: Likewise.
            pad: Id put where no token is.

        Returns:
            The batch.
        """
        lengths = torch.tensor([len(line) for line in ids])
        packed = rectangle(ids, pad)
        return cls(packed, torch.arange(packed.shape[1]) < lengths[:, None], rectangle(labels, NOT_ASKED))

    def to(self, device: torch.device | str) -> MaskedBatch:
        """Move to a device."""
        return MaskedBatch(self.ids.to(device), self.valid.to(device), self.labels.to(device))


def rectangle(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Pack rows of different lengths.

    Args:
        rows: Numbers.
        fill: Put behind the shorter ones.

    Returns:
        int64 [B, longest].
    """
    packed = torch.full((len(rows), max(map(len, rows), default=0)), fill, dtype=torch.int64)
    for number, row in enumerate(rows):
        packed[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return packed


@dataclass(frozen=True)
class MaskRates:
    """What is hidden.

    Attributes:
        words: Share of the words of a line that are to be predicted, at least one.
        masked: Share of their tokens hidden behind the mask.
        replaced: Share of them replaced by a random token; the rest is left as it is.
    """

    words: float = 0.15
    masked: float = 0.8
    replaced: float = 0.1


def choose_words(
    num_words: int, share: float, generator: np.random.Generator, turn: int = 0
) -> NDArray[np.bool_]:
    """Choose the words of a line that are to be predicted; depends on nothing but their number.

    Args:
        num_words: Words of the line.
        share: Of them, at least one.
        generator: Source of randomness, one of its own for every line and epoch.
        turn: The words that would be chosen next after so many choices, none of them twice.

    Returns:
        Whether each word is chosen, bool [num_words].
    """
    chosen = np.zeros(num_words, dtype=bool)
    count = max(1, round(share * num_words))
    order = np.argsort(generator.random(num_words), kind="stable")
    chosen[order[turn * count : (turn + 1) * count]] = True
    return chosen


@dataclass(frozen=True)
class MaskedLine:
    """A line with holes, without begin and end.

    Attributes:
        tokens: True tokens.
        inputs: What the model reads.
        is_asked: Whether each is to be predicted.
    """

    tokens: list[int]
    inputs: list[int]
    is_asked: list[bool]


class Masker:
    """Makes holes in lines of one vocabulary.

    **Determinism**: which words of a line are chosen depends on the seed, the epoch, the line's number and
    its number of words, not on the vocabulary.
    """

    def __init__(
        self,
        text: EncodedText,
        tokenizer: MaskedTokenizer,
        rates: MaskRates,
        seed: int,
        *,
        is_in_turns: bool = False,
    ) -> None:
        """Set up the masks of a text.

        Args:
            text: Encoded lines.
            tokenizer: Its tokenizer.
            rates: What is hidden.
            seed: Of the choice.
            is_in_turns: Whether every epoch chooses among the words that earlier ones have not, until none
                is left; else each chooses anew.
        """
        self.text = text
        self.tokenizer = tokenizer
        self.rates = rates
        self.seed = seed
        self.is_in_turns = is_in_turns
        self._normal = np.flatnonzero(tokenizer.vocabulary.is_normal)

    def chosen(self, row: int, epoch: int) -> NDArray[np.bool_]:
        """Choose words of a line.

        Args:
            row: Number of the line.
            epoch: Of the training; another one chooses others.

        Returns:
            Whether each word is chosen, those cut off included, bool [words].
        """
        num_words, share = len(self.text.sizes[row]), self.rates.words
        if self.is_in_turns:
            return choose_words(num_words, share, generator_for(self.seed, "scored words", row), epoch)
        return choose_words(num_words, share, generator_for(self.seed, "words", epoch, row))

    def line(self, row: int, epoch: int) -> MaskedLine:
        """Make the holes of a line.

        Args:
            row: Number of the line.
            epoch: Of the training.

        Returns:
            The line.
        """
        tokens = self.text.ids[row]
        if not len(tokens):
            return MaskedLine([], [], [])
        is_asked = self.chosen(row, epoch)[self.text.words[row]]
        generator = generator_for(self.seed, "tokens", epoch, row)
        draws = generator.random(len(tokens))
        others = self._normal[generator.integers(0, len(self._normal), len(tokens))]
        is_masked = is_asked & (draws < self.rates.masked)
        is_replaced = is_asked & ~is_masked & (draws < self.rates.masked + self.rates.replaced)
        inputs = np.where(is_masked, self.tokenizer.mask, np.where(is_replaced, others, tokens))
        return MaskedLine(tokens.tolist(), inputs.tolist(), is_asked.tolist())

    def batch(self, rows: Rows, epoch: int) -> MaskedBatch:
        """Make the batch of some lines.

        Args:
            rows: Numbers of the lines.
            epoch: Of the training.

        Returns:
            The batch.
        """
        lines = [self.line(int(row), epoch) for row in rows]
        begin, end = self.tokenizer.cls, self.tokenizer.sep
        ids = [[begin, *line.inputs, end] for line in lines]
        labels = [labels_of(line.tokens, line.is_asked) for line in lines]
        return MaskedBatch.of(ids, labels, self.tokenizer.pad)


def labels_of(tokens: Sequence[int], is_asked: Sequence[bool]) -> list[int]:
    """Label the positions of a line with begin and end.

    Args:
        tokens: True tokens, without begin and end.
        is_asked: Whether each is to be predicted.

    Returns:
        Labels.
    """
    inner = (token if asked else NOT_ASKED for token, asked in zip(tokens, is_asked, strict=True))
    return [NOT_ASKED, *inner, NOT_ASKED]


class MaskedData:
    """Batches of masked lines of similar lengths; the training loop's view of a text."""

    def __init__(self, masker: Masker, batch_tokens: int) -> None:
        """Set up the data.

        Args:
            masker: Makes the holes.
            batch_tokens: Most padded positions of a batch.
        """
        self.masker = masker
        self._batches = TokenBatches(masker.text.ids.lengths + 2, batch_tokens, masker.seed)

    def epoch(self, index: int) -> Sequence[Rows]:
        """Give the rows of each global batch of an epoch."""
        return self._batches.epoch(index)

    def batch(self, rows: Rows, epoch: int) -> MaskedBatch:
        """Make the batch of some rows."""
        return self.masker.batch(rows, epoch)


class ScoringData:
    """Masked text for evaluation: all trials and vocabularies are asked about the same words.

    Attributes:
        masker: Makes the holes; its epochs are the rounds.
    """

    def __init__(
        self, text: EncodedText, tokenizer: MaskedTokenizer, share: float, num_rounds: int, batch_tokens: int
    ) -> None:
        """Set up the text.

        Args:
            text: Encoded lines.
            tokenizer: Its tokenizer.
            share: Of the words of a line, hidden at a time.
            num_rounds: Times that each line is read with other words hidden; enough of them ask for every
                word once.
            batch_tokens: Most padded positions of a batch.
        """
        rates = MaskRates(share, masked=1.0, replaced=0.0)
        self.masker = Masker(text, tokenizer, rates, SCORING_SEED, is_in_turns=True)
        self._num_rounds = num_rounds
        self._batches = TokenBatches(text.ids.lengths + 2, batch_tokens, SCORING_SEED)

    def in_order(self) -> Iterator[tuple[Rows, MaskedBatch]]:
        """Go through the text round by round.

        Yields:
            Rows and their batch, the longest first; lines all of whose words have had their turn are left
            out.
        """
        for index in range(self._num_rounds):
            for rows in self._batches.in_order():
                asked = rows[[bool(self.masker.chosen(int(row), index).any()) for row in rows]]
                if len(asked):
                    yield asked, self.masker.batch(asked, index)

    def sizes(self) -> NDArray[np.float64]:
        """Count the characters that each line is asked about.

        Returns:
            Characters of the chosen words that are not cut off, [N].
        """
        text = self.masker.text
        sizes = np.zeros(len(text))
        for row in range(len(text)):
            is_there = np.zeros(len(text.sizes[row]), dtype=bool)
            is_there[text.words[row]] = True
            chosen = [self.masker.chosen(row, index) for index in range(self._num_rounds)]
            sizes[row] = text.sizes[row][np.any(chosen, axis=0) & is_there].sum()
        return sizes
