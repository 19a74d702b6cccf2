"""``nlgraft vocab extend``: a tokenizer with further tokens for a text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from nlgraft.errors import DataError
from nlgraft.vocab.tokenizers.encoding import open_tokenizer
from nlgraft.vocab.tokenizers.extending import continue_merges, extend_tokenizer
from nlgraft.vocab.tokenizers.extending_unigram import complete_unigram, learn_pieces
from nlgraft.vocab_tool.changed import ChangedTokenizer, copy_settings, find_document
from nlgraft.vocab_tool.outputs import refuse_used, written_at_once
from nlgraft.vocab_tool.plan_exchange import read_text

_MARKED_WORD = re.compile("\u2581*[^\u2581]+|\u2581+")
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def extend(
    tokenizer: str, text: Sequence[Path], out: Path, *, num_tokens: int, min_count: int = 2
) -> ChangedTokenizer:
    """Write a BPE or Unigram tokenizer with further tokens, learned on a text behind its own; its ids stay.

    Args:
        tokenizer: A tokenizer.json, a directory with one, or a hub name.
        text: Files of plain or gzipped text.
        out: Directory of the new tokenizer; missing or empty.
        num_tokens: Tokens to add at most.
        min_count: Occurrences that a new token needs.

    Raises:
        DataError: There is no tokenizer.json of such a tokenizer, or ``out`` is in use.
    """
    refuse_used(out)
    file, document = find_document(tokenizer)
    is_unigram = document["model"].get("type") == "Unigram"
    made = complete_unigram(document) if is_unigram else extend_tokenizer(document, [])  # or refuse
    lines = read_text(text)
    old = open_tokenizer(file)
    words = _words(old, lines)
    if is_unigram:
        made["model"]["vocab"] += [*learn_pieces(made["model"], words, num_tokens, min_count).items()]
    else:
        spelled = _spelled(old, document["model"], words)
        made = extend_tokenizer(
            document, continue_merges(spelled, set(old.get_vocab()), num_tokens, min_count)
        )
    with written_at_once(out) as directory:
        written = directory / "tokenizer.json"
        written.write_text(json.dumps(made, ensure_ascii=False), "utf-8")
        copy_settings(file.parent, directory)
        new = tokenizers.Tokenizer.from_file(str(written))
    return ChangedTokenizer.measured(out, old, new, lines)


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
    """Count words as their tokens; one ends at tokens without text: unknown tokens and single bytes."""
    found: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        tokens = [token.value for token in tokenizer.model.tokenize(word)]
        for is_text, run in groupby(tokens, lambda token: not _is_no_text(token, model)):
            if is_text:
                found[tuple(run)] += count
    return found


def _is_no_text(token: str, model: Mapping[str, Any]) -> bool:
    is_byte = bool(model.get("byte_fallback")) and _BYTE.fullmatch(token) is not None
    return is_byte or token == model.get("unk_token")
