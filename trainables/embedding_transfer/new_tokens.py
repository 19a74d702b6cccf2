"""Out-of-vocabulary tokens of perturbed text: their similar tokens, and their ids in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlgraft.nn.batch import Tokens
from nlgraft.vocab.methods.similar import Order, Relation, similar_tokens
from nlgraft.vocab.tokenizers.tokens import Tok
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.config import SegmentationRates
from trainables.embedding_transfer.perturbation import ChangedSentence


@dataclass(frozen=True)
class ChangedSide:
    """A side of the text whose words are split and merged.

    Attributes:
        vocabulary: Its vocabulary.
        rates: Probabilities of splits and merges.
        table: Name of its embedding table; sides that share a table share the vocabulary.
        frequencies: Count of each old token, for order ``frequency``.
    """

    vocabulary: Vocabulary
    rates: SegmentationRates
    table: str
    frequencies: Sequence[float] | None = None


@dataclass(frozen=True)
class ChangeOptions:
    """How a text is perturbed.

    Attributes:
        sides: The changed sides, ``encoder`` or ``decoder``.
        seed: Seed of the perturbation.
        cap: Maximum number of similar tokens of a token; None: no maximum.
        order: Which containing tokens are preferred under the cap.
        max_tokens: Maximum length that the model can read, without begin and end; a sentence that would
            become longer by splitting is left unchanged. None: no limit.
    """

    sides: Mapping[str, ChangedSide]
    seed: int
    cap: int | None
    order: Order
    max_tokens: int | None = None


@dataclass(frozen=True)
class NewTokens:
    """Out-of-vocabulary tokens of a batch, with their similar tokens.

    Attributes:
        members: Ids of similar tokens, int64 [N, W].
        relations: ``Relation`` of each slot, int64 [N, W].
    """

    members: Tensor
    relations: Tensor

    def to(self, device: torch.device | str) -> NewTokens:
        """Move to a device."""
        return NewTokens(self.members.to(device), self.relations.to(device))


Similar = Sequence[tuple[int, Relation]]
"""Ids and relations of the similar tokens of a token."""


@dataclass(frozen=True)
class Shard:
    """Perturbed sentences by side and row, and the similar tokens of their new tokens, by table.

    They are looked up together because one pass over the vocabulary then serves all sentences of a shard.
    """

    sentences: Mapping[str, Mapping[int, ChangedSentence]]
    similar: Mapping[str, Mapping[Tok, Similar]]

    @classmethod
    def of(cls, sentences: Mapping[str, Mapping[int, ChangedSentence]], options: ChangeOptions) -> Shard:
        """Look up the similar tokens of all new tokens of some sentences."""
        new: dict[str, dict[Tok, None]] = {side.table: {} for side in options.sides.values()}
        for name, by_row in sentences.items():
            for sentence in by_row.values():
                new_toks = (token for token in sentence.tokens if isinstance(token, Tok))
                new[options.sides[name].table].update(dict.fromkeys(new_toks))
        readers = {side.table: side for side in options.sides.values()}
        return cls(sentences, {table: _look_up([*new[table]], readers[table], options) for table in new})


def _look_up(tokens: Sequence[Tok], side: ChangedSide, options: ChangeOptions) -> Mapping[Tok, Similar]:
    similar = similar_tokens(
        tokens, side.vocabulary, cap=options.cap, order=options.order, frequencies=side.frequencies
    )
    return {token: similar.of(row) for row, token in enumerate(tokens)}


class BatchNumbering:
    """Assigns ids to the new tokens of a batch: V, V + 1, ... in order of appearance."""

    def __init__(self, sides: Mapping[str, ChangedSide]) -> None:
        self._sides = sides
        self._numbers: dict[str, dict[Tok, int]] = {side.table: {} for side in sides.values()}
        self._similar: dict[str, list[Sequence[tuple[int, Relation]]]] = {
            table: [] for table in self._numbers
        }

    def ids(self, name: str, tokens: Sequence[int | Tok], shard: Shard) -> list[int]:
        """Number the tokens of a sentence whose new tokens were looked up in a shard."""
        side = self._sides[name]
        numbers, ids = self._numbers[side.table], []
        for token in tokens:
            if not isinstance(token, Tok):
                ids.append(token)
                continue
            if token not in numbers:
                numbers[token] = len(numbers)
                self._similar[side.table].append(shard.similar[side.table][token])
            ids.append(len(side.vocabulary) + numbers[token])
        return ids

    def new_tokens(self) -> dict[str, NewTokens]:
        """Collect the new tokens numbered so far, by table."""
        made = {}
        for table, similar in self._similar.items():
            members = Tokens.from_lists([[member for member, _ in row] for row in similar])
            relations = [[int(relation) for _, relation in row] for row in similar]
            made[table] = NewTokens(members.ids, Tokens.from_lists(relations, int(Relation.PAD)).ids)
        return made
