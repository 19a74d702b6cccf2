"""Phonology of the family: proto-forms, sound changes of the daughter languages, joining of morphemes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CONSONANTS = "ptkbdgmnslrvzhj"
_VOWELS = "aeiou"
_SHAPES = ("CVCV", "CVCVC", "CVCCV", "CVCVCV", "CVCCVC")
_SHIFTS = {
    "p": "fb",
    "t": "sd",
    "k": "hg",
    "b": "vp",
    "d": "zt",
    "g": "kj",
    "m": "n",
    "n": "m",
    "s": "zt",
    "l": "r",
    "r": "l",
    "v": "bf",
    "z": "s",
    "h": "k",
    "j": "g",
}  # all attested in natural languages


def proto_form(rng: random.Random) -> str:
    """Draw a root of four to six sounds in the proto-language."""
    shape = rng.choice(_SHAPES)
    return "".join(rng.choice(_CONSONANTS if place == "C" else _VOWELS) for place in shape)


def affix_form(rng: random.Random, shape: str) -> str:
    """Draw an affix or function word of a shape such as ``VC``."""
    return "".join(rng.choice(_CONSONANTS if place == "C" else _VOWELS) for place in shape)


@dataclass(frozen=True)
class SoundChange:
    """The regular sound change that led to one language.

    Attributes:
        table: Translation table from proto-sounds to sounds.
        glide: Sound inserted between two vowels where parts of a word meet.
    """

    table: Mapping[int, str]
    glide: str

    @staticmethod
    def draw(rng: random.Random) -> SoundChange:
        """Draw a change that moves about half of the consonants and two of the vowels."""
        changed = {sound: rng.choice(to) for sound, to in _SHIFTS.items() if rng.random() < 0.5}
        first, second = rng.sample(_VOWELS, 2)
        return SoundChange(str.maketrans({**changed, first: second, second: first}), rng.choice("wyq"))

    def apply(self, form: str) -> str:
        """Turn a proto-form into the form of the daughter language."""
        return form.translate(self.table)

    def join(self, parts: Sequence[str]) -> str:
        """Join the parts of a word, with a glide between two vowels."""
        word = ""
        for part in parts:
            word += (
                self.glide + part if word and part and word[-1] in _VOWELS and part[0] in _VOWELS else part
            )
        return word
