"""Similar tokens S_m of a token: the old tokenizer's pieces of it, and the old tokens that contain it.

Source: Liu et al. (2021), section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice

from nlgraft.basics.wording import grouped
from nlgraft.vocab.tokenizers.vocabulary import Kind, Tok, Vocabulary, are_compatible

DEFAULT_CAP = 10
"""Most similar tokens of a token (the authors' code; the paper does not say)."""
GRAM_BYTES = (3, 4)
"""Lengths of the indexed strings; a shorter text is looked for in all tokens."""


class Relation(IntEnum):
    """Position of a similar token w' relative to the token w; rows of PATT's weight matrix."""

    SUB_PREFIX = 0
    """w' is the first piece of w."""
    SUB_SUFFIX = 1
    """w' is the last piece of w."""
    SUB_INFIX = 2
    """w' is an inner piece of w."""
    HYP_PREFIX = 3
    """w' begins with w."""
    HYP_SUFFIX = 4
    """w' ends with w."""
    HYP_INFIX = 5
    """w lies inside w'."""
    PAD = 6
    """No token: fills a padded row."""


NUM_RELATIONS = 6
Similar = Sequence[tuple[int, Relation]]
"""S_m of a token: ids in the old vocabulary with their relations, subwords first."""


class SimilarTokens:
    """Finds S_m of any token in a vocabulary; a set may be empty.

    Subwords come from the old tokenizer's own segmentation, without the token itself; special, unknown and
    byte pieces and the bare word mark do not count. Hyperwords are strictly longer normal tokens that contain
    it with compatible word boundaries, those with the lowest ids first (in most vocabularies the most
    frequent ones).
    """

    def __init__(self, old: Vocabulary, cap: int | None = DEFAULT_CAP) -> None:
        """Index a vocabulary.

        Args:
            old: The vocabulary with embeddings.
            cap: Size limit of a set: all subwords, then hyperwords until the cap; None for no limit.
        """
        self._old = old
        self._cap = cap
        tokens = [(i, tok) for i, tok in enumerate(old.tokens) if tok is not None]
        self._texts = {i: tok.core for i, tok in tokens if _is_query(tok)}
        # Ids by the short strings in their text: a longer text is contained in few of them.
        self._holders = grouped(
            (gram, identity)
            for identity, text in self._texts.items()
            for length in GRAM_BYTES
            for gram in _grams(text, length)
        )

    def of(self, tok: Tok) -> Similar:
        """Find S_m of a token in any vocabulary's canonical form."""
        tok = self._old.normalised(tok)
        if not _is_query(tok):
            return []
        subwords = self._subwords(tok)
        room = None if self._cap is None else max(0, self._cap - len(subwords))
        return [*subwords, *islice(self._hyperwords(tok), room)]

    def _subwords(self, tok: Tok) -> Similar:
        relations: dict[int, Relation] = {}
        for piece in self._old.segment(tok, is_whole_allowed=False):
            if piece.id not in self._texts:
                continue
            relation = Relation.SUB_INFIX
            if piece.start == 0:
                relation = Relation.SUB_PREFIX
            elif piece.end == len(tok.core):
                relation = Relation.SUB_SUFFIX
            # A piece that occurs several times counts once, by its best position.
            relations[piece.id] = min(relation, relations.get(piece.id, relation))
        return list(relations.items())

    def _hyperwords(self, tok: Tok) -> Iterator[tuple[int, Relation]]:
        length = min(len(tok.core), GRAM_BYTES[-1])
        grams = _grams(tok.core, length) if length in GRAM_BYTES else ()
        holders = [self._holders.get(gram, []) for gram in grams]
        for identity in min(holders, key=len) if holders else self._texts:
            if tok.core in self._texts[identity]:
                relation = hyperword_relation(tok, self._old.token(identity))
                if relation is not None:
                    yield identity, relation


def _grams(text: bytes, length: int) -> set[bytes]:
    return {text[start : start + length] for start in range(len(text) - length + 1)}


def _is_query(tok: Tok) -> bool:
    return tok.kind is Kind.NORMAL and bool(tok.core)


def hyperword_relation(tok: Tok, longer: Tok) -> Relation | None:
    """Return the relation of a normalised token w to a longer old token w'.

    Of several occurrences with compatible word boundaries the best counts: prefix, then suffix, then infix.
    None when w' is not longer or no occurrence is compatible.
    """
    size, limit = len(tok.core), len(longer.core)
    if not size or size >= limit:
        return None
    best = None
    offset = longer.core.find(tok.core)
    while offset >= 0:
        if _is_boundary_compatible(tok, longer, offset):
            if offset == 0:
                return Relation.HYP_PREFIX
            relation = Relation.HYP_SUFFIX if offset + size == limit else Relation.HYP_INFIX
            best = relation if best is None else min(best, relation)
        offset = longer.core.find(tok.core, offset + 1)
    return best


def _is_boundary_compatible(tok: Tok, longer: Tok, offset: int) -> bool:
    # Inside the longer token is no word boundary, at its edges are the token's own.
    starts = longer.starts_word if offset == 0 else False
    ends = longer.ends_word if offset + len(tok.core) == len(longer.core) else False
    return are_compatible(tok.starts_word, starts) and are_compatible(tok.ends_word, ends)
