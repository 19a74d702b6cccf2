"""Tokens that changed text holds and the vocabulary lacks: their similar tokens, and their ids in a batch.

Looked up by the thousand: one pass over the vocabulary serves all sentences of a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.text.batches import TokenBatches
from nlgraft.vocab.methods.similar import Order, SimilarTokens, similar_tokens
from nlgraft.vocab.tokenizers.tokens import Tok
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.perturbation import ChangedSentence

SHARD_SENTENCES = 4096
"""Sentences whose new tokens are looked up together: one pass over the vocabulary for all of them."""
DEV_EPOCH = -1
"""Number under which dev text is changed: no training epoch has it."""


@dataclass(frozen=True)
class SimilarOptions:
    """Choice of similar tokens.

    Attributes:
        cap: Most similar tokens of a token; None for all.
        order: Containing tokens that come first.
        frequencies: Count of each old token, by side, for order ``frequency``.
    """

    cap: int | None
    order: Order
    frequencies: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class NewTokens:
    """Tokens of a batch that the vocabulary lacks, with their similar tokens.

    Attributes:
        members: Ids of similar tokens, int64 [N, W].
        relations: ``Relation`` of each slot, int64 [N, W].
    """

    members: Tensor
    relations: Tensor

    def to(self, device: torch.device | str) -> NewTokens:
        """Move to a device."""
        return NewTokens(self.members.to(device), self.relations.to(device))


@dataclass(frozen=True)
class LookedUp:
    """New tokens of a shard for one embedding table.

    Attributes:
        numbers: Row of each token in ``similar``.
        similar: Their similar tokens.
    """

    numbers: Mapping[Tok, int]
    similar: SimilarTokens


@dataclass(frozen=True)
class Shard:
    """Changed sentences by side and row, and the new tokens in them by table."""

    sentences: Mapping[str, Mapping[int, ChangedSentence]]
    tables: Mapping[str, LookedUp]


class ChangedText:
    """Sentences in changed segmentations, shard by shard in the order in which an epoch reads them.

    **Determinism**: what a sentence becomes depends on ``change`` alone, not on its shard.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        tables: Mapping[str, str],
        change: Callable[[str, int, int], ChangedSentence],
        batches: TokenBatches,
        options: SimilarOptions,
    ) -> None:
        """Set up the text.

        Args:
            vocabularies: Vocabulary of each side that is changed.
            tables: Name of each side's embedding table.
            change: Makes the sentence of a side, a row and an epoch.
            batches: Order in which rows are read.
            options: How similar tokens are chosen.
        """
        self._vocabularies = vocabularies
        self._tables = tables
        self._change = change
        self._batches = batches
        self._options = options
        self._shards = lru_cache(maxsize=2)(self._make_shard)
        self._places = lru_cache(maxsize=2)(self._shard_of_rows)

    def by_row(self, rows: NDArray[np.int64], epoch: int) -> dict[int, Shard]:
        """Find the shard of each of some rows."""
        shards = [self._shards(epoch, int(shard)) for shard in np.unique(self._places(epoch)[rows])]
        return {row: shard for shard in shards for row in next(iter(shard.sentences.values()))}

    def numbering(self) -> BatchNumbering:
        """Start numbering the new tokens of a batch."""
        return BatchNumbering(
            self._tables, {self._tables[side]: len(found) for side, found in self._vocabularies.items()}
        )

    def _shard_of_rows(self, epoch: int) -> NDArray[np.int64]:
        """Number the shard of every row, in the order in which the epoch reads them."""
        batches = self._batches.in_order() if epoch == DEV_EPOCH else self._batches.epoch(epoch)
        order = np.concatenate(batches)
        places = np.zeros(len(order), dtype=np.int64)
        places[order] = np.arange(len(order)) // SHARD_SENTENCES
        return places

    def _make_shard(self, epoch: int, number: int) -> Shard:
        rows = np.flatnonzero(self._places(epoch) == number).tolist()
        sentences = {
            side: {row: self._change(side, row, epoch) for row in rows} for side in self._vocabularies
        }
        found: dict[str, dict[Tok, int]] = {table: {} for table in self._tables.values()}
        for side, changed in sentences.items():
            numbers = found[self._tables[side]]
            for token in _new(changed.values()):
                numbers.setdefault(token, len(numbers))
        tables = {}
        for side, old in self._vocabularies.items():
            numbers = found[self._tables[side]]
            options = self._options
            similar = similar_tokens(
                [*numbers],
                old,
                cap=options.cap,
                order=options.order,
                frequencies=options.frequencies.get(side),
            )
            tables[self._tables[side]] = LookedUp(numbers, similar)
        return Shard(sentences, tables)


def _new(sentences: Iterable[ChangedSentence]) -> Iterable[Tok]:
    return (token for sentence in sentences for token in sentence.tokens if isinstance(token, Tok))


class BatchNumbering:
    """Ids of a batch's new tokens: V, V + 1, ... in the order of appearance."""

    def __init__(self, tables: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        """Start with none; ``tables`` names each side's table, ``sizes`` has V of each table."""
        self._tables = tables
        self._sizes = sizes
        self._numbers: dict[str, dict[Tok, int]] = {table: {} for table in sizes}
        self._members: dict[str, list[list[tuple[int, int]]]] = {table: [] for table in sizes}

    def ids(self, side: str, tokens: Sequence[int | Tok], shard: Shard) -> list[int]:
        """Number the tokens of a side's sentence, whose new ones were looked up in a shard."""
        name = self._tables[side]
        numbers, members, looked_up = self._numbers[name], self._members[name], shard.tables[name]
        ids = []
        for token in tokens:
            if not isinstance(token, Tok):
                ids.append(token)
                continue
            if token not in numbers:
                numbers[token] = len(numbers)
                found = looked_up.similar.of(looked_up.numbers[token])
                members.append([(member, int(relation)) for member, relation in found])
            ids.append(self._sizes[name] + numbers[token])
        return ids

    def new_tokens(self) -> dict[str, NewTokens]:
        """Collect the new tokens numbered so far, by table."""
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
