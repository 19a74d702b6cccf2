"""Output directories of the commands."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlgraft.basics.errors import DataError

TOKENIZER_DIRECTORY = "tokenizer"
"""Place of the new tokenizer in a plan's directory."""
EXCHANGE_RECORD = "vocabulary_exchange.json"
"""What an exchange found in the configurations, in a checkpoint's directory: settings whose tokens the new
vocabulary lacks, and tokens in a role that the old tokenizer gave to others already."""


def refuse_used(directory: Path) -> None:
    """Refuse to write into a directory that is not empty.

    Raises:
        DataError: It exists and is not empty, or is a file.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(f"{directory}: exists and is not empty; give another directory or remove it")


@contextmanager
def written_at_once(target: Path) -> Iterator[Path]:
    """Yield a directory to write into that replaces ``target`` (missing or empty) whole, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as outer:
        inner = Path(outer) / target.name
        inner.mkdir()
        yield inner
        if target.exists():
            target.rmdir()
        # Within one file system a rename is atomic, so nobody sees half a directory.
        inner.rename(target)
