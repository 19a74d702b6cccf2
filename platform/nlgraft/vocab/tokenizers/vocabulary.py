"""The vocabulary of a tokenizer: tokens in canonical form, their roles, and segmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
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
"""Usual names of the special tokens of each role."""

SUBSTITUTE_ROLES: Mapping[str, str] = {"cls": "bos", "bos": "cls", "sep": "eos", "eos": "sep"}
"""Role that serves instead of a role that the other vocabulary lacks."""


def role_of(surface: str) -> str | None:
    """Return the role of a special token by its usual names, a key of ``ROLES``, or None."""
    return next((role for role, names in ROLES.items() if surface in names), None)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one tokenizer by id.

    Attributes:
        tokens: Canonical token of each id; None where an id has no token.
        surfaces: The tokens in the tokenizer's notation; "" where an id has none.
        marking: Notation of word boundaries.
        segmenter: Segmentation of single tokens.
        roles: Role -> id of the special tokens.
        normalise: The tokenizer's own text normalisation (lower case, NFKC, accents).
        name: Name for messages and reports.
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
        """The id of each token in the tokenizer's notation."""
        return {surface: identity for identity, surface in enumerate(self.surfaces) if surface}

    @cached_property
    def is_normal(self) -> NDArray[np.bool_]:
        """Mask of the ids that are tokens of text, shape [V]."""
        return np.array([tok is not None and tok.kind is Kind.NORMAL for tok in self.tokens], dtype=bool)

    def token(self, identity: int) -> Tok:
        """Return the token of an id that has one."""
        tok = self.tokens[identity]
        assert tok is not None, identity
        return tok

    @property
    def gaps(self) -> list[int]:
        """The ids that have no token."""
        return [identity for identity, tok in enumerate(self.tokens) if tok is None]

    def normalised(self, tok: Tok) -> Tok:
        """Apply this tokenizer's normalisation to the core of a token of any vocabulary.

        The token is unchanged when its core is not text or would vanish.
        """
        if tok.kind is not Kind.NORMAL:
            return tok
        try:
            text = self.normalise(tok.core.decode("utf-8"))
        except UnicodeDecodeError:
            return tok
        return replace(tok, core=text.encode()) if text else tok

    def find(self, tok: Tok) -> int | None:
        """Return the id of the token with the same text and compatible word boundaries, or None.

        ``tok`` is canonical and normalised. Of several candidates the one with most equal boundary marks is
        taken; a byte token matches a token of one byte when no normal token does.
        """
        best: tuple[int, int, int] | None = None
        for identity in self._by_core.get(tok.core, []):
            candidate = self.tokens[identity]
            assert candidate is not None
            if not are_compatible(tok.starts_word, candidate.starts_word):
                continue
            if not are_compatible(tok.ends_word, candidate.ends_word):
                continue
            num_equal = (tok.starts_word == candidate.starts_word) + (tok.ends_word == candidate.ends_word)
            rank = (
                num_equal + (candidate.kind is tok.kind),
                bool(candidate.starts_word) + bool(candidate.ends_word),
                -identity,
            )
            if best is None or rank > best:
                best = rank
        return None if best is None else -best[2]

    def boundary_variants(self, tok: Tok) -> list[int]:
        """List the ids of tokens with the same text but another form of word boundary, ascending."""
        return [i for i in self._by_core.get(tok.core, []) if self.tokens[i] != tok]

    def characters(self, tok: Tok) -> list[int]:
        """Spell a normalised token with one-character or one-byte entries, as ids in text order.

        Characters without an entry are spelled in bytes or left out.
        """
        ids: list[int] = []
        spelled = self.marking.characters(tok.core) or [("", 1)] * len(tok.core)
        offset = 0
        for _, num_bytes in spelled:
            part = tok.core[offset : offset + num_bytes]
            offset += num_bytes
            # Without an entry of its own, a character is spelled in its UTF-8 bytes.
            parts = [part] if part in self._by_core else [bytes([byte]) for byte in part]
            ids.extend(self._by_core[core][0] for core in parts if core in self._by_core)
        return ids

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Segment a normalised canonical token as this tokenizer would.

        When ``tok.starts_word`` is None both readings are tried and the one with fewer pieces is kept, the
        word-initial one on a tie. Without ``is_whole_allowed`` no single piece may spell the whole core. Text
        that cannot be spelled is left out.
        """
        readings = (
            self.segmenter.segment(reading, is_whole_allowed=is_whole_allowed)
            for reading in self.readings(tok)
        )
        return min(filter(None, readings), key=len, default=[])

    def readings(self, tok: Tok) -> list[Tok]:
        """List a token as it is, or word-initial and not where it does not say which."""
        if tok.starts_word is not None or not (self.marking.start_prefix or self.marking.continuation_prefix):
            return [tok]
        return [replace(tok, starts_word=starts) for starts in (True, False)]


def are_compatible(first: bool | None, second: bool | None) -> bool:
    """Return False only when both boundary marks are known and differ."""
    return first is None or second is None or first == second


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
    """Build a vocabulary from tokens in their tokenizer's notation.

    Args:
        surfaces: Token of each id; None where an id has none.
        kinds: Purpose of each entry.
        marking: Notation of word boundaries.
        segmenter: Segmentation of single tokens.
        roles: Role -> id; found by the usual names when None.
        normalise: The tokenizer's text normalisation.
        is_isolated: True for characters that the tokenizer makes words of their own anywhere; such a token
            does not say whether a space precedes it.
        name: Name for messages and reports.

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
        # Reversed, so that of several tokens of a role the one with the lowest id wins.
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
