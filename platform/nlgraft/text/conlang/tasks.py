"""Tasks: functions from the same meanings to sources and targets."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from nlgraft.text.conlang.language import Family, Slot, family
from nlgraft.text.conlang.lexicon import Clause, Domain, Entity, Lexicon, Sentence, Speaker, Tense
from nlgraft.text.corpus_config import ConlangConfig, Split, Task

# Parts of a meaning that a source leaves unsaid.


def leave_out(
    meaning: Sentence,
    share: float,
    rng: random.Random,
) -> tuple[Sentence, Sentence]:
    """Omit adjectives, adverbs, places and owners from two versions of a meaning, none of them from both.

    Args:
        meaning: The whole.
        share: Probability that a part is missing in the first version, and that it is missing in the second.
        rng: Random generator; not advanced if ``share`` is 0.
    """
    if not share:
        return meaning, meaning
    seed = rng.random()

    def version(lowest: float) -> Sentence:
        draws = random.Random(seed)  # every version asks about the same parts in the same order

        def is_said() -> bool:
            return not lowest <= draws.random() < lowest + share

        return meaning._replace(clauses=tuple(_said(clause, is_said) for clause in meaning.clauses))

    return version(0.0), version(share)


def _said(clause: Clause, is_said: Callable[[], bool]) -> Clause:
    subject = _said_of(clause.subject, is_said)
    thing = clause.object and _said_of(clause.object, is_said)
    place = clause.place and _said_of(clause.place, is_said)
    has_place, has_adverb = is_said(), is_said()
    return clause._replace(
        subject=subject,
        object=thing,
        place=place if has_place else None,
        relation=clause.relation if has_place else None,
        adverb=clause.adverb if has_adverb else None,
    )


def _said_of(entity: Entity, is_said: Callable[[], bool]) -> Entity:
    adjectives = tuple(word for word in entity.adjectives if is_said())
    owner = entity.owner and _said_of(entity.owner, is_said)
    return entity._replace(adjectives=adjectives, owner=owner if is_said() else None)


# Faulty drafts of a translation, the input of post-editing.


def blunder(
    meaning: Sentence,
    lexicon: Lexicon,
    domain: Domain,
    rng: random.Random,
) -> Sentence:
    """Distort a meaning slightly: in number, tense and choice of words, and by omissions.

    Each draft is good text about something slightly different, with about two faults in ten words; some have
    none. Wrong words come from ``domain``.
    """
    words = lexicon.inventories[domain]

    def mistake(entity: Entity) -> Entity:
        if rng.random() < 0.2:
            entity = entity._replace(is_plural=not entity.is_plural)
        if rng.random() < 0.1:
            entity = entity._replace(is_definite=not entity.is_definite)
        if rng.random() < 0.1:
            urn = words.subjects if lexicon.lexemes[entity.noun].is_animate else words.things
            entity = entity._replace(noun=urn.draw(rng))
        if entity.adjectives and rng.random() < 0.2:
            entity = entity._replace(adjectives=entity.adjectives[:-1])
        if entity.owner:
            return entity._replace(owner=mistake(entity.owner))
        return entity

    def mistold(clause: Clause) -> Clause:
        is_adverb_kept = rng.random() > 0.2
        return clause._replace(
            verb=words.verbs.draw(rng) if rng.random() < 0.1 else clause.verb,
            subject=mistake(clause.subject),
            object=mistake(clause.object) if clause.object else None,
            place=mistake(clause.place) if clause.place else None,
            adverb=clause.adverb if is_adverb_kept else None,
            tense=rng.choice(list(Tense)) if rng.random() < 0.2 else clause.tense,
        )

    return meaning._replace(clauses=tuple(mistold(clause) for clause in meaning.clauses))


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

    def is_ours(self, key: str) -> bool:
        """Return True if a text belongs to the split that is made."""
        # A text's split depends on the text alone; unlike hash(), crc32 is the same in every process.
        return zlib.crc32(key.encode()) % _BUCKETS in self.buckets

    def sentences(self, language: str) -> Iterator[tuple[Sentence, str]]:
        """Draw meanings, each with its expression in a language, of which those of the split are kept."""
        while True:
            meaning = self.speaker.sentence()
            text = self.say(language, meaning)
            if self.is_ours(text):
                yield meaning, text

    def documents(self) -> Iterator[tuple[list[Sentence], list[str]]]:
        """Draw documents, each with its sentences in the target language, likewise."""
        while True:
            document = self.speaker.document()
            texts = [self.say("target", meaning) for meaning in document]
            if self.is_ours(" ".join(texts)):
                yield document, texts

    def say(
        self,
        language: str,
        meaning: Sentence,
        queried: Slot | None = None,
    ) -> str:
        return self.people.languages[language].say(meaning, queried)


def generate(config: ConlangConfig, split: Split) -> dict[str, list[str]]:
    """Make the examples of one split, as lines by role.

    **Determinism**: the lines depend on the config and the split alone; those of a shorter split are the
    first ones of a longer. No two splits share an example.
    """
    name = f"conlang {SEED} {config.domain} {split}"
    people = family(SEED)
    speaker = Speaker(people.lexicon, config.domain, random.Random(name), config.topicality)
    rng = random.Random(f"{name} {config.task}")
    scene = _Scene(config, people, speaker, rng, _SPLIT_BUCKETS[split])
    num_examples: int = getattr(config, split)
    examples: list[Example] = []
    for group in _TASKS[config.task](scene):
        examples += group
        if len(examples) >= num_examples:
            break
    return {role: [example[role] for example in examples[:num_examples]] for role in config.roles}


def _translation(scene: _Scene) -> Groups:
    for meaning, target in scene.sentences("target"):
        yield [{"source 0": scene.say("first", meaning), "target": target}]


def _multi_source(scene: _Scene) -> Groups:
    for meaning, target in scene.sentences("target"):
        first, second = leave_out(meaning, scene.config.unsaid, scene.rng)
        yield [
            {
                "source 0": scene.say("first", first),
                "source 1": scene.say("second", second),
                "target": target,
            }
        ]


def _post_editing(scene: _Scene) -> Groups:
    for meaning, target in scene.sentences("target"):
        blundered = blunder(meaning, scene.people.lexicon, scene.config.domain, scene.rng)
        draft = scene.say("target", blundered)
        first, _ = leave_out(meaning, scene.config.unsaid, scene.rng)
        yield [{"source 0": scene.say("first", first), "source 1": draft, "target": target}]


def _document_translation(scene: _Scene) -> Groups:
    for number, (document, targets) in enumerate(scene.documents()):
        yield [
            {"source 0": scene.say("first", meaning), "target": target, "document": str(number)}
            for meaning, target in zip(document, targets, strict=True)
        ]


def _question_generation(scene: _Scene) -> Groups:
    for meaning, passage in scene.sentences("first"):
        clause = scene.rng.choice(meaning.clauses)
        queried = scene.rng.choice([slot for slot in get_args(Slot) if getattr(clause, slot)])
        question = scene.say("first", Sentence((clause,)), queried)
        named = scene.people.languages["first"].name(getattr(clause, queried))
        yield [{"source 0": passage, "source 1": named, "target": question}]


def _summarisation(scene: _Scene) -> Groups:
    for document, texts in scene.documents():
        point = next(meaning for meaning in document if meaning.is_stressed)
        yield [{"source 0": " ".join(texts), "target": scene.say("target", _gist(point))}]


def _gist(point: Sentence) -> Sentence:
    clause = point.clauses[0]
    patient = clause.object and _bare(clause.object)
    return Sentence((Clause(clause.verb, _bare(clause.subject), patient),))


def _bare(entity: Entity) -> Entity:
    return Entity(entity.noun, entity.is_plural, is_definite=True)


def _classification(scene: _Scene) -> Groups:
    names = {-1: "negative", 0: "neutral", 1: "positive"}
    for meaning, text in scene.sentences(scene.config.language or "target"):
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
    for _, text in scene.sentences(scene.config.language or "target"):
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
