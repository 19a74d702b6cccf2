"""Scripts of text, and the tokenizers of metrics that fit them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from nlgraft.evaluation.metric_config import BleuTokenizer, RougeTokenizer

Script = Literal["english", "spaced", "korean", "chinese", "japanese", "unspaced"]
"""``english``: nearly all letters are a to z; ``spaced``: others that separate words by spaces and have no
tokenizer of their own; ``unspaced``: Thai, Lao, Khmer, Burmese, Tibetan."""
BLEU_TOKENIZERS: dict[Script, tuple[BleuTokenizer, ...]] = {
    "english": ("13a", "intl", "none"),
    "spaced": ("13a", "intl", "none"),
    "korean": ("ko-mecab", "char", "flores200", "none"),
    "chinese": ("zh", "char", "flores200", "none"),
    "japanese": ("ja-mecab", "char", "flores200", "none"),
    "unspaced": ("char", "flores200", "none"),
}
"""BLEU's tokenizers that fit a script; the first one is the default."""
ROUGE_TOKENIZERS: dict[Script, tuple[RougeTokenizer, ...]] = {
    "english": ("english", "words"),
    "spaced": ("words",),
    "korean": ("words", "characters"),
    "chinese": ("characters",),
    "japanese": ("characters",),
    "unspaced": ("characters",),
}
"""ROUGE's tokenizers that fit a script; the first one is the default."""
_NAMES: dict[Script, str] = {
    "english": "English or as plain",
    "spaced": "of words with letters beyond a to z",
    "korean": "Korean",
    "chinese": "Chinese",
    "japanese": "Japanese",
    "unspaced": "in a script without spaces",
}
_NUM_LINES = 1000  # enough to tell a script
_KANA_SHARE, _SCRIPT_SHARE, _FOREIGN_SHARE = 0.05, 0.3, 0.002
_OWN: dict[str, Script] = {
    "CJK": "chinese",
    "HANGUL": "korean",
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"), "unspaced"),
}


def script_of(lines: Sequence[str]) -> Script | None:
    """Tell the script of text from the letters of its first lines; None for text without any."""
    characters = Counter("\n".join(lines[:_NUM_LINES]).lower())
    letters = Counter({char: number for char, number in characters.items() if char.isalpha()})
    total = letters.total()
    if not total:
        return None
    scripts = Counter[str]()
    for char, count in letters.items():
        scripts[_script(char)] += count
    # Japanese mixes kana with Chinese characters, whereas Chinese has no kana
    if scripts["kana"] / total > _KANA_SHARE:
        return "japanese"
    most = max(_OWN, key=scripts.__getitem__)
    if scripts[most] / total > _SCRIPT_SHARE:
        return _OWN[most]
    # an English text has a café here and there; German has an umlaut or ß among 50 letters
    foreign = 1 - sum(letters[char] for char in "abcdefghijklmnopqrstuvwxyz") / total
    return "spaced" if foreign > _FOREIGN_SHARE else "english"


@cache
def _script(char: str) -> str:
    first = unicodedata.name(char, "").split(" ")[0]
    return "kana" if first in ("HIRAGANA", "KATAKANA") else first


@dataclass(frozen=True)
class TextTokenizers:
    """How BLEU and ROUGE find the words of a text."""

    bleu: BleuTokenizer = "13a"
    rouge: RougeTokenizer = "english"


DEFAULT_TOKENIZERS = TextTokenizers()
"""Tokenizers of English and other text in plain Latin letters."""


def choose_tokenizers(
    references: Sequence[str],
    bleu: BleuTokenizer | None = None,
    rouge: RougeTokenizer | None = None,
) -> TextTokenizers:
    """Return the tokenizers that a study sets; an unset one is chosen by the script of the references."""
    return fitting_tokenizers(script_of(references), bleu, rouge)


def fitting_tokenizers(
    script: Script | None, bleu: BleuTokenizer | None, rouge: RougeTokenizer | None
) -> TextTokenizers:
    """Return the tokenizers that a study sets; an unset one is the script's, English's for no script."""
    script = script or "english"
    return TextTokenizers(bleu or BLEU_TOKENIZERS[script][0], rouge or ROUGE_TOKENIZERS[script][0])


def misfits(
    script: Script | None,
    bleu: BleuTokenizer | None,
    rouge: RougeTokenizer | None,
) -> Iterator[str]:
    """Say which tokenizers of a study do not fit the script of the references, and what to do."""
    if script is None:
        return
    for name, chosen, fitting in (
        ("bleu_tokenizer", bleu, BLEU_TOKENIZERS[script]),
        ("rouge_tokenizer", rouge, ROUGE_TOKENIZERS[script]),
    ):
        if chosen is not None and chosen not in fitting:
            yield (
                f"score.{name} is {chosen}, but the references are {_NAMES[script]}, which {chosen} does not "
                f"split into words, unless they are separated already: set {' or '.join(fitting)}, or "
                "leave it out to have the first of them"
            )
