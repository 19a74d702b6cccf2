"""Upstream text in changed segmentations, with the similar tokens of what the vocabulary lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.text.batches import Ragged, TokenBatches
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.seeds import generator_for
from nlgraft.vocab.similar import Order, SimilarTokens, similar_tokens
from nlgraft.vocab.tokens import Tok
from nlgraft.vocab.vocabulary import Vocabulary
from trainables.embedding_transfer.data import Encoded, Rows
from trainables.embedding_transfer.distillation import NO_WORD
from trainables.embedding_transfer.generator_training import NewTokens, PerturbedBatch
from trainables.embedding_transfer.perturbation import PerturbedSentence, Perturber, Rates

SHARD_SENTENCES = 4096
"""Sentences whose new tokens are looked up together: one pass over the vocabulary for all of them."""
DEV_EPOCH = -1
"""Number under which dev text is changed: no training epoch has it."""
CORPUS_SIDES = {"encoder": "source", "decoder": "target"}


@dataclass(frozen=True)
class SimilarOptions:
    """How similar tokens are chosen.

    Attributes:
        cap: Most similar tokens of a token; None for all.
        order: Which containing tokens come first.
    """

    cap: int | None
    order: Order


@dataclass(frozen=True)
class _Table:
    """New tokens of a shard for one embedding table."""

    vocabulary: Vocabulary
    numbers: Mapping[Tok, int]
    similar: SimilarTokens


@dataclass(frozen=True)
class _Shard:
    """Changed sentences by side and row, and the new tokens in them by table."""

    sentences: Mapping[str, Mapping[int, PerturbedSentence]]
    tables: Mapping[str, _Table]


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
        """
        self._encoded = encoded
        self._perturbers = {side: Perturber(vocabularies[side], rates[side]) for side in vocabularies}
        self._options = options
        self._batches = TokenBatches(encoded.lengths, batch_tokens, seed)
        self._seed = seed
        self._tables = {side: "decoder" if is_table_shared else side for side in vocabularies}
        self._shards = lru_cache(maxsize=2)(self._make_shard)
        self._places = lru_cache(maxsize=2)(self._shard_of_rows)

    def epoch(self, index: int) -> Sequence[Rows]:
        """Give the rows of each global batch of an epoch."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[PerturbedBatch]:
        """Go once through the text in a change of its own, for evaluation.

        Yields:
            Batches, the longest first.
        """
        for rows in self._batches.in_order():
            yield self.batch(rows, DEV_EPOCH)

    def batch(self, rows: Rows, epoch: int) -> PerturbedBatch:
        """Make the batch of some rows."""
        shards = [self._shards(epoch, int(shard)) for shard in np.unique(self._places(epoch)[rows])]
        by_row = {row: shard for shard in shards for row in next(iter(shard.sentences.values()))}
        original = self._encoded.batch(rows)
        numbering = _BatchNumbering(self._tables, self._vocabulary_sizes())
        original_words, changed_words, changed = {}, {}, {}
        for side, perturber in self._perturbers.items():
            ragged: Ragged = getattr(self._encoded, CORPUS_SIDES[side])
            sentences = [by_row[int(row)].sentences[side][int(row)] for row in rows]
            tables = [by_row[int(row)].tables[self._tables[side]] for row in rows]
            ids = [numbering.ids(side, s.tokens, table) for s, table in zip(sentences, tables, strict=True)]
            changed[side] = ids
            lead = int(side == "decoder")
            original_words[side] = _pad_words(
                [perturber.words(ragged[int(row)].tolist()) for row in rows], lead
            )
            changed_words[side] = _pad_words([sentence.words for sentence in sentences], lead)
        return PerturbedBatch(
            original, _changed_batch(original, changed), numbering.new_tokens(), original_words, changed_words
        )

    def _vocabulary_sizes(self) -> dict[str, int]:
        return {self._tables[side]: len(p.vocabulary) for side, p in self._perturbers.items()}

    def _shard_of_rows(self, epoch: int) -> NDArray[np.int64]:
        """Number the shard of every row, in the order in which the epoch reads them."""
        batches = self._batches.in_order() if epoch == DEV_EPOCH else self._batches.epoch(epoch)
        places = np.zeros(len(self._encoded), dtype=np.int64)
        order = np.concatenate(batches)
        places[order] = np.arange(len(order)) // SHARD_SENTENCES
        return places

    def _make_shard(self, epoch: int, number: int) -> _Shard:
        rows = np.flatnonzero(self._places(epoch) == number).tolist()
        sentences: dict[str, dict[int, PerturbedSentence]] = {}
        found: dict[str, dict[Tok, int]] = {table: {} for table in self._tables.values()}
        for side, perturber in self._perturbers.items():
            ragged: Ragged = getattr(self._encoded, CORPUS_SIDES[side])
            numbers = found[self._tables[side]]
            sentences[side] = {}
            for row in rows:
                generator = generator_for(self._seed, "perturb", side, epoch, row)
                sentence = perturber.perturb(ragged[row].tolist(), generator)
                sentences[side][row] = sentence
                for token in sentence.tokens:
                    if isinstance(token, Tok):
                        numbers.setdefault(token, len(numbers))
        tables = {}
        for side, perturber in self._perturbers.items():
            numbers = found[self._tables[side]]
            old = perturber.vocabulary
            similar = similar_tokens([*numbers], old, cap=self._options.cap, order=self._options.order)
            tables[self._tables[side]] = _Table(old, numbers, similar)
        return _Shard(sentences, tables)


class _BatchNumbering:
    """Ids of a batch's new tokens: V, V + 1, ... in the order of appearance."""

    def __init__(self, tables: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        self._tables = tables
        self._sizes = sizes
        self._numbers: dict[str, dict[Tok, int]] = {table: {} for table in sizes}
        self._members: dict[str, list[list[tuple[int, int]]]] = {table: [] for table in sizes}

    def ids(self, side: str, tokens: Sequence[int | Tok], table: _Table) -> list[int]:
        name = self._tables[side]
        numbers, members = self._numbers[name], self._members[name]
        ids = []
        for token in tokens:
            if not isinstance(token, Tok):
                ids.append(token)
                continue
            if token not in numbers:
                numbers[token] = len(numbers)
                members.append([(m, int(r)) for m, r in table.similar.of(table.numbers[token])])
            ids.append(self._sizes[name] + numbers[token])
        return ids

    def new_tokens(self) -> dict[str, NewTokens]:
        made = {}
        for name, members in self._members.items():
            indptr = np.cumsum([0, *map(len, members)], dtype=np.int64)
            flat = [pair for row in members for pair in row]
            table = SimilarTokens(
                indptr,
                np.array([member for member, _ in flat], dtype=np.int32),
                np.array([relation for _, relation in flat], dtype=np.int8),
            )
            ids, relations = table.padded()
            made[name] = NewTokens(torch.from_numpy(ids), torch.from_numpy(relations))
        return made


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
