"""Faulty drafts of a translation, the input of post-editing."""

from __future__ import annotations

import random

from nlgraft.text.conlang.lexicon import Domain, Lexicon
from nlgraft.text.conlang.meaning import Clause, Entity, Sentence, Tense


def blunder(meaning: Sentence, lexicon: Lexicon, domain: Domain, rng: random.Random) -> Sentence:
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
        return entity._replace(owner=mistake(entity.owner)) if entity.owner else entity

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
