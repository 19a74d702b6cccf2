"""Tokenizers that a command changes: reading, measuring, and writing them with their settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from nlgraft.errors import DataError
from nlgraft.vocab.tokenizers.directories import CHAT_TEMPLATE, find_tokenizer
from nlgraft.vocab.tokenizers.encoding import encode_batch
from nlgraft.vocab.tokenizers.information import self_information
from nlgraft.vocab.tokenizers.legacy import SPECIAL_FILES, read_json
from nlgraft.vocab.tokenizers.tokenizer_json import read_ids, tokens_by_id

CHUNK_LINES = 10_000
"""Lines encoded at once, to bound memory."""


@dataclass(frozen=True)
class ChangedTokenizer:
    """A tokenizer that was written.

    Attributes:
        out: Its directory.
        old_size: Tokens before.
        new_size: Tokens after.
        num_words: Words of the text between spaces.
        old_tokens: Tokens of the text before.
        new_tokens: Tokens of the text after.
        old_bits_per_byte: Self-information of the tokens before, per byte of the text.
        new_bits_per_byte: That of the tokens after.
    """

    out: str
    old_size: int
    new_size: int
    num_words: int
    old_tokens: int
    new_tokens: int
    old_bits_per_byte: float
    new_bits_per_byte: float

    @classmethod
    def measured(
        cls, out: Path, old: tokenizers.Tokenizer, new: tokenizers.Tokenizer, lines: Sequence[str]
    ) -> ChangedTokenizer:
        """Measure both tokenizers on a text."""
        before, after = (count_tokens(tokenizer, lines) for tokenizer in (old, new))
        num_bytes = sum(len(line.encode()) for line in lines)
        return cls(
            str(out),
            old.get_vocab_size(),
            new.get_vocab_size(),
            sum(len(line.split()) for line in lines),
            int(before.sum()),
            int(after.sum()),
            self_information(before) / num_bytes,
            self_information(after) / num_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the result to JSON values."""
        return asdict(self)

    def to_text(self) -> str:
        """Format the result in one line."""
        before, after = (count / max(1, self.num_words) for count in (self.old_tokens, self.new_tokens))
        return (
            f"{self.out}: {self.old_size} -> {self.new_size} tokens; on the text {before:.3f} -> {after:.3f} "
            f"tokens per word, {self.old_bits_per_byte:.3f} -> {self.new_bits_per_byte:.3f} bits per byte"
        )


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


def count_tokens(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> NDArray[np.int64]:
    """Count the occurrences of each id in a text, special tokens and padding left out."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts = np.zeros(max(tokenizer.get_vocab().values()) + 1, dtype=np.int64)
    for start in range(0, len(lines), CHUNK_LINES):
        for ids in encode_batch(tokenizer, lines[start : start + CHUNK_LINES]):
            # Unlike counts[ids] += 1, this counts repeated ids.
            np.add.at(counts, ids, 1)
    return counts


def copy_settings(source: Path, directory: Path, new_ids: Mapping[int, int] | None = None) -> None:
    """Copy the files that name special tokens; ``new_ids`` are their new ids, where these change."""
    if (source / CHAT_TEMPLATE).is_file():
        shutil.copyfile(source / CHAT_TEMPLATE, directory / CHAT_TEMPLATE)
    for name in SPECIAL_FILES:
        if not (source / name).is_file():
            continue
        settings = read_json(source / name)
        if new_ids is not None and (decoder := settings.get("added_tokens_decoder")):
            settings["added_tokens_decoder"] = {str(new_ids[int(i)]): token for i, token in decoder.items()}
        (directory / name).write_text(json.dumps(settings, ensure_ascii=False, indent=1) + "\n", "utf-8")
