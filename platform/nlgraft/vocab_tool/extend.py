"""``nlgraft vocab extend``: a tokenizer with further tokens for a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from nlgraft.vocab.tokenizers.directories import copy_settings
from nlgraft.vocab.tokenizers.encoding import open_tokenizer
from nlgraft.vocab.tokenizers.extension import check_extensible, learn_extension
from nlgraft.vocab_tool.changed import ChangedTokenizer, find_document
from nlgraft.vocab_tool.outputs import refuse_used, written_at_once
from nlgraft.vocab_tool.plan_exchange import read_text


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
    check_extensible(document)
    lines = read_text(text)
    old = open_tokenizer(file)
    made = learn_extension(old, document, lines, num_tokens, min_count)
    with written_at_once(out) as directory:
        written = directory / "tokenizer.json"
        written.write_text(json.dumps(made, ensure_ascii=False), "utf-8")
        copy_settings(file.parent, directory)
        new = tokenizers.Tokenizer.from_file(str(written))
    return ChangedTokenizer.measured(out, old, new, lines)
