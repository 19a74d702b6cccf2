"""Segmentation of a single word or part of a word, for each kind of tokenizer.

Tokenizer libraries segment whole sentences: they add spaces, pre-tokenize, and have no way to say that a
piece continues a word or that the whole word may not be used. Within a word these agree with the libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from nlgraft.vocab.tokenizers.vocabulary import Marking, Piece, Tok

Symbol = tuple[str, int]
"""A part of a token in its tokenizer's notation, and how many bytes of the core it spells."""
Rank = Callable[[str, str], float | None]
"""When two neighbouring symbols are merged, the lowest first; None: never."""
UNKNOWN_PENALTY = 10.0
"""An unknown character scores this much below the lowest piece, as in SentencePiece."""


@dataclass(frozen=True)
class GreedySegmenter:
    """Longest match first, from the left (WordPiece, subword-nmt vocabularies).

    A word that cannot be spelled to its end has no pieces, as WordPiece makes it one unknown token. Source:
    Wu et al. (2016), section 4.1.

    Attributes:
        ids: Vocabulary entries, marks included.
        marking: Notation of word boundaries.
        is_isolated: True for characters that are words of their own anywhere (BERT: punctuation).
    """

    ids: Mapping[str, int]
    marking: Marking
    is_isolated: Callable[[str], bool] = lambda character: False

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids), default=0)

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Segment ``tok``; see ``Segmenter.segment``."""
        characters = self.marking.characters(tok.core)
        if not characters:
            return []
        pieces = []
        position = offset = 0
        while position < len(characters):
            match = self._longest_match(tok, characters, position, is_whole_allowed)
            if match is None:
                return []
            identity, end = match
            num_bytes = sum(size for _, size in characters[position:end])
            pieces.append(Piece(identity, offset, offset + num_bytes))
            position, offset = end, offset + num_bytes
        return pieces

    def _longest_match(
        self,
        tok: Tok,
        characters: list[tuple[str, int]],
        start: int,
        is_whole_allowed: bool,
    ) -> tuple[int, int] | None:
        marking, count = self.marking, len(characters)
        before = marking.continuation_prefix if start or tok.starts_word is False else ""
        if start == 0 and tok.starts_word:
            before = marking.start_prefix
        is_alone = [self.is_isolated(character) for character, _ in characters]
        if is_alone[start] or (start and is_alone[start - 1]):
            before = marking.start_prefix
        reach = start + 1
        while not is_alone[start] and reach < count and not is_alone[reach]:
            reach += 1
        for end in range(min(reach, start + self._longest), start, -1):
            if not is_whole_allowed and end - start == count:
                continue
            is_last = end == count and tok.ends_word is not False
            behind = marking.end_suffix if is_last else marking.joiner_suffix
            text = "".join(character for character, _ in characters[start:end])
            identity = self.ids.get(f"{before}{text}{behind}")
            if identity is not None:
                return identity, end
        return None


@dataclass(frozen=True)
class UnigramSegmenter:
    """The most probable segmentation by Viterbi (SentencePiece unigram). Source: Kudo (2018), section 3.2.

    Attributes:
        ids: Vocabulary entries, marks included.
        scores: Logarithms of their probabilities.
        marking: Notation of word boundaries.
    """

    ids: Mapping[str, int]
    scores: Mapping[str, float]
    marking: Marking

    def with_ids(self, ids: Mapping[str, int]) -> UnigramSegmenter:
        """Return a segmenter with the same scores and another numbering; pieces not in ``ids`` go unused."""
        scores = {piece: score for piece, score in self.scores.items() if piece in ids}
        return UnigramSegmenter(ids, scores, self.marking)

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Segment ``tok``; see ``Segmenter.segment``."""
        symbols = marked_characters(tok, self.marking)
        if not symbols:
            return []
        text = "".join(character for character, _ in symbols)
        offsets = [*accumulate((num_bytes for _, num_bytes in symbols), initial=0)]
        best = [0.0] + [float("-inf")] * len(text)
        came_from = [(0, -1)] * (len(text) + 1)
        for end in range(1, len(text) + 1):
            for start in range(max(0, end - self._longest), end):
                piece = text[start:end]
                score = self.scores.get(piece)
                if score is None and end - start > 1:
                    continue
                is_whole = offsets[end] - offsets[start] == len(tok.core)
                if is_whole and not is_whole_allowed and score is not None:
                    continue
                # An unknown character costs more than any piece, so it is used only where nothing else fits.
                total = best[start] + (self._unknown_score if score is None else score)
                if total > best[end]:
                    best[end] = total
                    came_from[end] = (start, -1 if score is None else self.ids[piece])
        return _walk_back(came_from, offsets) if best[-1] > float("-inf") else []

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids), default=0)

    @cached_property
    def _unknown_score(self) -> float:
        return min(self.scores.values(), default=0.0) - UNKNOWN_PENALTY


def _walk_back(came_from: list[tuple[int, int]], offsets: list[int]) -> list[Piece]:
    pieces: list[Piece] = []
    end = len(came_from) - 1
    while end > 0:
        start, identity = came_from[end]
        if identity >= 0:
            pieces.append(Piece(identity, offsets[start], offsets[end]))
        end = start
    return pieces[::-1]


@dataclass(frozen=True)
class BpeSegmenter:
    """Merges of neighbouring symbols, the earliest learned first (every kind of BPE).

    Source: Sennrich et al. (2016), Algorithm 1; SentencePiece ranks a merge by the score of its result.

    Attributes:
        ids: Vocabulary entries, marks included.
        marking: Notation of word boundaries.
        rank: Rank of each merge.
    """

    ids: Mapping[str, int]
    marking: Marking
    rank: Rank

    def with_ids(self, ids: Mapping[str, int]) -> BpeSegmenter:
        """Return a segmenter with the same merges and another numbering; pieces not in ``ids`` vanish."""
        return replace(self, ids=ids)

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Segment ``tok``; see ``Segmenter.segment``."""
        symbols = self._initial(tok)
        longest = len(tok.core) if is_whole_allowed else len(tok.core) - 1
        for _ in merges(symbols, self.rank, self.marking.continuation_prefix, longest):
            pass
        pieces = []
        offset = 0
        for text, num_bytes in symbols:
            identity = self.ids.get(text)
            if identity is not None:
                pieces.append(Piece(identity, offset, offset + num_bytes))
            offset += num_bytes
        return pieces

    def _initial(self, tok: Tok) -> list[tuple[str, int]]:
        symbols = marked_characters(tok, self.marking)
        if prefix := self.marking.continuation_prefix:
            first = int(tok.starts_word is not False)
            symbols[first:] = [(prefix + text, size) for text, size in symbols[first:]]
        return symbols


def merges(
    symbols: list[Symbol],
    rank: Rank,
    prefix: str,
    longest: int,
) -> Iterator[str]:
    """Merge neighbouring symbols in place, the lowest rank first, until none has a rank; yield what is made.

    ``prefix`` marks inner tokens; a merge drops it from its right side; ``longest`` is the most bytes of one.
    """
    while True:
        ranks = [
            rank(first, second) if first_bytes + second_bytes <= longest else None
            for (first, first_bytes), (second, second_bytes) in pairwise(symbols)
        ]
        ranked = [(value, index) for index, value in enumerate(ranks) if value is not None]
        if not ranked:
            return
        # Of equal ranks the leftmost pair is merged first.
        _, index = min(ranked)
        (first, first_bytes), (second, second_bytes) = symbols[index : index + 2]
        made = first + second.removeprefix(prefix)
        symbols[index : index + 2] = [(made, first_bytes + second_bytes)]
        yield made


def rank_by(pairs: Iterable[tuple[str, str]]) -> Rank:
    """Rank merges in the order in which they were learned; of repeated ones the first counts."""
    ranks = {pair: rank for rank, pair in enumerate(dict.fromkeys(pairs))}
    return lambda first, second: ranks.get((first, second))


def marked_characters(tok: Tok, marking: Marking) -> list[tuple[str, int]]:
    """Spell a token with its start mark as a character of its own and its end mark on the last character."""
    symbols = marking.characters(tok.core)
    if symbols is None:
        return []
    if tok.starts_word and marking.start_prefix:
        symbols = [(marking.start_prefix, 0), *symbols]
    if tok.ends_word and marking.end_suffix:
        if len(marking.end_suffix) == 1:
            symbols = [*symbols, (marking.end_suffix, 0)]
        elif symbols:
            text, num_bytes = symbols[-1]
            symbols = [*symbols[:-1], (text + marking.end_suffix, num_bytes)]
    return symbols
