"""Larger vocabularies of unigram tokenizers: pieces that raise the likelihood of a text most.

Source: Kudo (2018), section 3.2, as SentencePiece's trainer does it: many frequent strings, of which those
with the smallest loss of likelihood are dropped in rounds, between estimates of their probabilities by
expectation and maximisation. Here old pieces and their scores stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from nlgraft.basics.errors import DataError

MAX_PIECE_CHARACTERS, SEEDS_PER_PIECE, KEPT_SHARE = 16, 10, 0.75
"""SentencePiece's longest piece, its share of pieces that stay in a round; strings to begin with."""
UNKNOWN_PENALTY = 10.0
"""An unknown character scores this much below the lowest piece, as in SentencePiece."""
NUM_COUNTS, MIN_EXPECTED = 2, 0.5
"""The trainer's estimates in a round, and the expected occurrences below which it drops a piece."""
MARK = "\u2581"

Scores = dict[str, float]


def complete_unigram(document: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a ``tokenizer.json`` with its added tokens in the model's own list, so that pieces can follow.

    Raises:
        DataError: An id has no token.
    """
    vocab = [*document["model"]["vocab"]]
    lowest = min(score for _, score in vocab)
    for entry in sorted(document.get("added_tokens") or [], key=lambda entry: entry["id"]):
        if entry["id"] < len(vocab):
            continue
        if entry["id"] > len(vocab):
            raise DataError(f"id {len(vocab)} has no token, so new pieces cannot follow the last one")
        vocab.append([entry["content"], lowest])
    return {**document, "model": {**document["model"], "vocab": vocab}}


def learn_pieces(
    model: Mapping[str, Any], words: Mapping[str, int], num_pieces: int, min_count: int
) -> Scores:
    """Learn pieces of words, with the scores that they get beside the old ones; best gain first.

    Every piece is the best segmentation of its own text.

    Args:
        model: The ``model`` of a ``tokenizer.json``, a Unigram.
        words: Marked words of the text, and how often each occurs.
        num_pieces: Pieces at most.
        min_count: Expected occurrences that a piece needs.
    """
    old: Scores = dict(model["vocab"])
    new = _seeds(words, old, num_pieces * SEEDS_PER_PIECE, min_count)
    size = len(new)
    while True:
        size = max(num_pieces, int(size * KEPT_SHARE))
        fewest = min_count if size == num_pieces else MIN_EXPECTED
        counts: dict[str, float] = {}
        for _ in range(NUM_COUNTS):
            counts = expected_counts(words, old | new)
            total = sum(counts.values())
            new = {piece: math.log(counts[piece] / total) for piece in new if counts[piece] >= fewest}
        gains = _gains(counts, new, old)
        gaining = [piece for piece in new if gains[piece] > 0]
        kept: list[str] = sorted(gaining, key=lambda piece: (-gains[piece], piece))
        if len(kept) == len(new) <= num_pieces:
            return {piece: new[piece] for piece in kept}
        new = {piece: new[piece] for piece in kept[:size]}


def _seeds(words: Mapping[str, int], old: Scores, size: int, min_count: int) -> Scores:
    """Find frequent strings within words, those first that cover most of the text."""
    counts: dict[str, int] = {}
    shorter: dict[str, int] = {}
    for length in range(1, MAX_PIECE_CHARACTERS + 1):
        length_counts: Counter[str] = Counter()
        for word, count in words.items():
            for start in range(len(word) - length + 1):
                piece = word[start : start + length]
                # What is frequent has frequent parts; the others would fill the memory.
                if length == 1 or (piece[:-1] in shorter and piece[1:] in shorter):
                    length_counts[piece] += count
        shorter = {piece: count for piece, count in length_counts.items() if count >= min_count}
        counts |= shorter
    total = sum(count * len(word) for word, count in words.items())
    new = sorted(counts.keys() - {*old, MARK}, key=lambda piece: (-counts[piece] * len(piece), piece))
    return {piece: math.log(counts[piece] / total) for piece in new[:size]}


def expected_counts(words: Mapping[str, int], scores: Mapping[str, float]) -> dict[str, float]:
    """Compute how often each piece is expected in words, over all segmentations by their probabilities.

    Args:
        words: Words, and how often each occurs.
        scores: Logarithm of the probability of each piece; a character without one scores below all.
    """
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    counts: defaultdict[str, float] = defaultdict(float)
    for word, count in words.items():
        edges = [_edges(word, end, scores, unknown) for end in range(len(word) + 1)]
        before = [0.0]
        for end in range(1, len(word) + 1):
            before.append(_log_sum([before[start] + score for start, score in edges[end]]))
        after: list[list[float]] = [[] for _ in edges]
        after[-1] = [0.0]
        for end in range(len(word), 0, -1):
            rest = _log_sum(after[end])
            for start, score in edges[end]:
                after[start].append(score + rest)
                share = math.exp(before[start] + score + rest - before[-1])
                counts[word[start:end]] += count * share
    return counts


def _edges(text: str, end: int, scores: Mapping[str, float], unknown: float) -> list[tuple[int, float]]:
    """List start and score of the pieces of a text that end at a place."""
    edges = [
        (start, score)
        for start in range(max(0, end - MAX_PIECE_CHARACTERS), end)
        if (score := scores.get(text[start:end])) is not None
    ]
    if end and text[end - 1 : end] not in scores:
        edges.append((end - 1, unknown))
    return edges


def _log_sum(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + math.log(sum(math.exp(value - highest) for value in values))


def _gains(counts: Mapping[str, float], new: Scores, old: Scores) -> Scores:
    """Compute how much likelihood each new piece adds, over the best segmentation without it."""
    scores = old | new
    unknown = min(old.values()) - UNKNOWN_PENALTY
    return {piece: counts[piece] * (score - _best(piece, scores, unknown)) for piece, score in new.items()}


def _best(text: str, scores: Scores, unknown: float) -> float:
    """Score the best segmentation of a text into more than one piece, or into unknown characters."""
    best = [0.0]
    for end in range(1, len(text) + 1):
        ways = _edges(text, end, scores, unknown)
        if end == len(text):
            # A piece of one character has nothing else to be made of.
            ways = [way for way in ways if way[0] > 0] or [(end - 1, unknown)]
        best.append(max(best[start] + score for start, score in ways))
    return best[-1]
