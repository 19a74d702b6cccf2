"""Words of the family as meanings: roots, derived and compound words, two domains.

Domain b expresses most of its own concepts by words built from roots and affixes that domain a also uses, in
combinations that a never has; only a few of its roots are new. So the words of b can be guessed from the
parts of a's words.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Literal, NamedTuple

Category = Literal["noun", "verb", "adjective", "adverb"]
Domain = Literal["a", "b"]
NUM_GENDERS = 3
NUM_FIELDS = 6

COMPOUND = "compound"


@dataclass(frozen=True)
class Derivation:
    """A way to build words.

    Attributes:
        base: Category it applies to.
        result: Category of the new word.
        is_animate: Animacy of a new noun; None keeps that of the base.
        gender: Gender of a new noun; None keeps that of the base.
        flips: True if good becomes bad.
        share: Relative frequency among built words.
    """

    base: Category
    result: Category
    is_animate: bool | None = None
    gender: int | None = None
    flips: bool = False
    share: float = 1.0


DERIVATIONS = {
    "agent": Derivation("verb", "noun", is_animate=True, gender=0, share=2.0),  # worker
    "tool": Derivation("verb", "noun", is_animate=False, gender=1),  # cutter
    "place": Derivation("verb", "noun", is_animate=False, gender=2),  # bakery
    "quality": Derivation("adjective", "noun", is_animate=False, gender=2),
    "small": Derivation("noun", "noun", share=1.5),
    "having": Derivation("noun", "adjective"),
    "able": Derivation("verb", "adjective"),
    "opposite": Derivation("adjective", "adjective", flips=True),
    "cause": Derivation("adjective", "verb"),
    "again": Derivation("verb", "verb"),
}
_COMPOUND_SHARE = 5.0

# Roots of both domains, of a (in b only as parts of words), of b alone.
_ROOTS: dict[Category, tuple[int, int, int]] = {
    "noun": (40, 60, 16),
    "verb": (24, 28, 6),
    "adjective": (18, 18, 4),
    "adverb": (10, 0, 0),
}
# Built words of a and of b.
_BUILT: dict[Category, tuple[int, int]] = {"noun": (60, 120), "verb": (12, 30), "adjective": (16, 30)}
# Running share of: common roots, own roots, built words.
_SHARES: dict[Domain, tuple[float, float, float]] = {"a": (0.40, 0.38, 0.22), "b": (0.34, 0.10, 0.56)}
_ZIPF_SHIFT = 2.7  # Mandelbrot's constant for English


@dataclass(frozen=True)
class Lexeme:
    """A word as a meaning, without sound.

    Attributes:
        id: Its number.
        category: Part of speech.
        derivation: A key of ``DERIVATIONS``, ``compound``, or None for a root.
        parts: Ids of its parts: the base, or modifier and head.
        is_animate: True if it can act (nouns).
        gender: Agreement class in the target language (nouns).
        field: Semantic field; verbs prefer objects of theirs.
        valence: 1 good, -1 bad, 0 neither.
    """

    id: int
    category: Category
    derivation: str | None
    parts: tuple[int, ...]
    is_animate: bool
    gender: int
    field: int
    valence: int


class Urn:
    """Draws words by their frequency."""

    def __init__(self, weighted: Iterable[tuple[int, float]]) -> None:
        """Fill the urn with (id, weight) pairs."""
        pairs = list(weighted)
        self.ids = [word for word, _ in pairs]
        self._bounds = list(accumulate(weight for _, weight in pairs))
        self._total = self._bounds[-1] if pairs else 0.0
        self._last = len(pairs) - 1

    def draw(self, rng: random.Random) -> int:
        """Draw an id."""
        # The upper limit guards against a product that is rounded up to the total.
        return self.ids[bisect(self._bounds, rng.random() * self._total, 0, self._last)]


class FieldUrn(Urn):
    """Draws words by their frequency: all of them, or those of one semantic field."""

    def __init__(self, weighted: Iterable[tuple[int, float]], lexemes: Sequence[Lexeme]) -> None:
        """Fill the urn with (id, weight) pairs."""
        pairs = list(weighted)
        super().__init__(pairs)
        self._fields = [
            Urn(pair for pair in pairs if lexemes[pair[0]].field == number) for number in range(NUM_FIELDS)
        ]

    def of_field(self, number: int) -> Urn:
        """Choose the words of a field; all words, if it has none."""
        if self._fields[number].ids:
            return self._fields[number]
        return self


@dataclass(frozen=True)
class Inventory:
    """Vocabulary of one domain, each word with its frequency.

    Attributes:
        subjects: Nouns that act.
        things: All nouns.
        verbs: Verbs.
        adjectives: Adjectives.
        adverbs: Adverbs.
    """

    subjects: FieldUrn
    things: FieldUrn
    verbs: FieldUrn
    adjectives: FieldUrn
    adverbs: Urn


class Lexicon:
    """All words of the family.

    Attributes:
        lexemes: By id.
        roots: Ids of the roots by category and place of use: both domains, a, b.
        built: Ids of derived and compound words by category and domain.
        inventories: Vocabulary of each domain.
    """

    def __init__(self, rng: random.Random) -> None:
        """Draw the words of a family."""
        self.lexemes: list[Lexeme] = []
        self.roots: dict[Category, list[list[int]]] = {
            category: [[self._root(category, rng) for _ in range(count)] for count in counts]
            for category, counts in _ROOTS.items()
        }
        self.built: dict[Category, tuple[list[int], list[int]]] = {}
        self._build(rng)
        domains: tuple[Domain, Domain] = ("a", "b")
        self.inventories = {domain: self._inventory(domain, rng) for domain in domains}

    def _root(self, category: Category, rng: random.Random) -> int:
        charge = {"noun": 0.0, "verb": 0.4, "adjective": 0.7, "adverb": 0.0}[category]
        root = Lexeme(
            id=len(self.lexemes),
            category=category,
            derivation=None,
            parts=(),
            is_animate=category == "noun" and rng.random() < 0.45,
            gender=rng.randrange(NUM_GENDERS),
            field=rng.randrange(NUM_FIELDS),
            valence=rng.choice((-1, 1)) if rng.random() < charge else 0,
        )
        self.lexemes.append(root)
        return root.id

    def _build(self, rng: random.Random) -> None:
        bases: dict[Category, list[int]] = {
            category: common + a_roots for category, (common, a_roots, _) in self.roots.items()
        }
        for category, counts in _BUILT.items():
            words = [self._built_word(category, bases, rng) for _ in range(sum(counts))]
            self.built[category] = (words[: counts[0]], words[counts[0] :])
        # a quarter of b's nouns are compounds of words that a builds
        deeper: dict[Category, list[int]] = {**bases, "noun": bases["noun"][:40] + self.built["noun"][0]}
        count = _BUILT["noun"][1] // 4
        compounds = [self._built_word("noun", deeper, rng, only=COMPOUND) for _ in range(count)]
        self.built["noun"][1][-count:] = compounds

    def _built_word(
        self,
        category: Category,
        bases: dict[Category, list[int]],
        rng: random.Random,
        only: str | None = None,
    ) -> int:
        taken = {(lexeme.derivation, lexeme.parts) for lexeme in self.lexemes}
        ways = {name: way.share for name, way in DERIVATIONS.items() if way.result == category}
        if category == "noun":
            ways[COMPOUND] = _COMPOUND_SHARE
        while True:
            name = only or rng.choices([*ways], [*ways.values()])[0]
            if name == COMPOUND:
                parts = (rng.choice(bases["noun"]), rng.choice(bases["noun"]))
            else:
                parts = (rng.choice(bases[DERIVATIONS[name].base]),)
            if (name, parts) not in taken and len(set(parts)) == len(parts):
                break
        head = self.lexemes[parts[-1]]
        way = DERIVATIONS.get(name, Derivation("noun", "noun"))
        word = Lexeme(
            id=len(self.lexemes),
            category=category,
            derivation=name,
            parts=parts,
            is_animate=head.is_animate if way.is_animate is None else way.is_animate,
            gender=head.gender if way.gender is None else way.gender,
            field=head.field,
            valence=-head.valence if way.flips else head.valence,
        )
        self.lexemes.append(word)
        return word.id

    def _inventory(self, domain: Domain, rng: random.Random) -> Inventory:
        which = 0 if domain == "a" else 1
        weights: dict[Category, list[tuple[int, float]]] = {}
        for category, (common, *domain_roots) in self.roots.items():
            built = self.built.get(category, ([], []))[which]
            kinds = [rng.sample(common, len(common)), domain_roots[which], built]
            weights[category] = [
                (word, share * weight)
                for share, words in zip(_SHARES[domain], kinds, strict=True)
                for word, weight in _zipf(words)
            ]
        nouns = weights["noun"]
        return Inventory(
            subjects=FieldUrn([pair for pair in nouns if self.lexemes[pair[0]].is_animate], self.lexemes),
            things=FieldUrn(nouns, self.lexemes),
            verbs=FieldUrn(weights["verb"], self.lexemes),
            adjectives=FieldUrn(weights["adjective"], self.lexemes),
            adverbs=Urn(weights["adverb"]),
        )


def _zipf(words: Sequence[int]) -> list[tuple[int, float]]:
    weights = [1 / (rank + 1 + _ZIPF_SHIFT) for rank in range(len(words))]
    total = sum(weights)
    return [(word, weight / total) for word, weight in zip(words, weights, strict=True)]


# Sentences and documents as meanings, independent of any language.
#
# Plain tuples: a meaning is compared, changed by ``_replace`` and rendered by every language.


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

    def __init__(
        self,
        lexicon: Lexicon,
        domain: Domain,
        rng: random.Random,
        topicality: float,
    ) -> None:
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
            adjectives=tuple([self._on_topic(self._words.adjectives).draw(rng) for _ in range(count)]),
            owner=self._entity(self._words.subjects.draw(rng), False)
            if may_own and chance() < 0.08
            else None,
        )
