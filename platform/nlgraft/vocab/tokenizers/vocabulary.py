"""The vocabulary of a tokenizer: tokens in a form common to all tokenizers, their roles, and segmentation.

Every tokenizer has its own notation of word boundaries: ``▁the`` (SentencePiece), ``Ġthe`` (byte-level BPE),
``the`` beside ``##the`` (WordPiece), ``the`` beside ``the@@`` (subword-nmt), ``the</w>`` (CLIP, GPT-1).
``Tok`` holds the bytes of the text and what is known about the word boundary on either side.

The core is bytes, not text, because a byte-level token can be half a character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import grouped


class Kind(StrEnum):
    """Purpose of a vocabulary entry."""

    NORMAL = "normal"
    """Text."""
    SPECIAL = "special"
    """Structure: padding, unknown, begin, end, mask, language codes."""
    BYTE = "byte"
    """A fallback for one byte of text that no normal token covers, such as ``<0xE2>``."""
    UNUSED = "unused"
    """Reserved and never produced, such as ``[unused7]``."""


@dataclass(frozen=True, slots=True)
class Tok:
    """One token, independent of the tokenizer that made it.

    Attributes:
        core: The text without boundary marks, UTF-8 (a byte-level token may be half a character).
        starts_word: True if a word begins here; None when the tokenizer does not mark it.
        ends_word: True if a word ends here; None when the tokenizer does not mark it.
        kind: Purpose of the entry.
    """

    core: bytes
    starts_word: bool | None = None
    ends_word: bool | None = None
    kind: Kind = Kind.NORMAL

    @property
    def text(self) -> str:
        """The core as readable text; invalid UTF-8 is escaped."""
        return self.core.decode("utf-8", "backslashreplace")


@cache
def byte_alphabet() -> dict[int, str]:
    """Map each byte to the printable character that byte-level tokenizers write for it, one to one.

    Source: Radford et al. (2019), GPT-2's byte-to-unicode table.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(printable))
    return table


@cache
def _alphabet_bytes() -> dict[str, int]:
    return {character: byte for byte, character in byte_alphabet().items()}


@dataclass(frozen=True, slots=True)
class Marking:
    """Notation of word boundaries in the tokens of a tokenizer.

    Attributes:
        start_prefix: Precedes the first token of a word (``▁``, ``Ġ``).
        continuation_prefix: Precedes every other token of a word (``##``).
        end_suffix: Follows the last token of a word (``</w>``).
        joiner_suffix: Follows every other token of a word (``@@``).
        is_byte_level: Each character of a token stands for one byte (GPT-2's table).
    """

    start_prefix: str = ""
    continuation_prefix: str = ""
    end_suffix: str = ""
    joiner_suffix: str = ""
    is_byte_level: bool = False

    def canonical(self, surface: str, kind: Kind = Kind.NORMAL) -> Tok:
        """Read a token in this notation, marks included; only normal tokens have marks."""
        if kind is Kind.BYTE:
            return Tok(bytes([int(surface[3:-1], 16)]), None, None, kind)
        if kind is not Kind.NORMAL:
            return Tok(surface.encode(), None, None, kind)
        text, starts_word, ends_word = surface, None, None
        if self.start_prefix:
            starts_word = text.startswith(self.start_prefix)
            text = text.removeprefix(self.start_prefix)
        if prefix := self.continuation_prefix:
            starts_word = not (text.startswith(prefix) and len(text) > len(prefix))
            text = text if starts_word else text.removeprefix(prefix)
        if self.end_suffix:
            ends_word = text.endswith(self.end_suffix)
            text = text.removesuffix(self.end_suffix)
        if suffix := self.joiner_suffix:
            ends_word = not (text.endswith(suffix) and len(text) > len(suffix))
            text = text if ends_word else text.removesuffix(suffix)
        return Tok(self._encode(text), starts_word, ends_word, kind)

    def surface(self, tok: Tok) -> str:
        """Write a token in this notation, the inverse of ``canonical``; unknown boundaries get no mark."""
        if tok.kind is Kind.BYTE:
            return f"<0x{tok.core[0]:02X}>"
        if tok.kind is not Kind.NORMAL:
            return tok.text
        before = self.start_prefix if tok.starts_word else ""
        if tok.starts_word is False:
            before = self.continuation_prefix
        behind = self.end_suffix if tok.ends_word else ""
        if tok.ends_word is False:
            behind = self.joiner_suffix
        return f"{before}{''.join(text for text, _ in self.characters(tok.core) or [(tok.text, 0)])}{behind}"

    def characters(self, core: bytes) -> list[tuple[str, int]] | None:
        """Spell a core in this tokenizer's characters, as (character, number of bytes).

        None when that is impossible because the core holds half a character.
        """
        if self.is_byte_level:
            alphabet = byte_alphabet()
            return [(alphabet[byte], 1) for byte in core]
        try:
            text = core.decode()
        except UnicodeDecodeError:
            return None
        space = self.start_prefix or (self.end_suffix if len(self.end_suffix) == 1 else "")
        return [(space if space and char == " " else char, len(char.encode())) for char in text]

    def _encode(self, text: str) -> bytes:
        if self.is_byte_level:
            table = _alphabet_bytes()
            parts = [bytes([table[c]]) if c in table else c.encode() for c in text]
            return b"".join(parts)
        space = self.start_prefix or (self.end_suffix if len(self.end_suffix) == 1 else "")
        return (text.replace(space, " ") if space else text).encode()


SENTENCEPIECE = Marking(start_prefix="▁")
SENTENCEPIECE_SUFFIX = Marking(end_suffix="▁")
WORDPIECE = Marking(continuation_prefix="##")
BYTE_LEVEL = Marking(start_prefix="Ġ", is_byte_level=True)
SUBWORD_NMT = Marking(joiner_suffix="@@")
END_OF_WORD = Marking(end_suffix="</w>")
BYTE_LEVEL_END_OF_WORD = Marking(end_suffix="</w>", is_byte_level=True)


def split_tok(tok: Tok, cuts: list[int]) -> list[Tok]:
    """Split a token at byte offsets inside the core (ascending), with the boundary marks of each part.

    Inner boundaries are marked only if the tokenizer marks that side at all: ``▁noth`` + ``ing``, ``noth`` +
    ``##ing``, ``noth@@`` + ``ing``.
    """
    pieces = []
    for start, end in pairwise([0, *cuts, len(tok.core)]):
        starts_word = tok.starts_word if start == 0 or tok.starts_word is None else False
        ends_word = tok.ends_word if end == len(tok.core) or tok.ends_word is None else False
        pieces.append(Tok(tok.core[start:end], starts_word, ends_word, tok.kind))
    return pieces


def merge_toks(toks: list[Tok]) -> Tok:
    """Join neighbouring normal tokens of one word into one."""
    core = b"".join(tok.core for tok in toks)
    return Tok(core, toks[0].starts_word, toks[-1].ends_word)


def character_boundaries(core: bytes) -> list[int]:
    """List the byte offsets inside a core where a new user-perceived character begins, ascending.

    Never inside a UTF-8 character, before a combining mark or beside a zero-width joiner; empty for invalid
    UTF-8.
    """
    try:
        text = core.decode()
    except UnicodeDecodeError:
        return []
    offsets, offset, previous = [], 0, ""
    for character in text:
        is_attached = unicodedata.category(character) in ("Mn", "Mc", "Me") or "‍" in (character, previous)
        if offset and not is_attached:
            offsets.append(offset)
        offset += len(character.encode())
        previous = character
    return offsets


class Piece(NamedTuple):
    """A vocabulary entry and the part of the core it spells."""

    id: int
    start: int
    end: int


class Segmenter(Protocol):
    """Splits a canonical token into entries of one vocabulary."""

    def segment(self, tok: Tok, *, is_whole_allowed: bool = True) -> list[Piece]:
        """Segment ``tok``.

        Args:
            tok: A canonical token; a boundary side that is None counts as not marked.
            is_whole_allowed: If false, no single piece may spell the whole core.

        Returns:
            Pieces in text order; text that the vocabulary cannot spell is left out.
        """
        ...


# The vocabulary of a tokenizer: its tokens, their roles, and segmentation.


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
    roles: Mapping[str, int]
    normalise: Callable[[str], str]
    name: str

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _by_core(self) -> dict[bytes, list[int]]:
        return grouped(
            (tok.core, identity)
            for identity, tok in enumerate(self.tokens)
            if tok is not None and tok.kind in (Kind.NORMAL, Kind.BYTE)
        )

    @cached_property
    def ids_by_surface(self) -> dict[str, int]:
        """The id of each token in the tokenizer's notation."""
        return {surface: identity for identity, surface in enumerate(self.surfaces) if surface}

    @cached_property
    def is_normal(self) -> NDArray[np.bool_]:
        """Mask of the ids that are tokens of text, shape [V]."""
        are_normal = [tok is not None and tok.kind is Kind.NORMAL for tok in self.tokens]
        return np.array(are_normal, dtype=bool)

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
            text = self.normalise(tok.core.decode())
        except UnicodeDecodeError:
            return tok
        return replace(tok, core=text.encode()) if text else tok

    def find(self, tok: Tok) -> int | None:
        """Return the id of the token with the same text and compatible word boundaries, or None.

        ``tok`` is canonical and normalised. Of several candidates the one with most equal boundary marks is
        taken; a byte token matches a token of one byte when no normal token does.
        """

        def rank(identity: int) -> tuple[int, int]:
            candidate = self.token(identity)
            num_equal = (tok.starts_word == candidate.starts_word) + (tok.ends_word == candidate.ends_word)
            num_marked = bool(candidate.starts_word) + bool(candidate.ends_word)
            return num_equal + (candidate.kind is tok.kind), num_marked

        compatible = [
            identity
            for identity in self._by_core.get(tok.core, [])
            if are_compatible(tok.starts_word, self.token(identity).starts_word)
            and are_compatible(tok.ends_word, self.token(identity).ends_word)
        ]
        # The first of several maxima has the lowest id.
        return max(compatible, key=rank, default=None)

    def boundary_variants(self, tok: Tok) -> list[int]:
        """List the ids of tokens with the same text but another form of word boundary, ascending."""
        return [i for i in self._by_core.get(tok.core, []) if self.tokens[i] != tok]

    def characters(self, tok: Tok) -> list[int]:
        """Spell a normalised token with one-character or one-byte entries, as ids in text order.

        Characters without an entry are spelled in bytes or left out.
        """
        ids = []
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


def normal_ids(surfaces: Sequence[str | None], kinds: Sequence[Kind]) -> dict[str, int]:
    """Map the tokens that text consists of to their ids."""
    return {s: i for i, s in enumerate(surfaces) if s is not None and kinds[i] is Kind.NORMAL}


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


def _canonical(
    surface: str,
    kind: Kind,
    marking: Marking,
    is_isolated: Callable[[str], bool],
) -> Tok:
    tok = marking.canonical(surface, kind)
    if kind is Kind.NORMAL and len(surface) == 1 and is_isolated(surface):
        return replace(tok, starts_word=None)
    return tok
