"""Rows from partitions of a new token into old tokens (VIPI), and its controls.

Source: Mosin et al. (2021), Fine-Tuning Transformers: Vocabulary Transfer, Table 1 and section 4.1. Of all
ways to spell a token in old tokens those with the fewest count, of these those with the longest token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from nlgraft.vocab.methods.interface import Request, Rows, shares
from nlgraft.vocab.tokenizers.segmenters import marked_characters
from nlgraft.vocab.tokenizers.vocabulary import Kind, Tok, Vocabulary

TieRule = Literal["longest", "count"]


class Edge(NamedTuple):
    """An old token and the characters of the new token that it spells, word marks included."""

    start: int
    end: int
    id: int


class Spelling:
    """Finds the old tokens inside a token, in the notation of the old tokenizer.

    A word mark of its own character (``▁``, ``Ġ``) is a character like others and may be a piece; a prefix of
    inner tokens (``##``) is not. Where the old tokenizer isolates a character, as BERT does punctuation, a
    word ends before it and another begins behind it.
    """

    def __init__(self, old: Vocabulary) -> None:
        self._marking = old.marking
        self._ids = {surface: i for i, surface in enumerate(old.surfaces) if surface and old.is_normal[i]}
        self._longest = max(map(len, self._ids), default=0)
        has_starts = bool(self._marking.start_prefix or self._marking.continuation_prefix)
        ids = self._ids.items() if has_starts else ()
        self._isolated = {s for s, i in ids if old.token(i).starts_word is None}

    def edges(self, tok: Tok) -> tuple[list[Edge], int]:
        """List all old tokens inside a normalised token by their start, and count its characters."""
        if tok.kind is not Kind.NORMAL:
            return [], 0
        characters = [text for text, _ in marked_characters(tok, self._marking)]
        edges = []
        for start in range(len(characters)):
            for end in range(start + 1, min(len(characters), start + self._longest) + 1):
                identity = self._ids.get(self._surface(tok, characters, start, end))
                if identity is not None:
                    edges.append(Edge(start, end, identity))
        return edges, len(characters)

    def _surface(
        self,
        tok: Tok,
        characters: Sequence[str],
        start: int,
        end: int,
    ) -> str:
        is_isolated = characters[start] in self._isolated or (
            start > 0 and characters[start - 1] in self._isolated
        )
        is_inner = not is_isolated and (start > 0 or tok.starts_word is False)
        is_last = end == len(characters) and tok.ends_word is not False
        before = self._marking.continuation_prefix if is_inner else ""
        behind = "" if is_last else self._marking.joiner_suffix
        return f"{before}{''.join(characters[start:end])}{behind}"


@dataclass(frozen=True)
class Partitions:
    """The chosen partitions of a token, counted without listing them.

    A long token of many short pieces has millions; all paths through the graph of pieces are counted by
    dynamic programming instead, in exact integers.

    Attributes:
        edges: Pieces on paths with the fewest pieces, by their start.
        length: Characters of the token.
        num_pieces: Pieces of each partition.
        longest: Characters that the longest piece of a partition must have; 0: any.
    """

    edges: Sequence[Edge]
    length: int
    num_pieces: int
    longest: int

    @staticmethod
    def of(
        edges: Sequence[Edge],
        length: int,
        ties: TieRule = "longest",
    ) -> Partitions | None:
        """Choose the partitions with the fewest pieces; None when there is no partition.

        With ``longest``, the paper's rule, only those whose longest piece is longest among them.
        """
        far = length + 1
        before, behind = [0] + [far] * length, [far] * length + [0]
        for edge in edges:
            before[edge.end] = min(before[edge.end], before[edge.start] + 1)
        for edge in reversed(edges):
            behind[edge.start] = min(behind[edge.start], behind[edge.end] + 1)
        fewest = before[length]
        if not length or fewest == far:
            return None
        best = [edge for edge in edges if before[edge.start] + 1 + behind[edge.end] == fewest]
        longest = max(edge.end - edge.start for edge in best) if ties == "longest" else 0
        return Partitions(best, length, fewest, longest)

    @cached_property
    def _behind(self) -> tuple[list[int], list[int]]:
        """Ways from each position to the end: all, and those without a piece of the longest length."""
        steps = [(edge.end, edge.start, self._is_longest(edge)) for edge in reversed(self.edges)]
        return self._ways(self.length, steps)

    @cached_property
    def _before(self) -> tuple[list[int], list[int]]:
        """Ways from the start to each position, likewise."""
        steps = [(edge.start, edge.end, self._is_longest(edge)) for edge in self.edges]
        return self._ways(0, steps)

    def _ways(self, begin: int, steps: Sequence[tuple[int, int, bool]]) -> tuple[list[int], list[int]]:
        ways, without = ([0] * (self.length + 1) for _ in range(2))
        ways[begin] = 1
        without[begin] = int(self.longest > 0)
        for source, target, is_longest in steps:
            ways[target] += ways[source]
            if not is_longest:
                without[target] += without[source]
        return ways, without

    def _is_longest(self, edge: Edge) -> bool:
        return edge.end - edge.start == self.longest

    @property
    def number(self) -> int:
        """Number of the chosen partitions."""
        ways, without = self._behind
        return ways[0] - without[0]

    def occurrences(self) -> dict[int, int]:
        """Count how often each old token occurs in all chosen partitions together."""
        before, before_without = self._before
        behind, behind_without = self._behind
        counts = {}
        for edge in self.edges:
            # Paths through this piece: ways to reach it times ways to go on.
            number = before[edge.start] * behind[edge.end]
            if not self._is_longest(edge):
                number -= before_without[edge.start] * behind_without[edge.end]
            if number:
                counts[edge.id] = counts.get(edge.id, 0) + number
        return counts

    def draw(self, generator: np.random.Generator) -> list[int]:
        """Draw one of the chosen partitions uniformly: the ids of its pieces, in order."""
        ways, without = self._behind
        position, has_longest, ids = 0, False, []
        while position < self.length:
            choices = [edge for edge in self.edges if edge.start == position]
            weights = [
                ways[edge.end] - (0 if has_longest or self._is_longest(edge) else without[edge.end])
                for edge in choices
            ]
            # Exact integers until here: counts of long tokens may exceed 64 bits.
            shares = np.array([weight / sum(weights) for weight in weights])
            edge = choices[generator.choice(len(choices), p=shares / shares.sum())]
            has_longest = has_longest or self._is_longest(edge)
            position = edge.end
            ids.append(edge.id)
        return ids


def partitions_of(
    tokens: Sequence[Tok],
    old: Vocabulary,
    ties: TieRule,
) -> list[Partitions | None]:
    """Choose the partitions of normalised tokens; None for a token that old tokens cannot spell.

    A token that does not say whether it begins a word is read both ways; the reading with fewer pieces
    counts, on a tie the word-initial one.
    """
    spelling = Spelling(old)

    def of(tok: Tok) -> Partitions | None:
        candidates = [Partitions.of(*spelling.edges(reading), ties) for reading in old.readings(tok)]
        return min(
            (partitions for partitions in candidates if partitions is not None),
            key=lambda partitions: partitions.num_pieces,
            default=None,
        )

    return [of(tok) for tok in tokens]


def vipi(request: Request, *, ties: TieRule = "longest") -> Rows:
    """Average the pieces of each chosen partition, and these averages over the partitions."""
    weights, reasons = [], []
    for partitions in partitions_of(request.tokens, request.old, ties):
        if partitions is None:
            weights.append({})
            reasons.append("no partition into old tokens")
            continue
        total = partitions.number * partitions.num_pieces
        weights.append({identity: count / total for identity, count in partitions.occurrences().items()})
        reasons.append(f"{partitions.number} partitions into {partitions.num_pieces} old tokens")
    return Rows(weights, reasons)


def one_partition(request: Request) -> Rows:
    """Average the pieces of one of VIPI's partitions, drawn at random (section 4.1)."""
    return _drawn(request, "one partition of {}", lambda partitions, generator: partitions.draw(generator))


def shuffled(request: Request) -> Rows:
    """Average as many old tokens as VIPI's partitions have, drawn at random (section 4.1)."""
    normal = np.flatnonzero(request.old.is_normal)

    def draw(partitions: Partitions, generator: np.random.Generator) -> list[int]:
        return generator.choice(normal, partitions.num_pieces, replace=False).tolist()

    return _drawn(request, "{} old tokens at random", draw)


def _drawn(
    request: Request,
    reason: str,
    draw: Callable[[Partitions, np.random.Generator], list[int]],
) -> Rows:
    """Average the tokens that are drawn for each new token, which has a random stream of its own."""
    weights, reasons = [], []
    partitions_by_token = partitions_of(request.tokens, request.old, "longest")
    for row, partitions in zip(request.missing, partitions_by_token, strict=True):
        if partitions is None:
            weights.append({})
            reasons.append("no partition into old tokens")
            continue
        ids = draw(partitions, np.random.default_rng([request.choices.seed, row]))
        weights.append(shares(ids))
        reasons.append(reason.format(f"{partitions.num_pieces} pieces"))
    return Rows(weights, reasons)
