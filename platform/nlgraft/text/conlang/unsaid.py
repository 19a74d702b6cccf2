"""Parts of a meaning that a source leaves unsaid, and what a reader of that source alone understands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from nlgraft.text.conlang.lexicon import Lexicon
from nlgraft.text.conlang.meaning import Clause, Entity, Sentence, Tense


def leave_out(meaning: Sentence, share: float, rng: random.Random) -> tuple[Sentence, Sentence]:
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


def understood(meaning: Sentence, language: Literal["first", "second"], lexicon: Lexicon) -> Sentence:
    """Replace what a source language does not mark by the likelier value.

    The first marks the number of animate nouns alone; the second neither definiteness nor future. Homonyms
    are understood rightly, so that translations made of the result bound what can be reached from above.
    """

    def entity(whole: Entity) -> Entity:
        if language == "first":
            is_plural = whole.is_plural and lexicon.lexemes[whole.noun].is_animate
            found = whole._replace(is_plural=is_plural)
        else:
            found = whole._replace(is_definite=True)
        return found._replace(owner=whole.owner and entity(whole.owner))

    def clause(whole: Clause) -> Clause:
        is_unmarked = language == "second" and whole.tense == Tense.FUTURE
        return whole._replace(
            subject=entity(whole.subject),
            object=whole.object and entity(whole.object),
            place=whole.place and entity(whole.place),
            tense=Tense.PRESENT if is_unmarked else whole.tense,
        )

    return meaning._replace(clauses=tuple(clause(each) for each in meaning.clauses))
