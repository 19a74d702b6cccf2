"""A tokenizer's vocabulary: its tokens in canonical form, their roles, and how it cuts a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nlgraft.errors import DataError
from nlgraft.vocab.tokenizers.segmenters import Piece, Segmenter
from nlgraft.vocab.tokenizers.tokens import Kind, Marking, Tok

ROLES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<PAD>", "[pad]"),
    "unk": ("<unk>", "[UNK]", "<UNK>", "UNK", "[unk]"),
    "bos": ("<s>", "[BOS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>"),
    "eos": ("</s>", "[EOS]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
"""What special tokens are for, by the names that tokenizers give them."""

SUBSTITUTE_ROLES: Mapping[str, str] = {"cls": "bos", "bos": "cls", "sep": "eos", "eos": "sep"}
"""Whose row serves a role that the other vocabulary does not have."""


def role_of(surface: str) -> str | None:
    """Name the role of a special token, by its usual names.

    Args:
        surface: The token as the tokenizer writes it.

    Returns:
        A key of ``ROLES``, or None.
    """
    return next((role for role, names in ROLES.items() if surface in names), None)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one tokenizer by id.

    Attributes:
        tokens: Canonical token of each id; None where an id has no token.
        surfaces: The tokens as the tokenizer writes them; "" where an id has none.
        marking: How the tokenizer marks words.
        segmenter: How the tokenizer cuts a token.
        roles: Role -> id of the special tokens.
        normalise: The tokenizer's own text normalisation (lower case, NFKC, accents).
        name: For messages and reports.
    """

    tokens: tuple[Tok | None, ...]
    surfaces: tuple[str, ...]
    marking: Marking
    segmenter: Segmenter
    roles: Mapping[str, int] = field(default_factory=dict)
    normalise: Callable[[str], str] = str
    name: str = "vocabulary"

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _by_core(self) -> dict[bytes, list[int]]:
        index: dict[bytes, list[int]] = {}
        for identity, tok in enumerate(self.tokens):
            if tok is not None and tok.kind in (Kind.NORMAL, Kind.BYTE):
                index.setdefault(tok.core, []).append(identity)
        return index

    @cached_property
    def ids_by_surface(self) -> dict[str, int]:
        """The id of each token as the tokenizer writes it."""
        return {surface: identity for identity, surface in enumerate(self.surfaces) if surface}

    @cached_property
    def is_normal(self) -> NDArray[np.bool_]:
        """Whether each id is a token of text, shape [V]."""
        return np.array([tok is not None and tok.kind is Kind.NORMAL for tok in self.tokens], dtype=bool)

    def token(self, identity: int) -> Tok:
        """Give the token of an id.

        Args:
            identity: An id that has a token.

        Returns:
            The token.
        """
        tok = self.tokens[identity]
        assert tok is not None, identity
        return tok

    @property
    def gaps(self) -> list[int]:
        """The ids that have no token."""
        return [identity for identity, tok in enumerate(self.tokens) if tok is None]

    def normalised(self, tok: Tok) -> Tok:
        """Write a foreign token as this tokenizer would see its text.

        Args:
            tok: A token of any vocabulary.

        Returns:
            The token with this tokenizer's normalisation applied to its core; unchanged when the core is not
            text or would vanish.
        """
        if tok.kind is not Kind.NORMAL:
            return tok
        try:
            text = self.normalise(tok.core.decode("utf-8"))
        except UnicodeDecodeError:
            return tok
        return replace(tok, core=text.encode()) if text else tok

    def find(self, tok: Tok) -> int | None:
        """Find the token with the same text and compatible word boundaries.

        Args:
            tok: A canonical token of any vocabulary, already normalised. A token of one byte finds a byte
                token when no normal token is better.

        Returns:
            Its id here; None when there is none. Of several, the one with most equal boundary marks.
        """
        best: tuple[int, int, int] | None = None
        for identity in self._by_core.get(tok.core, []):
            own = self.tokens[identity]
            assert own is not None
            if not are_compatible(tok.starts_word, own.starts_word):
                continue
            if not are_compatible(tok.ends_word, own.ends_word):
                continue
            num_equal = (tok.starts_word == own.starts_word) + (tok.ends_word == own.ends_word)
            rank = (
                num_equal + (own.kind is tok.kind),
                bool(own.starts_word) + bool(own.ends_word),
                -identity,
            )
            if best is None or rank > best:
                best = rank
        return None if best is None else -best[2]

    def boundary_variants(self, tok: Tok) -> list[int]:
        """Find tokens with the same text whatever their word boundaries.

        Args:
            tok: A normalised canonical token.

        Returns:
            Ids, ascending.
        """
        return [i for i in self._by_core.get(tok.core, []) if self.tokens[i] != tok]

    def characters(self, tok: Tok) -> list[int]:
        """Spell a token with one-character or one-byte entries.

        Args:
            tok: A normalised canonical token.

        Returns:
            Ids in text order; characters without an entry are spelled in bytes or left out.
        """
        ids: list[int] = []
        spelled = self.marking.characters(tok.core) or [("", 1)] * len(tok.core)
        offset = 0
        for _, num_bytes in spelled:
            part = tok.core[offset : offset + num_bytes]
            offset += num_bytes
            parts = [part] if part in self._by_core else [bytes([byte]) for byte in part]
            ids.extend(self._by_core[known][0] for known in parts if known in self._by_core)
        return ids

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Cut a canonical token as this tokenizer would.

        Args:
            tok: A normalised canonical token. When ``starts_word`` is None both readings are tried and the
                one with fewer pieces is kept, the word-initial one on a tie.
            is_whole_allowed: Whether one piece may spell the whole core.

        Returns:
            Pieces in text order with byte offsets; text that cannot be spelled is left out.
        """
        if tok.starts_word is not None or not (self.marking.start_prefix or self.marking.continuation_prefix):
            return self.segmenter.segment(tok, is_whole_allowed=is_whole_allowed)
        readings = [
            self.segmenter.segment(replace(tok, starts_word=starts), is_whole_allowed=is_whole_allowed)
            for starts in (True, False)
        ]
        spelled = [pieces for pieces in readings if pieces]
        return min(spelled, key=len) if spelled else []


def are_compatible(one: bool | None, other: bool | None) -> bool:
    """Say whether two boundary marks can be the same boundary; None constrains nothing.

    Args:
        one: A mark.
        other: Another tokenizer's mark.

    Returns:
        False only when both are known and differ.
    """
    return one is None or other is None or one == other


def make_vocabulary(
    surfaces: Sequence[str | None],
    kinds: Sequence[Kind],
    marking: Marking,
    segmenter: Segmenter,
    *,
    roles: Mapping[str, int] | None = None,
    normalise: Callable[[str], str] = str,
    is_isolated: Callable[[str], bool] = lambda character: False,
    name: str = "vocabulary",
) -> Vocabulary:
    """Build a vocabulary from the tokens as their tokenizer writes them.

    Args:
        surfaces: Token of each id; None where an id has none.
        kinds: What each entry is for.
        marking: How the tokenizer marks words.
        segmenter: How it cuts a token.
        roles: Role -> id; found by the usual names when None.
        normalise: The tokenizer's text normalisation.
        is_isolated: Whether the tokenizer makes a word of a character wherever it stands. Such a token does
            not say whether there is a space before it.
        name: For messages and reports.

    Returns:
        The vocabulary.

    Raises:
        DataError: There is no token at all.
    """
    if not any(surfaces):
        raise DataError(f"{name}: the vocabulary has no tokens")
    tokens = tuple(
        None if surface is None else _canonical(surface, kind, marking, is_isolated)
        for surface, kind in zip(surfaces, kinds, strict=True)
    )
    if roles is None:
        named = (
            (role_of(surface), i)
            for i, surface in enumerate(surfaces)
            if surface and kinds[i] is Kind.SPECIAL
        )
        roles = {role: i for role, i in reversed([*named]) if role is not None}
    return Vocabulary(
        tokens=tokens,
        surfaces=tuple(surface or "" for surface in surfaces),
        marking=marking,
        segmenter=segmenter,
        roles=dict(roles),
        normalise=normalise,
        name=name,
    )


def _canonical(surface: str, kind: Kind, marking: Marking, is_isolated: Callable[[str], bool]) -> Tok:
    tok = marking.canonical(surface, kind)
    if kind is Kind.NORMAL and len(surface) == 1 and is_isolated(surface):
        return replace(tok, starts_word=None)
    return tok
