"""Similar tokens S_m of a token: the old tokenizer's pieces of it, and the old tokens that contain it.

Source: Liu et al. (2021), section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import ahocorasick
import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.tokens import Kind, Tok
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary, are_compatible

Order = Literal["id", "shortest", "frequency"]
DEFAULT_CAP = 10
"""Most similar tokens of a token (the authors' code; the paper does not say)."""


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


@dataclass(frozen=True)
class SimilarTokens:
    """S_m of N tokens as a compressed sparse table.

    Attributes:
        indptr: Offset of each token's first member, int64, shape [N + 1].
        members: Ids in the old vocabulary, subwords first, int32, shape [P].
        relations: ``Relation`` of each member, int8, shape [P].
    """

    indptr: NDArray[np.int64]
    members: NDArray[np.int32]
    relations: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def of(self, index: int) -> list[tuple[int, Relation]]:
        """List the similar tokens of one of the N tokens: (old id, relation), subwords first."""
        span = slice(self.indptr[index], self.indptr[index + 1])
        return [
            (int(member), Relation(relation))
            for member, relation in zip(self.members[span], self.relations[span], strict=True)
        ]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of similar tokens of each token, shape [N]."""
        return np.diff(self.indptr)

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lay the table out as a rectangle for batched gathers.

        Returns:
            Members [N, W], padded with 0, and relations [N, W], padded with ``Relation.PAD``; W is the
            largest size, at least 1.
        """
        sizes = self.sizes
        width = max(1, int(sizes.max(initial=0)))
        members = np.zeros((len(self), width), dtype=np.int64)
        relations = np.full((len(self), width), int(Relation.PAD), dtype=np.int64)
        is_real = np.arange(width) < sizes[:, None]
        members[is_real] = self.members
        relations[is_real] = self.relations
        return members, relations


def similar_tokens(
    tokens: Sequence[Tok],
    old: Vocabulary,
    *,
    cap: int | None = DEFAULT_CAP,
    order: Order = "id",
    frequencies: Sequence[float] | None = None,
) -> SimilarTokens:
    """Find S_m(w) in ``old`` for every token w; a set may be empty.

    Subwords come from the old tokenizer's own segmentation, without w itself; special, unknown and byte
    pieces and the bare word mark do not count. Hyperwords are strictly longer normal tokens that contain w
    with compatible word boundaries. The sets do not depend on the order of ``tokens``.

    Args:
        tokens: The tokens w, in any vocabulary's canonical form.
        old: The vocabulary with embeddings.
        cap: Size limit of a set: all subwords, then hyperwords until the cap; None for no limit.
        order: Hyperwords to prefer under the cap: lowest id (a proxy of frequency in most vocabularies),
            shortest, or most frequent.
        frequencies: Count of each old token, for order ``frequency``.

    Raises:
        DataError: Order ``frequency`` without frequencies.
    """
    queries = [old.normalised(tok) for tok in tokens]
    subwords = [_subwords(tok, old) for tok in queries]
    room = [None if cap is None else max(0, cap - len(pieces)) for pieces in subwords]
    hyperwords = _hyperwords(queries, old, room, _visit_order(old, order, frequencies))
    sizes = [len(a) + len(b) for a, b in zip(subwords, hyperwords, strict=True)]
    flat = [pair for a, b in zip(subwords, hyperwords, strict=True) for pair in (*a, *b)]
    return SimilarTokens(
        indptr=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64),
        members=np.array([member for member, _ in flat], dtype=np.int32),
        relations=np.array([relation for _, relation in flat], dtype=np.int8),
    )


def _is_query(tok: Tok) -> bool:
    return tok.kind is Kind.NORMAL and bool(tok.core)


def _subwords(tok: Tok, old: Vocabulary) -> list[tuple[int, Relation]]:
    if not _is_query(tok):
        return []
    relations: dict[int, Relation] = {}
    for piece in old.segment(tok, is_whole_allowed=False):
        old_tok = old.tokens[piece.id]
        if old_tok is None or not _is_query(old_tok):
            continue
        relation = Relation.SUB_INFIX
        if piece.start == 0:
            relation = Relation.SUB_PREFIX
        elif piece.end == len(tok.core):
            relation = Relation.SUB_SUFFIX
        # A piece that occurs several times counts once, by its best position.
        relations[piece.id] = min(relation, relations.get(piece.id, relation))
    return list(relations.items())


def hyperword_relation(tok: Tok, longer: Tok) -> Relation | None:
    """Return the relation of a normalised token w to a longer old token w'.

    Of several occurrences with compatible word boundaries the best counts: prefix, then suffix, then infix.
    None when w' is not longer or no occurrence is compatible.
    """
    size, limit = len(tok.core), len(longer.core)
    if not size or size >= limit:
        return None
    best: Relation | None = None
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
    is_first = offset == 0
    is_last = offset + len(tok.core) == len(longer.core)
    return _is_side_compatible(tok.starts_word, is_first, longer.starts_word) and _is_side_compatible(
        tok.ends_word, is_last, longer.ends_word
    )


def _is_side_compatible(is_boundary: bool | None, is_at_edge: bool, is_longer_boundary: bool | None) -> bool:
    """Check one side: inside the longer token is no word boundary, at its edge is the token's own."""
    if not is_at_edge:
        return is_boundary is not True
    return are_compatible(is_boundary, is_longer_boundary)


def _visit_order(old: Vocabulary, order: Order, frequencies: Sequence[float] | None) -> list[int]:
    ids = [i for i, tok in enumerate(old.tokens) if tok is not None and _is_query(tok)]
    if order == "shortest":
        return sorted(ids, key=lambda i: (len(old.tokens[i].core), i))  # type: ignore[union-attr]
    if order == "frequency":
        if frequencies is None:
            raise DataError("similar tokens: order 'frequency' needs the frequency of every old token")
        return sorted(ids, key=lambda i: (-frequencies[i], i))
    return ids


def _hyperwords(
    queries: Sequence[Tok], old: Vocabulary, room: Sequence[int | None], visit: Sequence[int]
) -> list[list[tuple[int, Relation]]]:
    """Find the old tokens around each query, in the order of ``visit``, as many as there is room for."""
    hyperwords: list[list[tuple[int, Relation]]] = [[] for _ in queries]
    waiting: dict[str, list[int]] = {}
    for index, tok in enumerate(queries):
        if _is_query(tok) and room[index] != 0:
            waiting.setdefault(_latin(tok), []).append(index)
    automaton = ahocorasick.Automaton()
    for core in waiting:
        automaton.add_word(core, core)
    if not waiting:
        return hyperwords  # an automaton without words cannot search
    automaton.make_automaton()
    for identity in visit:
        longer = old.token(identity)
        # The automaton still knows cores that no query waits for any more.
        for core in {core for _, core in automaton.iter(_latin(longer)) if core in waiting}:
            for index in waiting[core]:
                relation = hyperword_relation(queries[index], longer)
                if relation is not None:
                    hyperwords[index].append((identity, relation))
            # short cores lie in most tokens, so drop queries whose cap is reached
            waiting[core] = [index for index in waiting[core] if len(hyperwords[index]) != room[index]]
            if not waiting[core]:
                del waiting[core]
    return hyperwords


def _latin(tok: Tok) -> str:
    """Read bytes as Latin-1, one character each: the automaton searches text, and a core may be no UTF-8."""
    return tok.core.decode("latin-1")
