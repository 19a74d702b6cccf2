"""Larger vocabularies learned on a text: new tokens behind those of a BPE or Unigram tokenizer."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import tokenizers

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, write_json
from nlgraft.vocab.tokenizers.loading import read_by_transformers
from nlgraft.vocab.tokenizers.segmenters import UNKNOWN_PENALTY

_MARKED_WORD = re.compile("\u2581*[^\u2581]+|\u2581+")
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def learn_extension(
    tokenizer: tokenizers.Tokenizer,
    document: Mapping[str, Any],
    lines: Sequence[str],
    num_tokens: int,
    min_count: int,
) -> dict[str, Any]:
    """Learn further tokens of a tokenizer on a text; all old ids stay.

    Args:
        tokenizer: The tokenizer.
        document: Its ``tokenizer.json``.
        lines: The text.
        num_tokens: Tokens to add at most.
        min_count: Occurrences that a new token needs.

    Returns:
        The ``tokenizer.json`` of the larger one.

    Raises:
        DataError: It is no BPE or Unigram tokenizer, or does not separate words.
    """
    words = _words(tokenizer, lines)
    if _is_unigram(document):
        made = complete_unigram(document)
        pieces = learn_pieces(made["model"], words, num_tokens, min_count)
        made["model"]["vocab"] += [*pieces.items()]
        return made
    spelled = _spelled(tokenizer, document["model"], words)
    taken = set(tokenizer.get_vocab())
    return extend_tokenizer(document, continue_merges(spelled, taken, num_tokens, min_count))


def check_extensible(document: Mapping[str, Any]) -> None:
    """Refuse a ``tokenizer.json`` that cannot be extended.

    Raises:
        DataError: It is no BPE or Unigram tokenizer.
    """
    _ = complete_unigram(document) if _is_unigram(document) else extend_tokenizer(document, [])


def _is_unigram(document: Mapping[str, Any]) -> bool:
    return document["model"].get("type") == "Unigram"


def _words(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> Counter[str]:
    """Count the words of a text as the tokenizer separates them; SentencePiece's mark begins one.

    Raises:
        DataError: Words are not separated.
    """
    words = Counter()
    for line in lines:
        text = line if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(line)
        pre = tokenizer.pre_tokenizer
        parts = [text] if pre is None else [part for part, _ in pre.pre_tokenize_str(text)]
        words.update(word for part in parts for word in _MARKED_WORD.findall(part))
        if pre is None and " " in text:
            raise DataError("the tokenizer does not separate words, so new tokens would run over spaces")
    return words


def _spelled(
    tokenizer: tokenizers.Tokenizer,
    model: Mapping[str, Any],
    words: Mapping[str, int],
) -> Counter[tuple[str, ...]]:
    """Count the runs of tokens that spell words; tokens without text (unknown, single bytes) end a run."""
    run_counts = Counter()
    for word, count in words.items():
        tokens = [token.value for token in tokenizer.model.tokenize(word)]
        for is_text, run in groupby(tokens, lambda token: not _is_no_text(token, model)):
            if is_text:
                run_counts[tuple(run)] += count
    return run_counts


def _is_no_text(token: str, model: Mapping[str, Any]) -> bool:
    is_byte = bool(model.get("byte_fallback")) and _BYTE.fullmatch(token) is not None
    return is_byte or token == model.get("unk_token")


# Larger vocabularies: BPE continued on other text, with new merges after all old ones.
#
# Source: Sennrich et al. (2016), Algorithm 1, starting from the old tokenizer's tokens instead of characters.


Pair = tuple[str, str]


def continue_merges(
    words: Mapping[tuple[str, ...], int],
    taken: set[str],
    num_merges: int,
    min_count: int,
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
    made = []
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
    merged = []
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


# Larger vocabularies of unigram tokenizers: pieces that raise the likelihood of a text most.
#
# Source: Kudo (2018), section 3.2, as SentencePiece's trainer does it: many frequent strings, of which those
# with the smallest loss of likelihood are dropped in rounds, between estimates of their probabilities by
# expectation and maximisation. Here old pieces and their scores stay as they are.


MAX_PIECE_CHARACTERS, SEEDS_PER_PIECE, KEPT_SHARE = 16, 10, 0.75
"""SentencePiece's longest piece, its share of pieces that stay in a round; strings to begin with."""
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
    model: Mapping[str, Any],
    words: Mapping[str, int],
    num_pieces: int,
    min_count: int,
) -> Scores:
    """Learn pieces of words, with the scores that they get beside the old ones; best gain first.

    Every piece is the best segmentation of its own text.

    Args:
        model: The ``model`` of a ``tokenizer.json``, a Unigram.
        words: Marked words of the text, and how often each occurs.
        num_pieces: Pieces at most.
        min_count: Expected occurrences that a piece needs.
    """
    old = dict(model["vocab"])
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


def _seeds(
    words: Mapping[str, int],
    old: Scores,
    size: int,
    min_count: int,
) -> Scores:
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
    new = sorted(counts.keys() - {*old, MARK})
    new.sort(key=lambda piece: -counts[piece] * len(piece))
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


def _edges(
    text: str,
    end: int,
    scores: Mapping[str, float],
    unknown: float,
) -> list[tuple[int, float]]:
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


def _gains(
    counts: Mapping[str, float],
    new: Scores,
    old: Scores,
) -> Scores:
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


# Append the special tokens of one tokenizer to another.


def append_tokens(
    directory: Path,
    entries: Sequence[Mapping[str, Any]],
    roles: Mapping[str, str],
) -> None:
    """Append tokens to a tokenizer, in place; all of its ids stay.

    Args:
        directory: A tokenizer that ``transformers`` loads.
        entries: Entries of ``added_tokens`` in a ``tokenizer.json``; they get the next ids, in this order.
        roles: Role -> text of a token that takes this role.

    Raises:
        DataError: It has no ``tokenizer.json`` and none can be made.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        read_by_transformers(directory).save_pretrained(directory)
    if not file.is_file():
        raise DataError(
            "the new tokenizer has no form of tokenizer.json, so no special token can be appended to it; "
            "add the tokens to it yourself, or give --keep-special none"
        )
    document = read_json(file)
    vocab, added = document["model"]["vocab"], document.get("added_tokens") or []
    used = vocab.values() if isinstance(vocab, Mapping) else [len(vocab) - 1]
    first = max([*used, *(entry["id"] for entry in added)]) + 1
    made = [{**entry, "id": first + number} for number, entry in enumerate(entries)]
    if isinstance(vocab, dict):
        # Tokens behind a vocabulary with gaps would get other ids, unless they stand in it themselves.
        vocab |= {entry["content"]: entry["id"] for entry in [*added, *made]}
    document["added_tokens"] = [*added, *made]
    file.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    _name_tokens(directory, [entry["content"] for entry in made if entry["special"]], roles)


def _name_tokens(
    directory: Path,
    specials: Sequence[str],
    roles: Mapping[str, str],
) -> None:
    """Name special tokens and roles in ``tokenizer_config.json``."""
    file = directory / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    config |= {f"{role}_token": token for role, token in roles.items()}
    key = "additional_special_tokens" if "additional_special_tokens" in config else "extra_special_tokens"
    named = config.get(key) or []
    if isinstance(named, list):
        config[key] = [*named, *(token for token in specials if token not in roles.values())]
    write_json(file, config)
