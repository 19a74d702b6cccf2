"""Expression of meanings in each of the three languages.

The first source language has articles and no case; it does not mark the number of inanimate nouns. The second
has case and no articles; it distinguishes neither future from present nor definite from indefinite. Each has
a few homonyms that the other keeps apart. The target language marks all of this, verb first, with nouns of
three genders that adjectives, articles and auxiliaries agree with.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from nlgraft.text.conlang.lexicon import (
    COMPOUND,
    DERIVATIONS,
    NUM_GENDERS,
    NUM_LINKS,
    NUM_RELATIONS,
    Clause,
    Entity,
    Lexeme,
    Lexicon,
    Sentence,
    Tense,
)

# Phonology of the family: proto-forms, sound changes of the daughter languages, joining of morphemes.


_CONSONANTS = "ptkbdgmnslrvzhj"
_VOWELS = "aeiou"
_HIATUS = frozenset(_VOWELS)
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


def draw_form(rng: random.Random, *shapes: str) -> str:
    """Draw a root, an affix or a function word of one of some shapes such as ``VC``."""
    sounds = {"C": _CONSONANTS, "V": _VOWELS}
    return "".join(rng.choice(sounds[place]) for place in rng.choice(shapes))


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
        changed |= {first: second, second: first}
        return SoundChange(str.maketrans(changed), rng.choice("wyq"))

    def apply(self, form: str) -> str:
        """Turn a proto-form into the form of the daughter language."""
        return form.translate(self.table)

    def join(self, *parts: str) -> str:
        """Join the parts of a word, with a glide between two vowels."""
        word = ""
        for part in parts:
            is_hiatus = word[-1:] in _HIATUS and part[:1] in _HIATUS
            word += self.glide + part if is_hiatus else part
        return word


Slot = Literal["subject", "object", "place"]
Case = Literal["subject", "object", "place", "owner"]


@dataclass(frozen=True)
class Typology:
    """Grammatical features of a language.

    Attributes:
        order: Order of the parts of a clause.
        has_adjective_first: Adjectives precede their noun.
        has_relation_first: Prepositions, not postpositions.
        has_articles: Definite and indefinite are words.
        has_auxiliary: Tense, with agreement, is a word before the verb, not a suffix of it.
        has_all_plurals: Plurals are marked on all nouns, not on animate ones alone.
        has_future: Future differs from present.
        has_case: Nouns carry their role.
        has_agreement: Adjectives, articles and auxiliaries carry gender and number.
        has_verbal_negation: Negation is a suffix of the verb, not a word before it.
        has_modifier_first: Compounds end in their head.
        num_homonyms: Pairs of noun roots that sound alike.
        new_roots: Share of roots that do not come from the proto-language.
    """

    order: tuple[str, ...]
    has_adjective_first: bool
    has_relation_first: bool
    has_articles: bool = False
    has_auxiliary: bool = False
    has_all_plurals: bool = True
    has_future: bool = True
    has_case: bool = False
    has_agreement: bool = False
    has_verbal_negation: bool = False
    has_modifier_first: bool = True
    num_homonyms: int = 0
    new_roots: float = 0.4


TYPOLOGIES = {
    "first": Typology(
        order=("subject", "verb", "object", "place", "adverb"),
        has_adjective_first=True,
        has_relation_first=True,
        has_articles=True,
        has_all_plurals=False,
        num_homonyms=6,
    ),
    "second": Typology(
        order=("adverb", "subject", "place", "object", "verb"),
        has_adjective_first=False,
        has_relation_first=False,
        has_future=False,
        has_case=True,
        has_verbal_negation=True,
        num_homonyms=6,
    ),
    "target": Typology(
        order=("verb", "subject", "object", "adverb", "place"),
        has_adjective_first=False,
        has_relation_first=True,
        has_articles=True,
        has_auxiliary=True,
        has_case=True,
        has_agreement=True,
        has_modifier_first=False,
        new_roots=0.5,
    ),
}


class Language:
    """One language: the shapes of its words and its grammar."""

    def __init__(
        self,
        lexicon: Lexicon,
        protos: list[str],
        kind: Typology,
        rng: random.Random,
    ) -> None:
        """Draw the shapes of a language; ``protos`` holds the proto-form of every lexeme, used for roots."""
        self.kind = kind
        self._lexemes = lexicon.lexemes
        self._sounds = SoundChange.draw(rng)
        self._used: set[str] = set()
        self._affixes = self._draw_affixes(rng)
        self._is_prefix = {name: rng.random() < 0.2 for name in DERIVATIONS} | {
            "opposite": True,
            "again": True,
        }
        self._words = {name: self._fresh(rng, "CV", "CVC", "VC") for name in _function_words()}
        self._link = rng.choice(_VOWELS)
        self.stems = self._draw_stems(lexicon, protos, rng)
        # Sentences repeat most words and short phrases, and drawing a corpus is mostly expressing them.
        self._join = cache(self._sounds.join)

    def _fresh(self, rng: random.Random, *shapes: str) -> str:
        while True:
            form = draw_form(rng, *shapes)
            if form not in self._used:
                self._used.add(form)
                return form

    def _draw_affixes(self, rng: random.Random) -> dict[str, str]:
        affixes = {name: self._fresh(rng, "VC", "CVC", "VCV") for name in DERIVATIONS}
        genders = range(NUM_GENDERS) if self.kind.has_agreement else range(1)
        for gender in genders:
            affixes[f"plural {gender}"] = self._fresh(rng, "VC")
            affixes[f"singular {gender}"] = self._fresh(rng, "V") if self.kind.has_agreement else ""
            for number in ("singular", "plural"):
                affixes[f"verb {gender} {number}"] = self._fresh(rng, "VC") if self.kind.has_agreement else ""
        for tense in Tense:
            affixes[f"tense {tense}"] = self._fresh(rng, "VC", "V")
        if not self.kind.has_future:
            affixes[f"tense {Tense.FUTURE}"] = affixes[f"tense {Tense.PRESENT}"]
        for case in ("object", "place", "owner"):
            affixes[f"case {case}"] = self._fresh(rng, "CV", "VC") if self.kind.has_case else ""
        affixes["case subject"] = ""
        affixes["not"] = self._fresh(rng, "CVC") if self.kind.has_verbal_negation else ""
        return affixes

    def _draw_stems(
        self,
        lexicon: Lexicon,
        protos: list[str],
        rng: random.Random,
    ) -> list[str]:
        stems = []
        for lexeme, proto in zip(lexicon.lexemes, protos, strict=True):
            if lexeme.derivation is not None:
                stems.append("")
                continue
            form = (
                draw_form(rng, *_SHAPES) if rng.random() < self.kind.new_roots else self._sounds.apply(proto)
            )
            # Homonyms are made on purpose, below; none may arise by chance.
            while form in self._used:
                form = draw_form(rng, *_SHAPES)
            self._used.add(form)
            stems.append(form)
        common, own_a, _ = lexicon.roots["noun"]
        confused = rng.sample(common[5:] + own_a[5:], 2 * self.kind.num_homonyms)
        for first, second in zip(confused[::2], confused[1::2], strict=True):
            stems[second] = stems[first]
        for lexeme in lexicon.lexemes:  # parts come before what is built from them
            if lexeme.derivation is not None:
                stems[lexeme.id] = self._built(lexeme, stems)
        return stems

    def _built(self, lexeme: Lexeme, stems: list[str]) -> str:
        if lexeme.derivation == COMPOUND:
            modifier, head = (stems[part] for part in lexeme.parts)
            first, last = (modifier, head) if self.kind.has_modifier_first else (head, modifier)
            is_consonant = first[-1] not in _VOWELS
            return self._sounds.join(first, *[self._link] * is_consonant, last)
        name = lexeme.derivation or ""
        stem, affix = stems[lexeme.parts[0]], self._affixes[name]
        if self._is_prefix[name]:
            return self._sounds.join(affix, stem)
        return self._sounds.join(stem, affix)

    def say(self, sentence: Sentence, queried: Slot | None = None) -> str:
        """Express a meaning as a line with a final stop or question mark.

        With ``queried``, ask for this part of the first clause: a question word leads and the part is left
        out.
        """
        words = [self._words["stress"]] if sentence.is_stressed else []
        if queried is not None:
            words.append(self._question_word(sentence.clauses[0], queried))
        for number, clause in enumerate(sentence.clauses):
            if number and sentence.link is not None:
                words.append(self._words[f"link {sentence.link}"])
            words += self._clause(clause, queried if number == 0 else None)
        return " ".join(words) + ("." if queried is None else "?")

    def name(self, entity: Entity) -> str:
        """Express an entity as a phrase in subject role, without stop, as an answer does."""
        return " ".join(self._phrase(entity, "subject"))

    def _question_word(self, clause: Clause, queried: Slot) -> str:
        if queried == "place":
            return self._words[f"where {clause.relation}"]
        entity = clause.subject if queried == "subject" else clause.object
        is_animate = entity is not None and self._lexemes[entity.noun].is_animate
        return self._words[f"{'who' if is_animate else 'what'} {queried}"]

    def _clause(self, clause: Clause, queried: Slot | None) -> list[str]:
        words = []
        for part in self.kind.order:
            if part == queried:
                continue
            if part == "subject":
                words += self._phrase(clause.subject, "subject")
            elif part == "object" and clause.object is not None:
                words += self._phrase(clause.object, "object")
            elif part == "verb":
                if clause.is_negated and not self.kind.has_verbal_negation:
                    words.append(self._words["not"])
                words += self._verb(clause)
            elif part == "adverb" and clause.adverb is not None:
                words.append(self.stems[clause.adverb])
            elif part == "place" and clause.place is not None:
                relation = self._words[f"relation {clause.relation}"]
                phrase = self._phrase(clause.place, "place")
                words += [relation, *phrase] if self.kind.has_relation_first else [*phrase, relation]
        return words

    def _verb(self, clause: Clause) -> list[str]:
        gender, number = self._agreement(clause.subject)
        tense, agreement = self._affixes[f"tense {clause.tense}"], self._affixes[f"verb {gender} {number}"]
        stem = self.stems[clause.verb]
        negation = self._affixes["not"] if clause.is_negated else ""
        if self.kind.has_auxiliary:
            auxiliary = self._join(self._words["auxiliary"], tense, agreement)
            return [auxiliary, self._join(stem, negation)]
        return [self._join(stem, tense, agreement, negation)]

    def _agreement(self, entity: Entity) -> tuple[int, str]:
        gender = self._lexemes[entity.noun].gender if self.kind.has_agreement else 0
        return gender, "plural" if entity.is_plural else "singular"

    def _phrase(self, entity: Entity, case: Case) -> list[str]:
        gender, number = self._agreement(entity)
        case_ending = self._affixes[f"case {case}"]
        if entity.is_pronoun:
            return [self._join(self._words[f"pronoun {gender} {number}"], case_ending)]
        agreement = self._affixes[f"{number} {gender}"] if self.kind.has_agreement else ""
        is_marked = self.kind.has_all_plurals or self._lexemes[entity.noun].is_animate
        noun_number = self._affixes[f"{number if is_marked else 'singular'} {gender}"]
        words = [self._join(self.stems[entity.noun], noun_number, case_ending)]
        adjectives = [self._join(self.stems[word], agreement) for word in entity.adjectives]
        words = [*reversed(adjectives), *words] if self.kind.has_adjective_first else words + adjectives
        if self.kind.has_articles:
            article = self._words["definite" if entity.is_definite else "indefinite"]
            words.insert(0, self._join(article, agreement))
        if entity.owner is not None:
            owner = self._phrase(entity.owner, "owner")
            words += owner if self.kind.has_case else [self._words["of"], *owner]
        return words


def _function_words() -> list[str]:
    words = ["not", "of", "definite", "indefinite", "stress", "auxiliary"]
    words += [f"link {number}" for number in range(NUM_LINKS)]
    words += [f"{word} {number}" for word in ("relation", "where") for number in range(NUM_RELATIONS)]
    words += [f"{word} {slot}" for word in ("who", "what") for slot in ("subject", "object")]
    return words + [f"pronoun {g} {n}" for g in range(NUM_GENDERS) for n in ("singular", "plural")]


@dataclass(frozen=True)
class Family:
    """A language family.

    Attributes:
        lexicon: The words as meanings.
        languages: ``first``, ``second`` and ``target``.
    """

    lexicon: Lexicon
    languages: dict[str, Language]


@lru_cache(maxsize=4)
def family(seed: int) -> Family:
    """Draw a language family.

    **Determinism**: the same seed gives the same family in every process.
    """
    # Seeds are strings, which Python hashes alike in every process.
    lexicon = Lexicon(random.Random(f"conlang {seed} lexicon"))
    rng = random.Random(f"conlang {seed} proto-language")
    protos = [draw_form(rng, *_SHAPES) for _ in lexicon.lexemes]
    return Family(
        lexicon,
        {
            name: Language(lexicon, protos, kind, random.Random(f"conlang {seed} {name}"))
            for name, kind in TYPOLOGIES.items()
        },
    )
