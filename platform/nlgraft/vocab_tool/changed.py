"""Tokenizers that a command changes: reading, measuring, and writing them with their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, refuse_used, written_at_once
from nlgraft.vocab.tokenizers.encoding import count_tokens, open_tokenizer
from nlgraft.vocab.tokenizers.extension import check_extensible, learn_extension
from nlgraft.vocab.tokenizers.loading import copy_settings, find_tokenizer
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from nlgraft.vocab.tokenizers.tokenizer_json import read_ids, tokens_by_id
from nlgraft.vocab_tool.plan_exchange import read_text
from nlgraft.vocab_tool.plan_report import TextReport


@dataclass(frozen=True)
class ChangedTokenizer:
    """A tokenizer that was written.

    Attributes:
        out: Its directory.
        old_size: Tokens before.
        new_size: Tokens after.
        text: What both make of the text.
    """

    out: str
    old_size: int
    new_size: int
    text: TextReport

    def to_json(self) -> dict[str, Any]:
        """Convert the result to JSON values."""
        sizes = {"out": self.out, "old_size": self.old_size, "new_size": self.new_size}
        return sizes | asdict(self.text)

    def to_text(self) -> str:
        """Format the result in one line."""
        return f"{self.out}: {self.old_size} -> {self.new_size} tokens; {self.text.to_text()}"


def _write(
    out: Path,
    document: dict[str, Any],
    source: Path,
    new_ids: Mapping[int, int] | None,
    old: tokenizers.Tokenizer,
    lines: Sequence[str],
) -> ChangedTokenizer:
    """Write a tokenizer with the settings beside the old one, and measure both on a text."""
    with written_at_once(out) as directory:
        written = directory / "tokenizer.json"
        written.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
        copy_settings(source, directory, new_ids)
        new = open_tokenizer(written)
    text = TextReport.of(lines, count_tokens(old, lines), count_tokens(new, lines))
    return ChangedTokenizer(str(out), old.get_vocab_size(), new.get_vocab_size(), text)


def find_document(tokenizer: str) -> tuple[Path, dict[str, Any]]:
    """Find a ``tokenizer.json`` and read it: a file, a directory with one, or a hub name.

    Raises:
        DataError: There is none, or an id in it cannot be one.
    """
    path = find_tokenizer(tokenizer)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".json":
        raise DataError(
            f"{tokenizer}: no tokenizer.json; load it with transformers.AutoTokenizer and save_pretrained, "
            "which writes one"
        )
    document = read_json(file)
    if not isinstance(document.get("model"), dict) or "vocab" not in document["model"]:
        raise DataError(f"{file}: not a tokenizer.json (no model with a vocab)")
    tokens_by_id(read_ids(document), str(file))
    return file, document


# ``nlgraft vocab extend``: a tokenizer with further tokens for a text.


def extend(
    tokenizer: str,
    text: Sequence[Path],
    out: Path,
    *,
    num_tokens: int,
    min_count: int = 2,
) -> ChangedTokenizer:
    """Write a BPE or Unigram tokenizer with further tokens, learned on a text behind its own; its ids stay.

    Args:
        tokenizer: A tokenizer.json, a directory with one, or a hub name.
        text: Files of plain or compressed text.
        out: Directory of the new tokenizer; missing or empty.
        num_tokens: Tokens to add at most.
        min_count: Occurrences that a new token needs.

    Raises:
        DataError: There is no tokenizer.json of such a tokenizer, or ``out`` is in use.
    """
    refuse_used(out)
    file, document = find_document(tokenizer)
    check_extensible(document)
    lines = read_text(text)
    old = open_tokenizer(file)
    made = learn_extension(old, document, lines, num_tokens, min_count)
    return _write(out, made, file.parent, None, old, lines)


# ``nlgraft vocab prune``: a tokenizer without tokens that are rare in a text.


def prune(
    tokenizer: str,
    text: Sequence[Path],
    out: Path,
    *,
    min_count: int = 1,
    size: int | None = None,
) -> ChangedTokenizer:
    """Write a tokenizer without the tokens that are rare in a text.

    Args:
        tokenizer: A tokenizer.json, a directory with one, or a hub name.
        text: Files of plain or compressed text, in which tokens are counted.
        out: Directory of the new tokenizer; missing or empty.
        min_count: Occurrences that keep a token.
        size: Number of tokens at most; None for any.

    Raises:
        DataError: There is no tokenizer.json, ``out`` is in use, or ``size`` is too small.
    """
    refuse_used(out)
    file, document = find_document(tokenizer)
    lines = read_text(text)
    old = open_tokenizer(file)
    pruned = prune_tokenizer(document, count_tokens(old, lines).tolist(), min_count=min_count, size=size)
    new_ids = {old_id: new for new, old_id in enumerate(pruned.old_ids)}
    return _write(out, pruned.document, file.parent, new_ids, old, lines)
