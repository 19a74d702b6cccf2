"""Which examples of a corpus a study keeps, and how much of their lines."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from nlgraft.basics.strict_config import StrictConfig

_WORD = re.compile(r"[^\W_]+")


def word_tokens(line: str) -> list[str]:
    """Split a line into its maximal runs of letters and digits, lower-cased, as a ``WordRule`` sees it."""
    return _WORD.findall(line.lower())


class Limits(StrictConfig):
    """Largest number of examples of each split, counted after the word rule; null: all."""

    train: int | None = Field(default=None, ge=1)
    """Training examples."""
    dev: int | None = Field(default=None, ge=1)
    """Dev examples."""
    test: int | None = Field(default=None, ge=1)
    """Examples of each test set."""


class WordRule(StrictConfig):
    """Selects a domain from a corpus by the words of its first source.

    A line is split into its maximal runs of letters and digits, lower-cased. It belongs to the domain when
    any of them is in ``words`` (whole words, no stemming: list the inflected forms). ``has: false`` keeps the
    complement, so two configs that differ only in ``has`` split a corpus into two disjoint domains that cover
    it.
    """

    words: tuple[str, ...] = Field(min_length=1)
    """Keywords, lower case, one word each."""
    has: bool = True
    """If true, keep the lines with a keyword; if false, those without."""

    @field_validator("words")
    @classmethod
    def _can_match(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        never = [word for word in words if word_tokens(word) != [word]]
        if never:
            raise ValueError(
                f"{never} can never match: give lower-case words of letters and digits, one each"
            )
        return words

    def keeps(self, line: str) -> bool:
        """Return True when an example belongs to the domain, given its first source."""
        return self.has != frozenset(self.words).isdisjoint(word_tokens(line))


class SelectionConfig(StrictConfig):
    """Part of the configuration of every corpus that is read."""

    limits: Limits = Limits()
    """Limits on the examples of each split."""
    keep: WordRule | None = None
    """Rule that selects examples, applied to every split before the limits; null: all."""
    max_line_chars: int = Field(default=10_000, ge=1)
    """Longest line, in characters; longer ones are truncated, counted and reported."""
    max_source_words: int | None = Field(default=None, ge=1)
    """Longest source, in words between white space; longer ones are truncated, counted and reported (See et
    al. 2017: 400 for CNN-DailyMail). Null: no limit."""
