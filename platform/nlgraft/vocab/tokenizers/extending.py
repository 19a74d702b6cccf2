"""Larger vocabularies: BPE continued on other text, with new merges after all old ones.

Source: Sennrich et al. (2016), Algorithm 1, starting from the old tokenizer's tokens instead of characters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from nlgraft.basics.errors import DataError

Pair = tuple[str, str]


def continue_merges(
    words: Mapping[tuple[str, ...], int], taken: set[str], num_merges: int, min_count: int
) -> list[Pair]:
    """Learn merges of neighbouring tokens, the most frequent first; ties by the tokens' text.

    Every new token is reachable: its two parts stood side by side when all earlier merges were done, and
    merges do not depend on the context, so its own text becomes these parts and then itself.

    Args:
        words: Tokens of each distinct word, and how often it occurs.
        taken: Tokens that exist; no merge makes them again.
        num_merges: Merges at most.
        min_count: Occurrences that a pair needs.
    """
    spelled = [list(word) for word in words]
    times = list(words.values())
    counts: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, tokens in enumerate(spelled):
        for pair in pairwise(tokens):
            counts[pair] += times[index]
            places[pair].add(index)
    made: list[Pair] = []
    # A copy: the caller's set stays as it is.
    taken = set(taken)
    # Every change of a count adds an entry; entries that are out of date are skipped.
    heap = [(-count, pair) for pair, count in counts.items()]
    heapify(heap)
    while heap and len(made) < num_merges:
        negative, best = heappop(heap)
        if counts[best] != -negative or "".join(best) in taken:
            continue
        if -negative < min_count:
            break
        made.append(best)
        taken.add("".join(best))
        changed: set[Pair] = set()
        for index in sorted(places.pop(best)):
            for pair in pairwise(spelled[index]):
                counts[pair] -= times[index]
                changed.add(pair)
            spelled[index] = _merged(spelled[index], best)
            for pair in pairwise(spelled[index]):
                counts[pair] += times[index]
                places[pair].add(index)
                changed.add(pair)
        for pair in changed:
            heappush(heap, (-counts[pair], pair))
    return made


def _merged(tokens: Sequence[str], pair: Pair) -> list[str]:
    """Join every occurrence of a pair, from the left."""
    merged: list[str] = []
    index = 0
    while index < len(tokens):
        if tuple(tokens[index : index + 2]) == pair:
            merged.append("".join(pair))
            index += 2
        else:
            merged.append(tokens[index])
            index += 1
    return merged


def extend_tokenizer(document: Mapping[str, Any], merges: Sequence[Pair]) -> dict[str, Any]:
    """Append merges and their tokens to a ``tokenizer.json`` of BPE; all old ids stay.

    Raises:
        DataError: It is another kind of tokenizer, or its merges drop a prefix (``##``).
    """
    model = document["model"]
    if "merges" not in model or model.get("continuing_subword_prefix"):
        raise DataError(
            "only BPE whose tokens have no prefix of inner tokens, and Unigram, can be extended; learn a new "
            "vocabulary and plan its rows instead"
        )
    vocab = dict(model["vocab"])
    for entry in document.get("added_tokens") or []:
        # the library gives added tokens behind the vocabulary new ids when that has grown
        vocab.setdefault(entry["content"], entry["id"])
    first = max(vocab.values()) + 1
    vocab |= {"".join(pair): first + number for number, pair in enumerate(merges)}
    old = model["merges"]
    is_text = bool(old) and isinstance(old[0], str)
    new = [" ".join(pair) if is_text else list(pair) for pair in merges]
    return {**document, "model": {**model, "vocab": vocab, "merges": [*old, *new]}}
