"""Tokenizers of checkpoints in the format of the tokenizers library.

``WordPiece`` is renumbered PAD=0, UNK=1, BOS=2, EOS=3 like our SentencePiece models, ``ContextTokenizer``
keeps the checkpoint's own ids and special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import tokenizers

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.text.tokenizers import SPECIAL_PIECES

_CHUNK_LINES = 10_000
"""Lines encoded at once, to bound memory."""


class _JsonTokenizer:
    """A tokenizer in the format of the tokenizers library, in whose text special tokens are plain text."""

    has_special_tokens: bool
    normalization = "identity"
    """Text that decoding does not restore is not normalised either."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._model = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
        except Exception as error:  # the library raises nothing narrower
            raise StoreError(f"{path}: not a tokenizer.json ({error})") from error
        # tokenizer.json may hold settings that pad and truncate lines.
        self._model.no_padding()
        self._model.no_truncation()
        self._model.encode_special_tokens = True  # as ordinary text, despite the name
        self.vocab_size: int = self._model.get_vocab_size()
        self.pieces: list[str] = [self._model.id_to_token(i) or "" for i in range(self.vocab_size)]
        unknown = getattr(self._model.model, "unk_token", None)
        self.unknown_id: int | None = None if unknown is None else self._model.token_to_id(unknown)

    @overload
    def encode(self, text: str, sample_alpha: float | None = None, seed: int = 0) -> list[int]: ...
    @overload
    def encode(
        self, text: list[str], sample_alpha: float | None = None, seed: int = 0
    ) -> list[list[int]]: ...
    def encode(
        self, text: str | list[str], sample_alpha: float | None = None, seed: int = 0
    ) -> list[int] | list[list[int]]:
        """Segment a line or lines into ids; special tokens are added if ``has_special_tokens``.

        Raises:
            DataError: ``sample_alpha`` is set, but there is only one segmentation.
        """
        if sample_alpha is not None:
            raise DataError(
                f"{self.path.name}: sampling_alpha is {sample_alpha}, but it has one segmentation; "
                "leave sampling_alpha out"
            )
        lines = [text] if isinstance(text, str) else text
        ids: list[list[int]] = []
        for start in range(0, len(lines), _CHUNK_LINES):
            chunk = lines[start : start + _CHUNK_LINES]
            ids += [
                encoding.ids
                for encoding in self._model.encode_batch_fast(
                    chunk, add_special_tokens=self.has_special_tokens
                )
            ]
        return ids[0] if isinstance(text, str) else ids

    @overload
    def decode(self, ids: list[int]) -> str: ...
    @overload
    def decode(self, ids: list[list[int]]) -> list[str]: ...
    def decode(self, ids: list[int] | list[list[int]]) -> str | list[str]:
        """Turn ids into text by the tokenizer's own decoder, without special tokens other than UNK.

        Text is not restored exactly: it stays lower-cased where the tokenizer does that, and spaces around
        punctuation follow the decoder's rules, as wherever the checkpoint is used.
        """
        lines: Any = ids
        if ids and isinstance(ids[0], list):
            return self._model.decode_batch(lines, skip_special_tokens=True)
        return self._model.decode(lines, skip_special_tokens=True)

    def normalised(self, lines: Sequence[str]) -> list[str]:
        """Return the lines unchanged."""
        return [*lines]

    def id(self, piece: str) -> int:
        """Return the id of a piece.

        Raises:
            DataError: There is no such piece.
        """
        piece_id = self._model.token_to_id(piece)
        if piece_id is None:
            raise DataError(f"{self.path.name}: no piece {piece!r} among {self.vocab_size}")
        return piece_id


class WordPiece(_JsonTokenizer):
    """A WordPiece tokenizer with special ids as in ``SentencePiece``.

    Text never produces a special token, and a word that no pieces spell is one UNK.

    Attributes:
        path: File it was read from.
        pieces: The piece of every id; ``##`` marks those inside words.
        vocab_size: Number of pieces, special ones included.

    Raises:
        StoreError: The file is missing, not a tokenizer, or has other special ids.
    """

    has_special_tokens = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        first_pieces = tuple(self.pieces[:4])
        if first_pieces != SPECIAL_PIECES:
            raise StoreError(
                f"{path}: pieces 0-3 are {first_pieces}, not {SPECIAL_PIECES}; renumber it first"
            )


class ContextTokenizer(_JsonTokenizer):
    """The tokenizer of a released encoder, which adds the special tokens that the encoder expects.

    Attributes:
        path: File it was read from.
        pieces: The piece of every id.
        vocab_size: Number of pieces, special ones included.

    Raises:
        StoreError: The file is missing or not a tokenizer.
    """

    has_special_tokens = True
