"""Random segmentation that another process can repeat.

SentencePiece samples too, but even when seeded it draws another segmentation in every process (0.2.3), so a
resumed training would see other text. Pieces never cross a word boundary, so words are segmented one by one
and the work per word is cached.
"""

from __future__ import annotations

import math
import random
import re
from abc import abstractmethod
from bisect import bisect
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate

_WORD = re.compile("\u2581?[^\u2581]+|\u2581")
_UNKNOWN_PENALTY = 10.0  # below the least likely piece, as in SentencePiece
_MAX_WORDS = 200_000  # cached words; the cache is cleared beyond
_MAX_STEPS = 1_000_000  # cached states of BPE-dropout; cleared beyond, too


@dataclass(frozen=True)
class PieceTable:
    """Pieces of a model, as sampling needs them.

    Attributes:
        ids: Id of every piece that text can produce.
        scores: Log-probability (unigram) or minus the rank of the merge (BPE) of these ids.
        unknown: Id of UNK.
        symbols: Pieces that are never cut, wherever they stand in a word.
        byte_ids: Ids of the 256 bytes, by value, which spell other characters; empty: these are UNK.
    """

    ids: dict[str, int]
    scores: dict[int, float]
    unknown: int
    symbols: tuple[str, ...] = ()
    byte_ids: tuple[int, ...] = ()

    def spell(self, character: str) -> list[int]:
        """Return the ids of a character that is no piece."""
        if self.byte_ids:
            return [self.byte_ids[byte] for byte in character.encode()]
        return [self.unknown]


class _Sampler:
    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._symbols = re.compile(f"({'|'.join(map(re.escape, table.symbols))})") if table.symbols else None

    def line(self, normalized: str, rng: random.Random) -> list[int]:
        """Sample a segmentation of a line that the model has normalised (words begin with U+2581).

        Neighbouring unknown characters are one UNK, as in SentencePiece.
        """
        ids = []
        # split by a group, every second part is a symbol
        for index, part in enumerate(self._symbols.split(normalized) if self._symbols else [normalized]):
            if index % 2:
                ids.append(self._table.ids[part])
                continue
            for word in _WORD.findall(part):
                ids += self._word(word, rng)
        unknown = self._table.unknown
        if unknown not in ids:
            return ids
        return [
            piece_id
            for piece_id, before in zip(ids, [-1, *ids], strict=False)
            if not piece_id == before == unknown
        ]

    @abstractmethod
    def _word(self, word: str, rng: random.Random) -> list[int]: ...


_Ends = tuple[list[float], list[tuple[int, int]]]
"""Of the pieces that end at a position: cumulative weights, and start and id of each."""


class UnigramSampler(_Sampler):
    """Draws a segmentation with probability proportional to its likelihood to the power alpha.

    Source: Kudo (2018), Subword Regularization, §3.2 with l = all segmentations: forward filtering, backward
    sampling.
    """

    def __init__(self, table: PieceTable, alpha: float) -> None:
        """Set up the sampler; ``alpha`` 0 draws all segmentations alike, 1 by their likelihood."""
        super().__init__(table)
        self._alpha = alpha
        self._longest = max(map(len, table.ids), default=1)
        self._unknown_score = min(table.scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self._known: dict[str, list[_Ends]] = {}

    def _word(self, word: str, rng: random.Random) -> list[int]:
        ends = self._known.get(word)
        if ends is None:
            if len(self._known) >= _MAX_WORDS:
                self._known.clear()
            ends = self._known[word] = self._ends(word)
        ids = []
        end = len(word)
        while end:
            bounds, pieces = ends[end]
            drawn = bisect(bounds, rng.random() * bounds[-1], 0, len(bounds) - 1)
            end, piece = pieces[drawn]
            ids += [piece] if piece != self._table.unknown else reversed(self._table.spell(word[end]))
        ids.reverse()
        return ids

    def _ends(self, word: str) -> list[_Ends]:
        """List the pieces that end at every position, as (start, id), and their cumulative weights."""
        ids, scores = self._table.ids, self._table.scores
        forward = [0.0]
        ends: list[_Ends] = [([], [])]
        for end in range(1, len(word) + 1):
            pieces: list[tuple[int, int]] = []
            logs: list[float] = []
            for start in range(max(0, end - self._longest), end):
                piece = ids.get(word[start:end])
                if piece is not None:
                    pieces.append((start, piece))
                    logs.append(forward[start] + self._alpha * scores[piece])
            if not pieces or pieces[-1][0] != end - 1:  # the character itself is not a piece
                pieces.append((end - 1, self._table.unknown))
                logs.append(forward[end - 1] + self._alpha * self._unknown_score)
            # Log-sum-exp: likelihoods of long words would underflow.
            most = max(logs)
            weights = [math.exp(log - most) for log in logs]
            forward.append(most + math.log(sum(weights)))
            ends.append((list(accumulate(weights)), pieces))
        return ends


@dataclass
class _Step:
    """State of BPE-dropout: a merge to try, or the end.

    The path through a word depends on which merges were skipped so far, so states form a tree, built where it
    is visited.
    """

    ids: list[int] | None  # at the end
    symbols: list[str]
    waiting: list[tuple[float, int, int]]  # minus the score, left position, length after the merge
    after: dict[bool, _Step] = field(default_factory=dict)


class BpeSampler(_Sampler):
    """Skips every merge with a probability.

    Source: Provilkov et al. (2020), BPE-Dropout, Algorithm 1, as in SentencePiece: a skipped occurrence of a
    merge is not tried again.
    """

    def __init__(self, table: PieceTable, alpha: float) -> None:
        """Set up the sampler; ``alpha`` is the probability of skipping a merge."""
        super().__init__(table)
        self._alpha = alpha
        self._known: dict[str, _Step] = {}
        self._num_steps = 0

    def _word(self, word: str, rng: random.Random) -> list[int]:
        step = self._known.get(word)
        if step is None:
            if self._num_steps >= _MAX_STEPS:
                self._known.clear()
                self._num_steps = 0
            step = self._known[word] = self._start(word)
        chance = rng.random
        while step.ids is None:
            is_skipped = chance() < self._alpha
            following = step.after.get(is_skipped)
            if following is None:
                following = step.after[is_skipped] = self._follow(step, is_skipped)
            step = following
        return step.ids

    def _start(self, word: str) -> _Step:
        symbols = list(word)
        pairs = (self._pair(symbols, index, index + 1) for index in range(len(symbols) - 1))
        waiting = [pair for pair in pairs if pair]
        heapify(waiting)
        return self._next(symbols, waiting)

    def _pair(
        self,
        symbols: list[str],
        first: int,
        second: int,
    ) -> tuple[float, int, int] | None:
        merged = symbols[first] + symbols[second]
        piece = self._table.ids.get(merged)
        if piece is None:
            return None
        return (-self._table.scores[piece], first, len(merged))

    def _next(self, symbols: list[str], waiting: list[tuple[float, int, int]]) -> _Step:
        self._num_steps += 1
        # A merged symbol takes the place of its left part and "" that of the right one, so the length tells
        # queued merges whose parts have changed.
        while waiting:
            _, first, length = waiting[0]
            second = first + len(symbols[first])
            is_there = symbols[first] and second < len(symbols)
            if is_there and len(symbols[first]) + len(symbols[second]) == length:
                return _Step(None, symbols, waiting)
            heappop(waiting)
        table = self._table
        ids: list[int] = []
        for symbol in filter(None, symbols):
            ids += [table.ids[symbol]] if symbol in table.ids else table.spell(symbol)
        return _Step(ids, symbols, [])

    def _follow(self, step: _Step, is_skipped: bool) -> _Step:
        symbols, waiting = list(step.symbols), list(step.waiting)
        _, first, length = heappop(waiting)
        if not is_skipped:
            second = first + len(symbols[first])
            symbols[first], symbols[second] = symbols[first] + symbols[second], ""
            before = first - 1
            while before >= 0 and not symbols[before]:
                before -= 1
            after = first + length
            for pair in (
                self._pair(symbols, before, first) if before >= 0 else None,
                self._pair(symbols, first, after) if after < len(symbols) else None,
            ):
                if pair is not None:
                    heappush(waiting, pair)
        return self._next(symbols, waiting)
