"""Larger vocabularies learned on a text: new tokens behind those of a BPE or Unigram tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import tokenizers

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.extending import continue_merges, extend_tokenizer
from nlgraft.vocab.tokenizers.extending_unigram import complete_unigram, learn_pieces

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
        made["model"]["vocab"] += [*learn_pieces(made["model"], words, num_tokens, min_count).items()]
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
    words: Counter[str] = Counter()
    for line in lines:
        text = line if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(line)
        pre = tokenizer.pre_tokenizer
        parts = [text] if pre is None else [part for part, _ in pre.pre_tokenize_str(text)]
        words.update(word for part in parts for word in _MARKED_WORD.findall(part))
        if pre is None and " " in text:
            raise DataError("the tokenizer does not separate words, so new tokens would run over spaces")
    return words


def _spelled(
    tokenizer: tokenizers.Tokenizer, model: Mapping[str, Any], words: Mapping[str, int]
) -> Counter[tuple[str, ...]]:
    """Count the runs of tokens that spell words; tokens without text (unknown, single bytes) end a run."""
    run_counts: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        tokens = [token.value for token in tokenizer.model.tokenize(word)]
        for is_text, run in groupby(tokens, lambda token: not _is_no_text(token, model)):
            if is_text:
                run_counts[tuple(run)] += count
    return run_counts


def _is_no_text(token: str, model: Mapping[str, Any]) -> bool:
    is_byte = bool(model.get("byte_fallback")) and _BYTE.fullmatch(token) is not None
    return is_byte or token == model.get("unk_token")
