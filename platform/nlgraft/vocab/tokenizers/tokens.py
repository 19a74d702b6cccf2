"""Tokens in a form that every tokenizer shares.

A tokenizer writes word boundaries its own way: ``▁the`` (SentencePiece), ``Ġthe`` (byte-level BPE), ``the``
beside ``##the`` (WordPiece), ``the`` beside ``the@@`` (subword-nmt), ``the</w>`` (CLIP, GPT-1). ``Tok`` is
what they mean: the bytes of the text and what is known about the word boundary on either side.

The core is bytes, not text, because a byte-level token can be half a character.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise


class Kind(StrEnum):
    """What a vocabulary entry is for."""

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
        starts_word: Whether a word begins here; None when the tokenizer does not say.
        ends_word: Whether a word ends here; None when the tokenizer does not say.
        kind: What the entry is for.
    """

    core: bytes
    starts_word: bool | None = None
    ends_word: bool | None = None
    kind: Kind = Kind.NORMAL

    @property
    def text(self) -> str:
        """The core for people to read; bytes that are no text are escaped."""
        return self.core.decode("utf-8", "backslashreplace")


@cache
def byte_alphabet() -> dict[int, str]:
    """Map each byte to the printable character that byte-level tokenizers write for it.

    Returns:
        256 entries, one to one. Source: Radford et al. (2019), GPT-2's byte-to-unicode table.
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
    """How a tokenizer writes word boundaries into its tokens.

    Attributes:
        start_prefix: Stands before the first token of a word (``▁``, ``Ġ``).
        continuation_prefix: Stands before every other token of a word (``##``).
        end_suffix: Stands behind the last token of a word (``</w>``).
        joiner_suffix: Stands behind every other token of a word (``@@``).
        is_byte_level: Each character of a token stands for one byte (GPT-2's table).
    """

    start_prefix: str = ""
    continuation_prefix: str = ""
    end_suffix: str = ""
    joiner_suffix: str = ""
    is_byte_level: bool = False

    def canonical(self, surface: str, kind: Kind = Kind.NORMAL) -> Tok:
        """Read a token as the tokenizer writes it.

        Args:
            surface: The token, marks included.
            kind: What the entry is for; marks are read in normal tokens only.

        Returns:
            The canonical token.
        """
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
        """Write a token as this tokenizer would; the inverse of ``canonical``.

        Args:
            tok: Any token. A side that is None is written without a mark.

        Returns:
            The token with this tokenizer's marks.
        """
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
        """Spell a core in this tokenizer's characters.

        Args:
            core: The bytes of a token.

        Returns:
            (character, number of bytes) in order; None when the tokenizer cannot spell it, because the core
            holds half a character.
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
    """Cut one token into several that spell it, each with the boundary marks it then has.

    Args:
        tok: The token to cut.
        cuts: Byte offsets inside the core, ascending.

    Returns:
        ``len(cuts) + 1`` tokens. An inner boundary is known only where the tokenizer says such things at all:
        ``▁noth`` + ``ing``, ``noth`` + ``##ing``, ``noth@@`` + ``ing``.
    """
    edges = [0, *cuts, len(tok.core)]
    pieces = []
    for start, end in pairwise(edges):
        starts_word = tok.starts_word if start == 0 or tok.starts_word is None else False
        ends_word = tok.ends_word if end == len(tok.core) or tok.ends_word is None else False
        pieces.append(Tok(tok.core[start:end], starts_word, ends_word, tok.kind))
    return pieces


def merge_toks(toks: list[Tok]) -> Tok:
    """Join neighbouring tokens of one word into one.

    Args:
        toks: At least one normal token, in text order.

    Returns:
        Their text as one token.
    """
    core = b"".join(tok.core for tok in toks)
    return Tok(core, toks[0].starts_word, toks[-1].ends_word)


def character_boundaries(core: bytes) -> list[int]:
    """List the byte offsets inside a core at which a reader sees a new character begin.

    Args:
        core: UTF-8 text, or bytes that are not text.

    Returns:
        Inner offsets, ascending; never inside a UTF-8 character, never before a combining mark, never beside
        a zero-width joiner. Empty when the bytes are not text.
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
