"""Tokens in a form common to all tokenizers.

Every tokenizer has its own notation of word boundaries: ``▁the`` (SentencePiece), ``Ġthe`` (byte-level BPE),
``the`` beside ``##the`` (WordPiece), ``the`` beside ``the@@`` (subword-nmt), ``the</w>`` (CLIP, GPT-1).
``Tok`` holds the bytes of the text and what is known about the word boundary on either side.

The core is bytes, not text, because a byte-level token can be half a character.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise


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
            text = core.decode("utf-8")
        except UnicodeDecodeError:
            return None
        space = self.start_prefix or (self.end_suffix if len(self.end_suffix) == 1 else "")
        return [(space if space and char == " " else char, len(char.encode())) for char in text]

    def _encode(self, text: str) -> bytes:
        if self.is_byte_level:
            table = _alphabet_bytes()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)
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
    edges = [0, *cuts, len(tok.core)]
    pieces = []
    for start, end in pairwise(edges):
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
        text = core.decode("utf-8")
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
