"""Sentences and documents as meanings, independent of any language.

Plain tuples: a meaning is compared, changed by ``_replace`` and rendered by every language.
"""

from __future__ import annotations

import random
from enum import IntEnum
from typing import NamedTuple

from nlgraft.text.conlang.lexicon import NUM_FIELDS, Domain, FieldUrn, Lexicon, Urn

NUM_RELATIONS = 6
NUM_LINKS = 3


class Tense(IntEnum):
    """Time of an event."""

    PAST = 0
    PRESENT = 1
    FUTURE = 2


class Entity(NamedTuple):
    """A person or thing.

    Attributes:
        noun: Lexeme.
        is_plural: More than one.
        is_definite: Known to the hearer.
        adjectives: Lexemes, the closest to the noun first.
        owner: Possessor.
        is_pronoun: Only referred to, since it was named before.
    """

    noun: int
    is_plural: bool = False
    is_definite: bool = False
    adjectives: tuple[int, ...] = ()
    owner: Entity | None = None
    is_pronoun: bool = False


class Clause(NamedTuple):
    """An event.

    Attributes:
        verb: Lexeme.
        subject: Agent.
        object: Patient.
        relation: Relation of ``place`` to the event, below ``NUM_RELATIONS``; None without a place.
        place: Location or company.
        adverb: Lexeme.
        tense: Time of the event.
        is_negated: True if the event does not happen.
    """

    verb: int
    subject: Entity
    object: Entity | None = None
    relation: int | None = None
    place: Entity | None = None
    adverb: int | None = None
    tense: Tense = Tense.PRESENT
    is_negated: bool = False


class Sentence(NamedTuple):
    """One or two events.

    Attributes:
        clauses: The events.
        link: Connection of the second event to the first, below ``NUM_LINKS``; None for one event.
        is_stressed: True for the main point of a document.
    """

    clauses: tuple[Clause, ...]
    link: int | None = None
    is_stressed: bool = False


class Speaker:
    """Draws the meanings of a domain; ``rng`` alone decides them."""

    def __init__(self, lexicon: Lexicon, domain: Domain, rng: random.Random, topicality: float = 0.0) -> None:
        """Take the words of one domain, and the share of them that is drawn from a sentence's topic."""
        self._lexemes = lexicon.lexemes
        self._words = lexicon.inventories[domain]
        self._rng = rng
        self._topicality = topicality
        self.topic: int | None = None
        """Semantic field of the last sentence; None where topicality is 0."""

    def sentence(self) -> Sentence:
        """Draw one event, or two linked events."""
        if self._topicality:
            self.topic = self._rng.randrange(NUM_FIELDS)
        first = self.clause()
        if self._rng.random() < 0.75:
            return Sentence((first,))
        return Sentence((first, self.clause()), self._rng.randrange(NUM_LINKS))

    def document(self) -> list[Sentence]:
        """Draw a document: three to five sentences about one thing, one of them the main point.

        After the first sentence the thing is mostly a pronoun.
        """
        count = self._rng.randint(3, 5)
        main = self._rng.randrange(count)
        first = self.clause()
        topic = first.subject._replace(is_definite=True, adjectives=(), owner=None)
        sentences = [Sentence((first,), is_stressed=main == 0)]
        for index in range(1, count):
            again = topic._replace(is_pronoun=self._rng.random() < 0.7)
            sentences.append(Sentence((self.clause(again),), is_stressed=main == index))
        return sentences

    def clause(self, subject: Entity | None = None) -> Clause:
        """Draw an event; its subject, too, unless it is passed."""
        rng, chance = self._rng, self._rng.random
        verb = self._on_topic(self._words.verbs).draw(rng)
        if subject is None:
            subject = self._entity(self._on_topic(self._words.subjects).draw(rng))
        thing = None
        if chance() < 0.75:
            things = self._words.things
            is_of_verb = chance() < 0.5
            urn = things.of_field(self._lexemes[verb].field) if is_of_verb else self._on_topic(things)
            thing = self._entity(urn.draw(rng))
        has_place = chance() < 0.45
        tense = chance()
        return Clause(
            verb=verb,
            subject=subject,
            object=thing,
            relation=rng.randrange(NUM_RELATIONS) if has_place else None,
            place=self._entity(self._on_topic(self._words.things).draw(rng)) if has_place else None,
            adverb=self._words.adverbs.draw(rng) if chance() < 0.3 else None,
            tense=Tense.PAST if tense < 0.4 else Tense.PRESENT if tense < 0.8 else Tense.FUTURE,
            is_negated=chance() < 0.12,
        )

    def _on_topic(self, words: FieldUrn) -> Urn:
        """Choose the words of the topic, or all, by chance."""
        if self.topic is None or self._rng.random() >= self._topicality:
            return words
        return words.of_field(self.topic)

    def _entity(self, noun: int, may_own: bool = True) -> Entity:
        rng, chance = self._rng, self._rng.random
        lexeme = self._lexemes[noun]
        how_many = chance()
        count = 0 if how_many < 0.60 else 1 if how_many < 0.93 else 2
        return Entity(
            noun=noun,
            is_plural=chance() < (0.35 if lexeme.is_animate else 0.2),
            is_definite=chance() < 0.55,
            adjectives=tuple([self._on_topic(self._words.adjectives).draw(rng) for _ in range(count)])
            if count
            else (),
            owner=self._entity(self._words.subjects.draw(rng), False)
            if may_own and chance() < 0.08
            else None,
        )
