"""What becomes source and target: every task is a function over the same meanings."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

from nlgraft.text.config import ConlangConfig, Split
from nlgraft.text.conlang.language import Family, family
from nlgraft.text.conlang.meaning import Speaker

Example = dict[str, str]
"""Lines by role, named as ``Corpus.streams`` does."""

_BUCKETS = 10
_SPLIT_BUCKETS: dict[Split, range] = {"dev": range(1), "test": range(1, 2), "train": range(2, _BUCKETS)}


def generate(config: ConlangConfig, split: Split) -> dict[str, list[str]]:
    """Make the examples of one split.

    **Determinism**: the lines depend on the config and the split alone; those of a shorter split are the
    first ones of a longer.

    Args:
        config: What is asked for.
        split: Which split: none shares an example with another.

    Returns:
        Lines by role.
    """
    rng = random.Random(f"conlang {config.seed} {config.domain} {split}")
    people = family(config.seed)
    speaker = Speaker(people.lexicon, config.domain, rng)
    lines: dict[str, list[str]] = {}
    wanted = getattr(config, split)
    buckets = _SPLIT_BUCKETS[split]
    count = 0
    for key, example in _TASKS[config.task](config, people, speaker):
        if zlib.crc32(key.encode()) % _BUCKETS not in buckets:
            continue
        for role, line in example.items():
            lines.setdefault(role, []).append(line)
        count += 1
        if count == wanted:
            break
    return lines


Keyed = Iterator[tuple[str, Example]]
"""Examples without end, each with the text that decides its split."""


def _translation(config: ConlangConfig, people: Family, speaker: Speaker) -> Keyed:
    first, target = people.languages["first"], people.languages["target"]
    while True:
        meaning = speaker.sentence()
        said = target.say(meaning)
        yield said, {"source 0": first.say(meaning), "target": said}


def _monolingual(config: ConlangConfig, people: Family, speaker: Speaker) -> Keyed:
    language = people.languages[config.language or "target"]
    while True:
        said = language.say(speaker.sentence())
        yield said, {"source 0": said}


_TASKS: dict[str, Callable[[ConlangConfig, Family, Speaker], Keyed]] = {
    "translation": _translation,
    "monolingual": _monolingual,
}
