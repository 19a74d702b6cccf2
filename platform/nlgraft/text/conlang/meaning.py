"""What is said: sentences and documents as meanings, before any language.

Plain tuples: a meaning is compared, changed by ``_replace`` and rendered by every language.
"""

from __future__ import annotations

import random
from enum import IntEnum
from typing import NamedTuple

from nlgraft.text.conlang.lexicon import Domain, Lexicon

NUM_RELATIONS = 6
NUM_LINKS = 3


class Tense(IntEnum):
    """When it happens."""

    PAST = 0
    PRESENT = 1
    FUTURE = 2


class Entity(NamedTuple):
    """Someone or something.

    Attributes:
        noun: Lexeme.
        is_plural: More than one.
        is_definite: Known to the hearer.
        adjectives: Lexemes, the closest to the noun first.
        owner: Whose it is.
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
        subject: Who acts.
        object: Who or what it is done to.
        relation: How ``place`` relates to the event, below ``NUM_RELATIONS``; None without a place.
        place: Where or with whom.
        adverb: Lexeme.
        tense: When.
        is_negated: Said not to happen.
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
        link: How the second follows from the first, below ``NUM_LINKS``; None for one event.
        is_stressed: Said with weight: the main point of a document.
    """

    clauses: tuple[Clause, ...]
    link: int | None = None
    is_stressed: bool = False


class Speaker:
    """Draws what is said in a domain."""

    def __init__(self, lexicon: Lexicon, domain: Domain, rng: random.Random) -> None:
        """Set up a speaker.

        Args:
            lexicon: The words.
            domain: What is spoken of.
            rng: Source of chance; it decides everything the speaker says.
        """
        self._lexemes = lexicon.lexemes
        self._words = lexicon.inventories[domain]
        self._rng = rng

    def sentence(self) -> Sentence:
        """Draw a sentence.

        Returns:
            One event, or two that are linked.
        """
        first = self.clause()
        if self._rng.random() < 0.75:
            return Sentence((first,))
        return Sentence((first, self.clause()), self._rng.randrange(NUM_LINKS))

    def document(self) -> list[Sentence]:
        """Draw a document: three to five sentences about one thing, one of them the main point.

        Returns:
            The sentences; after the first, the thing is mostly a pronoun.
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
        """Draw an event.

        Args:
            subject: Who acts; drawn when left out.

        Returns:
            The event.
        """
        rng, chance = self._rng, self._rng.random
        verb = self._words.verbs.draw(rng)
        if subject is None:
            subject = self._entity(self._words.subjects.draw(rng))
        thing = None
        if chance() < 0.75:
            urns = self._words.things_by_field
            urn = urns[self._lexemes[verb].field] if chance() < 0.5 else self._words.things
            thing = self._entity((urn if urn.ids else self._words.things).draw(rng))
        has_place = chance() < 0.45
        tense = chance()
        return Clause(
            verb=verb,
            subject=subject,
            object=thing,
            relation=rng.randrange(NUM_RELATIONS) if has_place else None,
            place=self._entity(self._words.things.draw(rng)) if has_place else None,
            adverb=self._words.adverbs.draw(rng) if chance() < 0.3 else None,
            tense=Tense.PAST if tense < 0.4 else Tense.PRESENT if tense < 0.8 else Tense.FUTURE,
            is_negated=chance() < 0.12,
        )

    def _entity(self, noun: int, may_own: bool = True) -> Entity:
        rng, chance = self._rng, self._rng.random
        lexeme = self._lexemes[noun]
        how_many = chance()
        count = 0 if how_many < 0.60 else 1 if how_many < 0.93 else 2
        return Entity(
            noun=noun,
            is_plural=chance() < (0.35 if lexeme.is_animate else 0.2),
            is_definite=chance() < 0.55,
            adjectives=tuple(self._words.adjectives.draw(rng) for _ in range(count)),
            owner=self._entity(self._words.subjects.draw(rng), False)
            if may_own and chance() < 0.08
            else None,
        )
