"""``nlgraft vocab prune``: a tokenizer without tokens that are rare in a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from nlgraft.vocab.tokenizers.directories import copy_settings
from nlgraft.vocab.tokenizers.encoding import count_tokens, open_tokenizer
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from nlgraft.vocab_tool.changed import ChangedTokenizer, find_document
from nlgraft.vocab_tool.outputs import refuse_used, written_at_once
from nlgraft.vocab_tool.plan_exchange import read_text


def prune(
    tokenizer: str, text: Sequence[Path], out: Path, *, min_count: int = 1, size: int | None = None
) -> ChangedTokenizer:
    """Write a tokenizer without the tokens that are rare in a text.

    Args:
        tokenizer: A tokenizer.json, a directory with one, or a hub name.
        text: Files of plain or gzipped text, in which tokens are counted.
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
    with written_at_once(out) as directory:
        written = directory / "tokenizer.json"
        written.write_text(json.dumps(pruned.document, ensure_ascii=False), "utf-8")
        copy_settings(file.parent, directory, {old_id: new for new, old_id in enumerate(pruned.old_ids)})
        new = tokenizers.Tokenizer.from_file(str(written))
    return ChangedTokenizer.measured(out, old, new, lines)
