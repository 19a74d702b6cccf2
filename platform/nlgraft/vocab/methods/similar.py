"""Morphologically similar tokens S_m(w): the subwords of a token and the longer tokens that contain it.

Source: Liu et al. (2021), section 3.2. Three ways to find the containing tokens (the definition itself, a
dictionary of substrings, Aho-Corasick) give the same table; only their time differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nlgraft.errors import DataError, nearest
from nlgraft.vocab.tokenizers.tokens import Kind, Tok
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary, are_compatible

Order = Literal["id", "shortest", "frequency"]
Finder = Literal["auto", "naive", "substrings", "aho_corasick"]
FINDERS = ("auto", "naive", "substrings", "aho_corasick")
DEFAULT_CAP = 10
"""How many similar tokens a token has at most (the authors' code; the paper does not say)."""


class Relation(IntEnum):
    """How a similar token w' lies to the token w; rows of PATT's weight matrix."""

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
        indptr: Where each token's members begin, int64, shape [N + 1].
        members: Ids in the old vocabulary, subwords first, int32, shape [P].
        relations: ``Relation`` of each member, int8, shape [P].
    """

    indptr: NDArray[np.int64]
    members: NDArray[np.int32]
    relations: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def of(self, index: int) -> list[tuple[int, Relation]]:
        """List the similar tokens of one token.

        Args:
            index: Which of the N tokens.

        Returns:
            (id in the old vocabulary, relation), subwords first.
        """
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
    finder: Finder = "auto",
) -> SimilarTokens:
    """Find S_m(w) in ``old`` for every token w.

    Subwords come from the old tokenizer's own segmentation, without w itself; special, unknown and byte
    pieces and the bare word mark do not count. Hyperwords are strictly longer normal tokens that contain w
    with compatible word boundaries. Nothing here depends on the order of ``tokens`` or on the number of
    workers.

    Args:
        tokens: The tokens w, in any vocabulary's canonical form.
        old: The vocabulary with embeddings.
        cap: Most members of a set: all subwords, then hyperwords until the cap; None for all.
        order: Which hyperwords come first: lowest id (a proxy of frequency in most vocabularies), shortest,
            or most frequent.
        frequencies: Count of each old token, for order ``frequency``.
        finder: How hyperwords are found; ``auto`` takes Aho-Corasick when pyahocorasick is installed.

    Returns:
        One set per token, possibly empty.

    Raises:
        DataError: Unknown finder, or order ``frequency`` without frequencies.
    """
    queries = [old.normalised(tok) for tok in tokens]
    subwords = [_subwords(tok, old) for tok in queries]
    room = [None if cap is None else max(0, cap - len(pieces)) for pieces in subwords]
    hyperwords = _hyperwords(queries, old, room, _visit_order(old, order, frequencies), finder)
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
    found: dict[int, Relation] = {}
    for piece in old.segment(tok, is_whole_allowed=False):
        own = old.tokens[piece.id]
        if own is None or not _is_query(own):
            continue
        relation = Relation.SUB_INFIX
        if piece.start == 0:
            relation = Relation.SUB_PREFIX
        elif piece.end == len(tok.core):
            relation = Relation.SUB_SUFFIX
        found[piece.id] = min(relation, found.get(piece.id, relation))
    return list(found.items())


def hyperword_relation(tok: Tok, longer: Tok) -> Relation | None:
    """Say how a token lies inside a longer one.

    Args:
        tok: The token w, normalised.
        longer: A token w' of the old vocabulary.

    Returns:
        The relation of the best occurrence with compatible word boundaries (prefix, then suffix, then infix);
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


def _is_side_compatible(own: bool | None, is_at_edge: bool, others: bool | None) -> bool:
    """Check one side: inside the longer token is no word boundary, at its edge is the token's own."""
    if not is_at_edge:
        return own is not True
    return are_compatible(own, others)


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
    queries: Sequence[Tok], old: Vocabulary, room: Sequence[int | None], visit: Sequence[int], finder: Finder
) -> list[list[tuple[int, Relation]]]:
    found: list[list[tuple[int, Relation]]] = [[] for _ in queries]
    waiting: dict[bytes, list[int]] = {}
    for index, tok in enumerate(queries):
        if _is_query(tok) and room[index] != 0:
            waiting.setdefault(tok.core, []).append(index)
    contained = _containment(finder)(waiting)
    for identity in visit:
        longer = old.tokens[identity]
        assert longer is not None
        for core in contained(longer.core):
            if core not in waiting:
                continue
            for index in waiting[core]:
                relation = hyperword_relation(queries[index], longer)
                if relation is not None:
                    found[index].append((identity, relation))
            # short cores lie in most tokens: what has its cap is looked for no longer
            waiting[core] = [index for index in waiting[core] if len(found[index]) != room[index]]
            if not waiting[core]:
                del waiting[core]
    return found


Contained = Callable[[bytes], Iterable[bytes]]
"""Lists the query cores inside a core, each once; may list some that are no longer waited for."""


def _containment(finder: Finder) -> Callable[[Mapping[bytes, object]], Contained]:
    if finder not in FINDERS:
        raise DataError(f"similar tokens: no finder '{finder}'. {nearest(finder, FINDERS)}")
    if finder == "naive":
        return _by_definition
    if finder == "substrings":
        return _by_substrings
    try:
        ahocorasick = importlib.import_module("ahocorasick")
    except ImportError:
        if finder == "aho_corasick":
            raise DataError(
                "finder 'aho_corasick' needs `pip install pyahocorasick`; or use 'substrings'"
            ) from None
        return _by_substrings
    return lambda waiting: _by_automaton(ahocorasick, waiting)


def _by_definition(waiting: Mapping[bytes, object]) -> Contained:
    return lambda longer: [core for core in waiting if core in longer]


def _by_substrings(waiting: Mapping[bytes, object]) -> Contained:
    lengths = sorted({len(core) for core in waiting})

    def contained(longer: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for length in lengths:
            if length >= len(longer):
                break
            for start in range(len(longer) - length + 1):
                part = longer[start : start + length]
                if part in waiting:
                    found.add(part)
        return found

    return contained


def _by_automaton(ahocorasick: object, waiting: Mapping[bytes, object]) -> Contained:
    """Search all cores at once; bytes are read as Latin-1, which maps each byte to one character."""
    automaton = ahocorasick.Automaton()  # type: ignore[attr-defined]
    for core in waiting:
        automaton.add_word(core.decode("latin-1"), core)
    if not waiting:
        return lambda longer: ()
    automaton.make_automaton()

    def contained(longer: bytes) -> set[bytes]:
        hits: Iterator[tuple[int, bytes]] = automaton.iter(longer.decode("latin-1"))
        return {core for _, core in hits if core in waiting}

    return contained
