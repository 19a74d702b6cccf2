"""Upstream text in perturbed segmentations, with the similar tokens of out-of-vocabulary tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch
from nlgraft.stages.exchange_kinds import SIDE
from nlgraft.text.batches import LengthBatches
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.masked_text import Masker, labels_of
from nlgraft.training.seeds import generator_for
from nlgraft.training.train_config import View
from nlgraft.training.views import Encoded, IntArray
from trainables.embedding_transfer.config import STREAMS
from trainables.embedding_transfer.generator_training import NO_WORD, ChangedBatch
from trainables.embedding_transfer.new_tokens import BatchNumbering, ChangeOptions, Shard
from trainables.embedding_transfer.perturbation import ChangedSentence, Perturber

SHARD_SENTENCES = 4096
"""Number of sentences whose new tokens are looked up together, in one pass over the vocabulary."""
DEV_EPOCH = -1
"""Epoch number for the perturbation of dev text, distinct from all training epochs."""


class ChangedData(ABC):
    """Batches of upstream text, each sentence in two segmentations.

    **Determinism**: the perturbation of a sentence depends only on the seed, the epoch and the sentence, not
    on the sentences that are looked up together with it, nor on the number of workers.
    """

    def __init__(self, batches: LengthBatches, options: ChangeOptions) -> None:
        self._batches = batches
        self._options = options
        self._perturbers = {
            name: Perturber(side.vocabulary, side.rates) for name, side in options.sides.items()
        }
        self._shard = lru_cache(maxsize=2)(self._make_shard)
        self._shard_numbers = lru_cache(maxsize=2)(self._number_shards)

    def epoch(self, index: int) -> Sequence[IntArray]:
        """List the global batches of an epoch, each as row numbers."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[ChangedBatch]:
        """Yield the text once for evaluation, with a fixed perturbation, longest batch first."""
        for rows in self._batches.in_order():
            yield self.batch(rows, DEV_EPOCH)

    @abstractmethod
    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""

    @abstractmethod
    def _sentence(self, side: str, row: int, epoch: int) -> tuple[list[int], Sequence[bool]]:
        """Return the tokens of a sentence, and which of them must not be changed."""

    def change(self, side: str, row: int, epoch: int) -> ChangedSentence:
        """Perturb a sentence of a side for an epoch; one that would become too long is left unchanged."""
        ids, is_kept = self._sentence(side, row, epoch)
        perturber = self._perturbers[side]
        generator = generator_for(self._options.seed, "perturb", side, epoch, row)
        changed = perturber.perturb(ids, generator, is_kept)
        limit = self._options.max_tokens
        if limit is not None and len(changed.tokens) > max(limit, len(ids)):
            return ChangedSentence([*ids], perturber.words(ids))
        return changed

    def _shards(self, rows: IntArray, epoch: int) -> list[Shard]:
        """Return the shard of each row."""
        return [self._shard(epoch, int(number)) for number in self._shard_numbers(epoch)[rows]]

    def _number_shards(self, epoch: int) -> IntArray:
        """Number the shard of every row, in the order in which the epoch reads them."""
        batches = self._batches.in_order() if epoch == DEV_EPOCH else self._batches.epoch(epoch)
        order = np.concatenate(batches)
        numbers = np.zeros(len(order), dtype=np.int64)
        numbers[order] = np.arange(len(order)) // SHARD_SENTENCES
        return numbers

    def _make_shard(self, epoch: int, number: int) -> Shard:
        rows = np.flatnonzero(self._shard_numbers(epoch) == number).tolist()
        sentences = {side: {row: self.change(side, row, epoch) for row in rows} for side in self._perturbers}
        return Shard.of(sentences, self._options)


class ChangedPairs(ChangedData):
    """Sentence pairs for an encoder-decoder."""

    def __init__(self, encoded: Encoded, view: View, batch_tokens: int, options: ChangeOptions) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions on either side."""
        self._data = Seq2SeqData(encoded, view, batch_tokens=batch_tokens, seed=options.seed)
        self._streams = {side: encoded.stream(STREAMS[side]) for side in options.sides}
        super().__init__(self._data.batches, options)

    def _sentence(self, side: str, row: int, epoch: int) -> tuple[list[int], Sequence[bool]]:
        del epoch
        return self._streams[side][row].tolist(), ()

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        shards, original = self._shards(rows, epoch), self._data.batch(rows, 0)
        numbering = BatchNumbering(self._options.sides)
        original_words, changed_words, changed = {}, {}, {}
        for side, perturber in self._perturbers.items():
            sentences = [shard.sentences[side][int(row)] for shard, row in zip(shards, rows, strict=True)]
            changed[side] = [
                numbering.ids(side, sentence.tokens, shard)
                for sentence, shard in zip(sentences, shards, strict=True)
            ]
            words = [perturber.words(self._streams[side][int(row)].tolist()) for row in rows]
            begin, end = (len(ids) for ids in self._around(side))
            # what the decoder predicts last is no input of its own
            around = {"num_before": begin, "num_after": end - (side == "decoder")}
            original_words[side] = _word_numbers(words, **around)
            changed_words[side] = _word_numbers([sentence.words for sentence in sentences], **around)
        return ChangedBatch(
            original, self._changed(original, changed), numbering.new_tokens(), original_words, changed_words
        )

    def _around(self, side: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids before and behind a sentence, the first input of the decoder included."""
        view = self._data.view
        if side == "encoder":
            return view.sources[0].prefix, view.sources[0].suffix
        return (view.target_start, *view.target.prefix), view.target.suffix

    def _changed(self, original: Batch, changed: Mapping[str, list[list[int]]]) -> Batch:
        sources, target_input, target_output = original.sources, original.target_input, original.target_output
        whole = {}
        for side, rows in changed.items():
            before, after = self._around(side)
            whole[side] = [[*before, *row, *after] for row in rows]
        if (rows := whole.get("encoder")) is not None:
            sources = [Tokens.from_lists(rows)]
        if (rows := whole.get("decoder")) is not None:
            target_input = Tokens.from_lists([row[:-1] for row in rows])
            target_output = Tokens.from_lists([row[1:] for row in rows]).ids
        return Batch(sources, target_input, target_output, original.contexts)


class ChangedLines(ChangedData):
    """Masked lines for a masked language model.

    Words that contain a predicted token are not perturbed, so that they are masked identically in both
    segmentations. Some of the new tokens are masked in the perturbed line only; the states of their words are
    excluded from L_d.

    Source: masking of new tokens from the authors' code.
    """

    def __init__(
        self, masker: Masker, batch_tokens: int, new_mask_rate: float, options: ChangeOptions
    ) -> None:
        """Set up the lines.

        Args:
            masker: Masks the lines.
            batch_tokens: Most padded positions of a batch.
            new_mask_rate: Share of the new tokens that are masked and predicted.
            options: How lines are perturbed.
        """
        self._masker = masker
        self._new_mask_rate = new_mask_rate
        super().__init__(masker.batches(batch_tokens, masker.seed), options)

    def _sentence(self, side: str, row: int, epoch: int) -> tuple[list[int], Sequence[bool]]:
        line = self._masker.line(row, epoch)
        return line.tokens, line.is_predicted

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        shards, numbering = self._shards(rows, epoch), BatchNumbering(self._options.sides)
        lines = [
            self._line(int(row), epoch, shard, numbering) for row, shard in zip(rows, shards, strict=True)
        ]
        num_words = max((max(line.original_words, default=-1) for line in lines), default=-1) + 1
        compared_BW = torch.ones(len(lines), num_words, dtype=torch.bool)
        for number, line in enumerate(lines):
            compared_BW[number, line.masked_once] = False
        ids = self._masker.ids
        changed = MaskedBatch.of(
            [[ids.begin, *line.inputs, ids.end] for line in lines], [line.labels for line in lines], ids.pad
        )
        original_words, changed_words = (
            _word_numbers([getattr(line, name) for line in lines], num_before=1, num_after=1)
            for name in ("original_words", "changed_words")
        )
        return ChangedBatch(
            self._masker.batch(rows, epoch),
            changed,
            numbering.new_tokens(),
            {SIDE: original_words},
            {SIDE: changed_words},
            {SIDE: compared_BW},
        )

    def _line(self, row: int, epoch: int, shard: Shard, numbering: BatchNumbering) -> _ChangedLine:
        """Number the new tokens of a line, mask some of them, and reapply the line's own masks."""
        line, sentence = self._masker.line(row, epoch), shard.sentences[SIDE][row]
        perturber = self._perturbers[SIDE]
        words = perturber.words(line.tokens)
        kept = {word for word, is_predicted in zip(words, line.is_predicted, strict=True) if is_predicted}
        # kept words have the same tokens in both segmentations, so their masks are copied token by token
        pieces = zip(words, line.inputs, line.is_predicted, strict=True)
        waiting = iter([(read, is_predicted) for word, read, is_predicted in pieces if word in kept])
        ids = numbering.ids(SIDE, sentence.tokens, shard)
        size = len(perturber.vocabulary)
        draws = generator_for(self._masker.seed, "new", epoch, row).random(len(ids))
        inputs: list[int] = []
        predicted: list[bool] = []
        masked_once: set[int] = set()
        for identity, word, draw in zip(ids, sentence.words, draws.tolist(), strict=True):
            if word in kept:
                read, is_predicted = next(waiting)
            else:
                is_predicted = identity >= size and draw < self._new_mask_rate
                read = self._masker.ids.mask if is_predicted else identity
                masked_once |= {word} if is_predicted else set()
            inputs.append(read)
            predicted.append(is_predicted)
        return _ChangedLine(inputs, labels_of(ids, predicted), words, sentence.words, sorted(masked_once))


@dataclass(frozen=True)
class _ChangedLine:
    inputs: list[int]
    labels: list[int]
    original_words: list[int]
    changed_words: list[int]
    masked_once: list[int]


def _word_numbers(words: Sequence[Sequence[int]], *, num_before: int, num_after: int) -> Tensor:
    """Word number of every position, [B, longest]; what is put around words and padding have none."""
    begin, end = [NO_WORD] * num_before, [NO_WORD] * num_after
    return Tokens.from_lists([[*begin, *numbers, *end] for numbers in words], NO_WORD).ids
