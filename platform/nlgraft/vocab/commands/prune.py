"""``nlgraft vocab prune``: a tokenizer without the tokens that a text hardly uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from nlgraft.errors import DataError
from nlgraft.vocab.commands.outputs import refuse_used, written_at_once
from nlgraft.vocab.commands.plan import read_text
from nlgraft.vocab.tokenizers.directories import find_tokenizer
from nlgraft.vocab.tokenizers.legacy import SPECIAL_FILES, read_json
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer

CHUNK_LINES = 10_000
"""Lines encoded at once, to bound memory."""


@dataclass(frozen=True)
class PrunedTokenizer:
    """A tokenizer that was written.

    Attributes:
        out: Its directory.
        old_size: Tokens before.
        new_size: Tokens after.
        num_words: Words of the text between spaces.
        old_tokens: Tokens of the text before.
        new_tokens: Tokens of the text after.
    """

    out: str
    old_size: int
    new_size: int
    num_words: int
    old_tokens: int
    new_tokens: int

    def to_json(self) -> dict[str, Any]:
        """Convert the result to JSON values."""
        return asdict(self)

    def to_text(self) -> str:
        """Format the result in one line."""
        before, after = (count / max(1, self.num_words) for count in (self.old_tokens, self.new_tokens))
        return (
            f"{self.out}: {self.old_size} -> {self.new_size} tokens; on the text {before:.3f} -> {after:.3f} "
            "tokens per word"
        )


def prune(
    tokenizer: str, text: Sequence[Path], out: Path, *, min_count: int = 1, size: int | None = None
) -> PrunedTokenizer:
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
    path = find_tokenizer(tokenizer)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".json":
        raise DataError(
            f"{tokenizer}: no tokenizer.json; load it with transformers.AutoTokenizer and save_pretrained, "
            "which writes one"
        )
    lines = read_text(text)
    document = read_json(file)
    old = tokenizers.Tokenizer.from_file(str(file))
    counts = _count(old, lines)
    pruned = prune_tokenizer(document, counts.tolist(), min_count=min_count, size=size)
    with written_at_once(out) as directory:
        written = directory / "tokenizer.json"
        written.write_text(json.dumps(pruned.document, ensure_ascii=False), "utf-8")
        _copy_settings(file.parent, directory, {old: new for new, old in enumerate(pruned.old_ids)})
        new_tokens = int(_count(tokenizers.Tokenizer.from_file(str(written)), lines).sum())
    num_words = sum(len(line.split()) for line in lines)
    sizes = len(counts), len(pruned.old_ids)
    return PrunedTokenizer(str(out), *sizes, num_words, int(counts.sum()), new_tokens)


def _count(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> np.ndarray:
    """Count the occurrences of each id, special tokens left out."""
    tokenizer.no_truncation()
    counts = np.zeros(max(tokenizer.get_vocab().values()) + 1, dtype=np.int64)
    for start in range(0, len(lines), CHUNK_LINES):
        chunk = list(lines[start : start + CHUNK_LINES])
        for encoding in tokenizer.encode_batch(chunk, add_special_tokens=False):
            np.add.at(counts, encoding.ids, 1)
    return counts


def _copy_settings(source: Path, directory: Path, new_ids: dict[int, int]) -> None:
    """Copy the files that name special tokens, with their new ids."""
    for name in SPECIAL_FILES:
        if not (source / name).is_file():
            continue
        settings = read_json(source / name)
        if decoder := settings.get("added_tokens_decoder"):
            settings["added_tokens_decoder"] = {str(new_ids[int(i)]): token for i, token in decoder.items()}
        (directory / name).write_text(json.dumps(settings, ensure_ascii=False, indent=1) + "\n", "utf-8")
