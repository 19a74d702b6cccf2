"""The sounds of the family: proto-forms, what each daughter made of them, how parts join."""

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
}  # every change is one that languages are known to make


def proto_form(rng: random.Random) -> str:
    """Draw the form of a root in the proto-language.

    Args:
        rng: Source of chance.

    Returns:
        Four to six sounds.
    """
    shape = rng.choice(_SHAPES)
    return "".join(rng.choice(_CONSONANTS if place == "C" else _VOWELS) for place in shape)


def affix_form(rng: random.Random, shape: str) -> str:
    """Draw the form of an affix or function word.

    Args:
        rng: Source of chance.
        shape: C and V, e.g. ``VC``.

    Returns:
        A form of that shape.
    """
    return "".join(rng.choice(_CONSONANTS if place == "C" else _VOWELS) for place in shape)


@dataclass(frozen=True)
class SoundChange:
    """The regular sound change that led to one language.

    Attributes:
        table: What each sound of the proto-language became.
        glide: What keeps two vowels apart where parts of a word meet.
    """

    table: Mapping[int, str]
    glide: str

    @staticmethod
    def draw(rng: random.Random) -> SoundChange:
        """Draw a sound change.

        Args:
            rng: Source of chance.

        Returns:
            A change that moves about half of the consonants and two of the vowels.
        """
        changed = {sound: rng.choice(to) for sound, to in _SHIFTS.items() if rng.random() < 0.5}
        first, second = rng.sample(_VOWELS, 2)
        return SoundChange(str.maketrans({**changed, first: second, second: first}), rng.choice("wyq"))

    def apply(self, form: str) -> str:
        """Say what became of a proto-form.

        Args:
            form: In the proto-language.

        Returns:
            The form in the daughter language.
        """
        return form.translate(self.table)

    def join(self, parts: Sequence[str]) -> str:
        """Put the parts of a word together.

        Args:
            parts: Non-empty parts in order.

        Returns:
            The word: the parts unchanged, a glide between two vowels.
        """
        word = ""
        for part in parts:
            word += (
                self.glide + part if word and part and word[-1] in _VOWELS and part[0] in _VOWELS else part
            )
        return word
