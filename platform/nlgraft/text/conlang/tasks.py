"""Tasks: functions from the same meanings to sources and targets."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from nlgraft.text.conlang.drafts import blunder
from nlgraft.text.conlang.language import Family, Slot, family
from nlgraft.text.conlang.meaning import Clause, Entity, Sentence, Speaker
from nlgraft.text.conlang.unsaid import leave_out, understood
from nlgraft.text.corpus_config import ConlangConfig, Split, Task

SEED = 0
"""Of the language family and of the sentences: all corpora share their languages."""
_BUCKETS = 10
_SPLIT_BUCKETS: dict[Split, range] = {"dev": range(1), "test": range(1, 2), "train": range(2, _BUCKETS)}

Example = dict[str, str]
"""Lines by role, named as ``Corpus.streams`` does."""

Groups = Iterator[list[Example]]
"""Endless examples, in groups that stay together."""


@dataclass(frozen=True)
class _Scene:
    config: ConlangConfig
    people: Family
    speaker: Speaker
    rng: random.Random  # the speaker has its own, so that all tasks share the same meanings
    buckets: range
    has_perfect: bool
    """Perfect translations of each source alone are made, too."""

    def is_ours(self, key: str) -> bool:
        """Return True if a text belongs to the split that is made."""
        # A text's split depends on the text alone; unlike hash(), crc32 is the same in every process.
        return zlib.crc32(key.encode()) % _BUCKETS in self.buckets

    def say(self, language: str, meaning: Sentence, queried: Slot | None = None) -> str:
        return self.people.languages[language].say(meaning, queried)

    def say_understood(self, language: Literal["first", "second"], meaning: Sentence) -> str:
        """Say in the target language what a reader of a source language understands."""
        return self.say("target", understood(meaning, language, self.people.lexicon))


def generate(config: ConlangConfig, split: Split) -> dict[str, list[str]]:
    """Make the examples of one split, as lines by role.

    **Determinism**: the lines depend on the config and the split alone; those of a shorter split are the
    first ones of a longer. No two splits share an example.
    """
    examples = _examples(config, split, has_perfect=False)
    return {role: [example[role] for example in examples] for role in config.roles}


def perfect_translations(config: ConlangConfig, split: Split) -> dict[str, list[str]]:
    """Translate each source of a split alone, with all that its language says, as well as can be.

    Returns:
        Target lines by the source's role, where ``unsaid`` is set. A draft is its own translation.
    """
    if not config.unsaid:
        return {}
    examples, roles = _examples(config, split, has_perfect=True), ("source 0", "source 1")
    return {role: [example[f"perfect {role}"] for example in examples] for role in roles}


def _examples(config: ConlangConfig, split: Split, *, has_perfect: bool) -> list[Example]:
    name = f"conlang {SEED} {config.domain} {split}"
    people = family(SEED)
    speaker = Speaker(people.lexicon, config.domain, random.Random(name), config.topicality)
    rng = random.Random(f"{name} {config.task}")
    scene = _Scene(config, people, speaker, rng, _SPLIT_BUCKETS[split], has_perfect)
    wanted: int = getattr(config, split)
    examples: list[Example] = []
    for group in _TASKS[config.task](scene):
        examples += group
        if len(examples) >= wanted:
            break
    return examples[:wanted]


def _translation(scene: _Scene) -> Groups:
    while True:
        meaning = scene.speaker.sentence()
        target = scene.say("target", meaning)
        if scene.is_ours(target):
            yield [{"source 0": scene.say("first", meaning), "target": target}]


def _multi_source(scene: _Scene) -> Groups:
    while True:
        meaning = scene.speaker.sentence()
        target = scene.say("target", meaning)
        if scene.is_ours(target):
            first, second = leave_out(meaning, scene.config.unsaid, scene.rng)
            sources = {"source 0": scene.say("first", first), "source 1": scene.say("second", second)}
            if scene.has_perfect:
                sources["perfect source 0"] = scene.say_understood("first", first)
                sources["perfect source 1"] = scene.say_understood("second", second)
            yield [{**sources, "target": target}]


def _post_editing(scene: _Scene) -> Groups:
    while True:
        meaning = scene.speaker.sentence()
        target = scene.say("target", meaning)
        if scene.is_ours(target):
            faulty = blunder(meaning, scene.people.lexicon, scene.config.domain, scene.rng)
            said, _ = leave_out(meaning, scene.config.unsaid, scene.rng)
            first, draft = scene.say("first", said), scene.say("target", faulty)
            sources = {"source 0": first, "source 1": draft}
            if scene.has_perfect:
                sources |= {
                    "perfect source 0": scene.say_understood("first", said),
                    "perfect source 1": draft,
                }
            yield [{**sources, "target": target}]


def _document_translation(scene: _Scene) -> Groups:
    number = 0
    while True:
        document = scene.speaker.document()
        targets = [scene.say("target", meaning) for meaning in document]
        if scene.is_ours(" ".join(targets)):
            yield [
                {"source 0": scene.say("first", meaning), "target": target, "document": str(number)}
                for meaning, target in zip(document, targets, strict=True)
            ]
            number += 1


def _question_generation(scene: _Scene) -> Groups:
    while True:
        meaning = scene.speaker.sentence()
        passage = scene.say("first", meaning)
        if not scene.is_ours(passage):
            continue
        clause = scene.rng.choice(meaning.clauses)
        parts: dict[Slot, Entity | None] = {
            "subject": clause.subject,
            "object": clause.object,
            "place": clause.place,
        }
        filled: list[tuple[Slot, Entity]] = [(slot, part) for slot, part in parts.items() if part]
        queried, answer = scene.rng.choice(filled)
        question = scene.say("first", Sentence((clause,)), queried)
        named = scene.people.languages["first"].name(answer)
        yield [{"source 0": passage, "source 1": named, "target": question}]


def _summarisation(scene: _Scene) -> Groups:
    while True:
        document = scene.speaker.document()
        text = " ".join(scene.say("target", meaning) for meaning in document)
        if scene.is_ours(text):
            point = next(meaning for meaning in document if meaning.is_stressed)
            yield [{"source 0": text, "target": scene.say("target", _gist(point))}]


def _gist(point: Sentence) -> Sentence:
    clause = point.clauses[0]
    return Sentence((Clause(clause.verb, _bare(clause.subject), clause.object and _bare(clause.object)),))


def _bare(entity: Entity) -> Entity:
    return Entity(entity.noun, entity.is_plural, is_definite=True)


def _classification(scene: _Scene) -> Groups:
    language = scene.config.language or "target"
    names = {-1: "negative", 0: "neutral", 1: "positive"}
    while True:
        meaning = scene.speaker.sentence()
        text = scene.say(language, meaning)
        if scene.is_ours(text):
            worth = sum(_worth(clause, scene.people) for clause in meaning.clauses)
            sentiment = names[(worth > 0) - (worth < 0)]
            topic = scene.speaker.topic
            yield [{"source 0": text, "label": sentiment if topic is None else f"topic {topic}"}]


def _worth(clause: Clause, people: Family) -> int:
    lexemes = people.lexicon.lexemes
    event = lexemes[clause.verb].valence
    words: list[int] = []
    waiting = [clause.subject, clause.object, clause.place]
    while waiting:
        entity = waiting.pop()
        if entity is not None:
            words += [entity.noun, *entity.adjectives]
            waiting.append(entity.owner)
    return (-event if clause.is_negated else event) + sum(lexemes[word].valence for word in words)


def _monolingual(scene: _Scene) -> Groups:
    language = scene.config.language or "target"
    while True:
        text = scene.say(language, scene.speaker.sentence())
        if scene.is_ours(text):
            yield [{"source 0": text}]


_TASKS: dict[Task, Callable[[_Scene], Groups]] = {
    "translation": _translation,
    "multi_source": _multi_source,
    "post_editing": _post_editing,
    "document_translation": _document_translation,
    "question_generation": _question_generation,
    "summarisation": _summarisation,
    "classification": _classification,
    "monolingual": _monolingual,
}
