"""Upstream text in perturbed segmentations, with the similar tokens of out-of-vocabulary tokens.

Splits and merges stay within a word, and the text does not change.
Source: Liu et al. (2021), section 3.3; probabilities from the authors' code, without its defects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch
from nlgraft.stages.stage_kind import SIDE
from nlgraft.text.batches import LengthBatches
from nlgraft.training.masked_text import Masker, labels_of
from nlgraft.training.seeds import generator_for
from nlgraft.training.train_config import View
from nlgraft.training.views import Encoded, IntArray, Seq2SeqData
from nlgraft.vocab.methods.similar import SimilarTokens
from nlgraft.vocab.tokenizers.vocabulary import (
    Kind,
    Tok,
    Vocabulary,
    character_boundaries,
    merge_toks,
    split_tok,
)
from trainables.embedding_transfer.config import STREAMS, SegmentationRates
from trainables.embedding_transfer.generator_training import NO_WORD, ChangedBatch, NewTokens, padded


@dataclass(frozen=True)
class ChangedSentence:
    """A sentence in another segmentation.

    Attributes:
        tokens: Vocabulary ids, or out-of-vocabulary tokens, whose embeddings are to be generated.
        words: Word number of each token.
    """

    tokens: list[int | Tok]
    words: list[int]


class Perturber:
    """Changes the segmentation of sentences of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, rates: SegmentationRates) -> None:
        self.vocabulary = vocabulary
        self.rates = rates

    @cached_property
    def _boundaries(self) -> list[list[int]]:
        """Possible cuts of each token; cached, since millions of sentences are perturbed."""
        return [
            character_boundaries(tok.core) if tok is not None and tok.kind is Kind.NORMAL else []
            for tok in self.vocabulary.tokens
        ]

    def words(self, ids: Sequence[int]) -> list[int]:
        """Number the words of a sentence without begin and end, from 0, by the marks of its tokens."""
        numbers: list[int] = []
        current, is_open = -1, False
        is_marked = bool(self.vocabulary.marking.continuation_prefix)
        for identity in ids:
            tok = self.vocabulary.tokens[identity]
            # if word-internal pieces are marked, an unmarked one starts a word (punctuation, unknown token)
            starts = tok is not None and (tok.starts_word or (is_marked and tok.starts_word is None))
            if not is_open or starts:
                current += 1
            # without end-of-word marks a word extends to the next word start
            is_open = tok is None or tok.ends_word is not True
            numbers.append(current)
        return numbers

    def perturb(
        self, ids: Sequence[int], generator: np.random.Generator, is_kept: Sequence[bool] = ()
    ) -> ChangedSentence:
        """Split or merge tokens at random; the text stays the same.

        Args:
            ids: Vocabulary ids of a sentence, without begin and end.
            generator: Source of randomness; one of its own for every sentence and epoch.
            is_kept: True for tokens whose words must not be changed; empty: none.
        """
        tokens: list[int | Tok] = []
        numbers: list[int] = []
        start = 0
        for word, count in Counter(self.words(ids)).items():
            end = start + count
            is_fixed = any(is_kept[start:end])
            changed = ids[start:end] if is_fixed else self._change_word(ids[start:end], generator.random)
            tokens.extend(changed)
            numbers.extend([word] * len(changed))
            start = end
        return ChangedSentence(tokens, numbers)

    def _change_word(self, ids: Sequence[int], draw: Callable[[], float]) -> list[int | Tok]:
        """Split tokens of a word; where none was split, merge some."""
        pieces: list[list[Tok]] = [self._split(identity, draw) for identity in ids]
        # A word is not merged as well, which could undo its cuts.
        if any(len(parts) > 1 for parts in pieces):
            changed: list[int | Tok] = []
            for identity, parts in zip(ids, pieces, strict=True):
                changed.extend([identity] if len(parts) < 2 else map(self._known, parts))
            return changed
        return self._merge(ids, draw)

    def _split(self, identity: int, draw: Callable[[], float]) -> list[Tok]:
        boundaries, rates = self._boundaries[identity], self.rates
        num_chars = len(boundaries) + 1
        if num_chars < rates.min_split_chars or draw() >= rates.split:
            return []
        tok = self.vocabulary.token(identity)
        cuts: list[int] = []
        for index, offset in enumerate(boundaries):
            previous = cuts[-1] if cuts else 0
            # Single characters are cut off at a rate of their own.
            leaves_one = previous == (boundaries[index - 1] if index else 0) or index == len(boundaries) - 1
            if draw() >= (rates.cut_edge if leaves_one else rates.cut):
                continue
            piece = split_tok(tok, [*cuts, offset])[-2]
            # a piece with an embedding of its own would give the generator nothing to learn
            if self.vocabulary.find(piece) is None:
                cuts.append(offset)
        return split_tok(tok, cuts)

    def _merge(self, ids: Sequence[int], draw: Callable[[], float]) -> list[int | Tok]:
        changed: list[int | Tok] = []
        start = 0
        while start < len(ids):
            end = start + 1
            while end < len(ids) and self._is_joinable(ids[end - 1], ids[end]) and draw() < self.rates.merge:
                end += 1
            if end == start + 1:
                changed.append(ids[start])
            else:
                changed.append(self._known(merge_toks([*map(self.vocabulary.token, ids[start:end])])))
            start = end
        return changed

    def _is_joinable(self, first: int, second: int) -> bool:
        toks = (self.vocabulary.tokens[first], self.vocabulary.tokens[second])
        return all(tok is not None and tok.kind is Kind.NORMAL for tok in toks)

    def _known(self, tok: Tok) -> int | Tok:
        """Return the id of a token that is in the vocabulary, else the token itself."""
        identity = self.vocabulary.find(tok)
        return tok if identity is None else identity


DEV_EPOCH = -1
"""Epoch number for the perturbation of dev text, distinct from all training epochs."""
NUM_REMEMBERED = 2**17
"""New tokens whose similar tokens are remembered: the frequent ones come in every batch."""


class ChangedSide(Perturber):
    """A side of the text whose words are split and merged.

    Attributes:
        table: Name of its embedding table; sides that share a table share the vocabulary.
        similar: Finds the similar tokens of a new token.
    """

    def __init__(self, vocabulary: Vocabulary, rates: SegmentationRates, table: str, cap: int | None) -> None:
        super().__init__(vocabulary, rates)
        self.table = table
        self.similar = lru_cache(NUM_REMEMBERED)(SimilarTokens(vocabulary, cap).of)


class BatchNumbering:
    """Assigns ids to the new tokens of a batch: V, V + 1, ... in order of appearance."""

    def __init__(self, sides: Mapping[str, ChangedSide]) -> None:
        self._sides = sides
        self._numbers: dict[str, dict[Tok, int]] = {side.table: {} for side in sides.values()}

    def ids(self, name: str, tokens: Sequence[int | Tok]) -> list[int]:
        """Number the tokens of a sentence."""
        side = self._sides[name]
        numbers, size = self._numbers[side.table], len(side.vocabulary)
        return [
            size + numbers.setdefault(token, len(numbers)) if isinstance(token, Tok) else token
            for token in tokens
        ]

    def new_tokens(self) -> dict[str, NewTokens]:
        """Find the similar tokens of those numbered so far, by table."""
        finders = {side.table: side.similar for side in self._sides.values()}
        return {
            table: NewTokens(*padded([*map(finders[table], tokens)]))
            for table, tokens in self._numbers.items()
        }


class ChangedData(ABC):
    """Batches of upstream text, each sentence in two segmentations.

    **Determinism**: the perturbation of a sentence depends only on the seed, the epoch and the sentence, not
    on the sentences beside it, nor on the number of workers.
    """

    def __init__(
        self, batches: LengthBatches, sides: Mapping[str, ChangedSide], seed: int, max_tokens: int | None
    ) -> None:
        """Set up the data.

        Args:
            batches: Row numbers of the batches.
            sides: The changed sides, ``encoder`` or ``decoder``.
            seed: Seed of the perturbation.
            max_tokens: Maximum length that the model can read, without begin and end; a sentence that would
                become longer by splitting is left unchanged. None: no limit.
        """
        self._batches = batches
        self._sides = sides
        self._seed = seed
        self._max_tokens = max_tokens

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

    def change(
        self, side: str, row: int, epoch: int, ids: Sequence[int], is_kept: Sequence[bool] = ()
    ) -> ChangedSentence:
        """Perturb a sentence of a side for an epoch; one that would become too long is left unchanged."""
        perturber = self._sides[side]
        changed = perturber.perturb(ids, generator_for(self._seed, "perturb", side, epoch, row), is_kept)
        if self._max_tokens is not None and len(changed.tokens) > max(self._max_tokens, len(ids)):
            return ChangedSentence([*ids], perturber.words(ids))
        return changed


class ChangedPairs(ChangedData):
    """Sentence pairs for an encoder-decoder."""

    def __init__(
        self,
        encoded: Encoded,
        view: View,
        batch_tokens: int,
        sides: Mapping[str, ChangedSide],
        *,
        seed: int,
        max_tokens: int | None = None,
    ) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions on either side."""
        self._data = Seq2SeqData(encoded, view, batch_tokens=batch_tokens, seed=seed)
        self._streams = {side: encoded.stream(STREAMS[side]) for side in sides}
        super().__init__(self._data.batches, sides, seed, max_tokens)

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        original, numbering = self._data.batch(rows, 0), BatchNumbering(self._sides)
        original_words, changed_words, changed = {}, {}, {}
        for name, side in self._sides.items():
            plain = {row: self._streams[name][row].tolist() for row in rows.tolist()}
            sentences = [self.change(name, row, epoch, ids) for row, ids in plain.items()]
            before, after = self._around(name)
            changed[name] = [
                [*before, *numbering.ids(name, sentence.tokens), *after] for sentence in sentences
            ]
            # what the decoder predicts last is no input of its own
            around = {"num_before": len(before), "num_after": len(after) - (name == "decoder")}
            original_words[name] = _word_numbers([*map(side.words, plain.values())], **around)
            changed_words[name] = _word_numbers([sentence.words for sentence in sentences], **around)
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
        parts: dict[str, Any] = {}
        if "encoder" in changed:
            parts["sources"] = [Tokens.from_lists(changed["encoder"])]
        if "decoder" in changed:
            parts["target_input"] = Tokens.from_lists([row[:-1] for row in changed["decoder"]])
            parts["target_output"] = Tokens.from_lists([row[1:] for row in changed["decoder"]]).ids
        return replace(original, **parts)


class ChangedLines(ChangedData):
    """Masked lines for a masked language model.

    Words that contain a predicted token are not perturbed, so that they are masked identically in both
    segmentations. Some of the new tokens are masked in the perturbed line only; the states of their words are
    excluded from L_d.

    Source: masking of new tokens from the authors' code.
    """

    def __init__(
        self,
        masker: Masker,
        batch_tokens: int,
        new_mask_rate: float,
        side: ChangedSide,
        max_tokens: int | None = None,
    ) -> None:
        """Set up the lines.

        Args:
            masker: Masks the lines.
            batch_tokens: Most padded positions of a batch.
            new_mask_rate: Share of the new tokens that are masked and predicted.
            side: How lines are perturbed.
            max_tokens: Maximum length that the model can read, without begin and end; None: no limit.
        """
        self._masker = masker
        self._new_mask_rate = new_mask_rate
        super().__init__(masker.batches(batch_tokens, masker.seed), {SIDE: side}, masker.seed, max_tokens)

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        numbering = BatchNumbering(self._sides)
        lines = [self._line(row, epoch, numbering) for row in rows.tolist()]
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

    def _line(self, row: int, epoch: int, numbering: BatchNumbering) -> _ChangedLine:
        """Perturb a line, number and mask its new tokens, and reapply the line's own masks."""
        line, perturber = self._masker.line(row, epoch), self._sides[SIDE]
        sentence = self.change(SIDE, row, epoch, line.tokens, line.is_predicted)
        words = perturber.words(line.tokens)
        kept = {word for word, is_predicted in zip(words, line.is_predicted, strict=True) if is_predicted}
        # kept words have the same tokens in both segmentations, so their masks are copied token by token
        pieces = zip(words, line.inputs, line.is_predicted, strict=True)
        waiting = iter([(read, is_predicted) for word, read, is_predicted in pieces if word in kept])
        ids = numbering.ids(SIDE, sentence.tokens)
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
