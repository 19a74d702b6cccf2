"""Upstream text in changed segmentations, with the similar tokens of what the vocabulary lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.config import View
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.seeds import generator_for
from nlgraft.training.views import Encoded, IntArray
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.arms import STREAMS
from trainables.embedding_transfer.distillation import NO_WORD
from trainables.embedding_transfer.generator_training import PerturbedBatch
from trainables.embedding_transfer.new_tokens import DEV_EPOCH, ChangedText, SimilarOptions
from trainables.embedding_transfer.perturbation import PerturbedSentence, Perturber, Rates


class PerturbedData:
    """Batches of upstream text, each sentence in two segmentations.

    **Determinism**: how a sentence is changed depends on the seed, the epoch and the sentence alone.
    """

    def __init__(
        self,
        encoded: Encoded,
        vocabularies: Mapping[str, Vocabulary],
        rates: Mapping[str, Rates],
        options: SimilarOptions,
        *,
        batch_tokens: int,
        seed: int,
        is_table_shared: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        """Set up the data.

        Args:
            encoded: Sentences of domain A.
            vocabularies: Vocabulary of each side that is changed, ``encoder`` or ``decoder``.
            rates: How often words are changed, for the same sides.
            options: How similar tokens are chosen.
            batch_tokens: Most padded positions of a batch on one side.
            seed: Of order and changes.
            is_table_shared: Whether both sides read one embedding table.
            max_tokens: Longest sentence, without begin and end, that the model can read; one that splitting
                would make longer stays as it is. None: no limit.
        """
        self._data = Seq2SeqData(encoded, View(), batch_tokens=batch_tokens, seed=seed)
        self._batches = self._data.batches
        self._text = {side: encoded.stream(STREAMS[side]) for side in vocabularies}
        self._perturbers = {side: Perturber(vocabularies[side], rates[side]) for side in vocabularies}
        self._seed = seed
        self._max_tokens = max_tokens
        tables = {side: "decoder" if is_table_shared else side for side in vocabularies}
        self._changed = ChangedText(vocabularies, tables, self._change, self._batches, options)

    def epoch(self, index: int) -> Sequence[IntArray]:
        """Draw up the global batches of an epoch: row numbers of each."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[PerturbedBatch]:
        """Go once through the text in a change of its own, the longest batch first, for evaluation."""
        for rows in self._batches.in_order():
            yield self.batch(rows, DEV_EPOCH)

    def batch(self, rows: IntArray, epoch: int) -> PerturbedBatch:
        """Make the batch of some rows."""
        by_row = self._changed.by_row(rows, epoch)
        original = self._data.batch(rows, 0)
        numbering = self._changed.numbering()
        original_words, changed_words, changed = {}, {}, {}
        for side, perturber in self._perturbers.items():
            text = self._text[side]
            sentences = [by_row[int(row)].sentences[side][int(row)] for row in rows]
            changed[side] = [
                numbering.ids(side, sentence.tokens, by_row[int(row)])
                for row, sentence in zip(rows, sentences, strict=True)
            ]
            lead = int(side == "decoder")
            original_words[side] = _pad_words(
                [perturber.words(text[int(row)].tolist()) for row in rows], lead
            )
            changed_words[side] = _pad_words([sentence.words for sentence in sentences], lead)
        return PerturbedBatch(
            original, _changed_batch(original, changed), numbering.new_tokens(), original_words, changed_words
        )

    def _change(self, side: str, row: int, epoch: int) -> PerturbedSentence:
        ids = self._text[side][row].tolist()
        perturber = self._perturbers[side]
        changed = perturber.perturb(ids, generator_for(self._seed, "perturb", side, epoch, row))
        if self._max_tokens is not None and len(changed.tokens) > max(self._max_tokens, len(ids)):
            return PerturbedSentence(ids, perturber.words(ids))
        return changed


def _changed_batch(original: Batch, changed: Mapping[str, list[list[int]]]) -> Batch:
    sources, target_input, target_output = original.sources, original.target_input, original.target_output
    if (ids := changed.get("encoder")) is not None:
        sources = [Tokens.from_lists([[*row, EOS] for row in ids])]
    if (ids := changed.get("decoder")) is not None:
        target_input = Tokens.from_lists([[BOS, *row] for row in ids])
        target_output = Tokens.from_lists([[*row, EOS] for row in ids]).ids
    return Batch(sources, target_input, target_output, original.contexts)


def _pad_words(words: Sequence[Sequence[int]], lead: int) -> torch.Tensor:
    """Word numbers of every position, [B, longest + 1]: the one before (BOS) or behind (EOS) has none."""
    width = max(map(len, words), default=0) + 1
    padded = torch.full((len(words), width), NO_WORD, dtype=torch.int64)
    for row, numbers in enumerate(words):
        padded[row, lead : lead + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return padded
