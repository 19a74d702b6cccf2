"""Methods that fill the rows of a new vocabulary: each makes a ``TransferPlan`` from two vocabularies.

Whatever the method, rows of tokens that both vocabularies have are copied and special tokens are matched by
role; the method decides about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_matrix

from nlgraft.errors import DataError, nearest
from nlgraft.vocab.plan import Array, Noise, NormMatch, Provenance, TransferPlan
from nlgraft.vocab.similar import DEFAULT_CAP, Order, SimilarTokens, similar_tokens
from nlgraft.vocab.tokens import Kind, Tok
from nlgraft.vocab.vocabulary import SUBSTITUTE_ROLES, Vocabulary


@dataclass(frozen=True)
class Request:
    """What a method is asked: rows for these tokens.

    Attributes:
        old: The vocabulary with embeddings.
        new: The vocabulary that gets them.
        missing: New ids that no exact copy serves.
        cap: Most similar tokens of a token; None for all.
        order: Which containing tokens come first under the cap.
        frequencies: Count of each old token, for order ``frequency``.
    """

    old: Vocabulary
    new: Vocabulary
    missing: Sequence[int]
    cap: int | None = DEFAULT_CAP
    order: Order = "id"
    frequencies: Sequence[float] | None = None

    @property
    def tokens(self) -> list[Tok]:
        """The missing tokens as the old tokenizer would see their text."""
        return [self.old.normalised(_token(self.new, identity)) for identity in self.missing]

    def similar(self) -> SimilarTokens:
        """S_m of the missing tokens."""
        return similar_tokens(
            self.tokens, self.old, cap=self.cap, order=self.order, frequencies=self.frequencies
        )


@dataclass(frozen=True)
class Rows:
    """What a method answers for the missing tokens, in their order.

    Attributes:
        weights: Old id -> weight; empty when the method has nothing to say.
        reasons: In words.
        dense: Vectors from outside the old matrix, shape [len(missing), d]; None for methods that combine
            rows.
    """

    weights: Sequence[Mapping[int, float]]
    reasons: Sequence[str]
    dense: Array | None = None


Producer = Callable[[Request], Rows]


@dataclass(frozen=True)
class Method:
    """One published way to fill missing rows.

    Attributes:
        name: How studies and the command line call it.
        produce: Answers a request.
        source: Where it is published.
        noise: How rows are drawn for which the method has nothing to say.
        has_fallback: Whether such rows first try the other boundary variant, then the token's characters.
        has_copies: Whether tokens of both vocabularies keep their old rows.
    """

    name: str
    produce: Producer
    source: str
    noise: Noise = field(default_factory=Noise)
    has_fallback: bool = True
    has_copies: bool = True


def _token(vocabulary: Vocabulary, identity: int) -> Tok:
    tok = vocabulary.tokens[identity]
    assert tok is not None
    return tok


def _nothing(request: Request) -> Rows:
    return Rows([{}] * len(request.missing), ["drawn"] * len(request.missing))


def average_rows(table: SimilarTokens) -> Rows:
    """Weigh all similar tokens equally (AVG-EG, Liu et al. 2021, eq. 1).

    Args:
        table: S_m of the missing tokens.

    Returns:
        Weights 1/|S_m|.
    """
    weights = [{member: 1 / len(table.of(i)) for member, _ in table.of(i)} for i in range(len(table))]
    return weighted_rows(table, weights)


def weighted_rows(table: SimilarTokens, weights: Sequence[Mapping[int, float]]) -> Rows:
    """Give a weighting of similar tokens its reasons.

    Args:
        table: S_m of the missing tokens.
        weights: Old id -> weight of each.

    Returns:
        The rows.
    """
    reasons = []
    for index in range(len(table)):
        relations = [relation for _, relation in table.of(index)]
        num_subwords = sum(relation < 3 for relation in relations)
        reasons.append(f"{num_subwords} subwords, {len(relations) - num_subwords} hyperwords")
    return Rows(weights, reasons)


def _average(request: Request) -> Rows:
    return average_rows(request.similar())


def _segmentation(request: Request, is_length_weighted: bool) -> Rows:
    weights: list[dict[int, float]] = []
    for tok in request.tokens:
        row: dict[int, float] = {}
        for piece in request.old.segment(tok):
            share = float(piece.end - piece.start) if is_length_weighted else 1.0
            row[piece.id] = row.get(piece.id, 0.0) + share
        total = sum(row.values())
        weights.append({identity: share / total for identity, share in row.items() if share > 0})
    return Rows(weights, [f"{len(row)} pieces of the old tokenizer" for row in weights])


METHODS: tuple[Method, ...] = (
    Method(
        name="random",
        produce=_nothing,
        source="Aji et al. (2020): seen rows copied, unseen rows as a new model's",
        noise=Noise(center="zero", spread="fixed", scale=0.02),
        has_fallback=False,
    ),
    Method(
        name="mean",
        produce=_nothing,
        source="mean of all old rows",
        noise=Noise(center="mean", spread="none"),
        has_fallback=False,
    ),
    Method(
        name="hewitt",
        produce=_nothing,
        source="Hewitt (2021), Initializing new word embeddings: N(mean, 1e-9 covariance)",
        noise=Noise(center="mean", spread="covariance", scale=1e-9),
        has_fallback=False,
    ),
    Method(name="avg", produce=_average, source="Liu et al. (2021), eq. 1"),
    Method(
        name="fvt",
        produce=lambda request: _segmentation(request, is_length_weighted=False),
        source="Gee et al. (2022), Fast Vocabulary Transfer: mean of the old tokenizer's pieces",
    ),
    Method(
        name="wvt",
        produce=lambda request: _segmentation(request, is_length_weighted=True),
        source="Gee et al. (2022), pieces weighted by length",
    ),
)
"""Every method that needs nothing but the two vocabularies, in the order of the ablation ladder."""


def find_method(name: str, methods: Sequence[Method] = METHODS) -> Method:
    """Look a method up.

    Args:
        name: Its name.
        methods: Where to look.

    Returns:
        The method.

    Raises:
        DataError: There is none of that name; the nearest is named.
    """
    for method in methods:
        if method.name == name:
            return method
    raise DataError(f"no transfer method '{name}'. {nearest(name, [m.name for m in methods])}")


def build_plan(
    old: Vocabulary,
    new: Vocabulary,
    method: Method | str = "avg",
    *,
    cap: int | None = DEFAULT_CAP,
    order: Order = "id",
    frequencies: Sequence[float] | None = None,
    noise_std: float | None = None,
    norm_match: NormMatch = "none",
    seed: int = 0,
) -> TransferPlan:
    """Plan the rows of a new vocabulary.

    Args:
        old: The vocabulary with embeddings.
        new: The vocabulary that gets them.
        method: A method or the name of one.
        cap: Most similar tokens of a token; None for all.
        order: Which containing tokens come first under the cap.
        frequencies: Count of each old token, for order ``frequency``.
        noise_std: Standard deviation of a new model's embeddings, for methods that draw with a fixed one.
        norm_match: Whether new rows are scaled to the median norm of old rows.
        seed: Of the rows that are drawn.

    Returns:
        The plan; every row is filled, and says why.

    Raises:
        DataError: Unknown method.
    """
    method = find_method(method) if isinstance(method, str) else method
    draft = _Draft(old, new)
    draft.match(method.has_copies)
    request = Request(old, new, draft.missing, cap, order, frequencies)
    draft.fill(method.produce(request), request, method)
    noise = replace(method.noise, seed=seed)
    if noise_std is not None and noise.spread == "fixed":
        noise = replace(noise, scale=noise_std)
    return draft.plan(noise, norm_match, method.name)


class _Draft:
    """A plan under construction: one entry per new id."""

    def __init__(self, old: Vocabulary, new: Vocabulary) -> None:
        self.old = old
        self.new = new
        self.weights: list[Mapping[int, float]] = [{}] * len(new)
        self.provenance = np.full(len(new), int(Provenance.NOISE), dtype=np.int8)
        self.reasons = ["drawn"] * len(new)
        self.missing: list[int] = []
        self.dense_rows: list[int] = []
        self.dense: Array | None = None

    def put(self, row: int, kind: Provenance, weights: Mapping[int, float], reason: str) -> None:
        self.weights[row] = weights
        self.provenance[row] = int(kind)
        self.reasons[row] = reason

    def match(self, has_copies: bool) -> None:
        """Settle gaps, special tokens and exact copies; the rest is ``missing``."""
        for row, tok in enumerate(self.new.tokens):
            if tok is None:
                self.put(row, Provenance.GAP, {}, "no token has this id")
            elif tok.kind is Kind.SPECIAL:
                self._match_special(row)
            elif tok.kind is Kind.UNUSED:
                self.put(row, Provenance.NOISE, {}, "reserved, never produced")
            else:
                self._match_text(row, tok, has_copies)

    def _match_special(self, row: int) -> None:
        roles = [role for role, identity in self.new.roles.items() if identity == row]
        for role in roles:
            for candidate in (role, SUBSTITUTE_ROLES.get(role, role)):
                if candidate in self.old.roles:
                    reason = f"role {role}" if candidate == role else f"role {role} served by {candidate}"
                    return self.put(row, Provenance.SPECIAL, {self.old.roles[candidate]: 1.0}, reason)
        identity = self.old.ids_by_surface.get(self.new.surfaces[row])
        if identity is not None:
            return self.put(row, Provenance.SPECIAL, {identity: 1.0}, "same special token")
        return self.put(row, Provenance.NOISE, {}, "special token without a counterpart")

    def _match_text(self, row: int, tok: Tok, has_copies: bool) -> None:
        normalised = self.old.normalised(tok)
        identity = self.old.find(normalised) if has_copies else None
        if identity is None:
            self.missing.append(row)
            return
        reason = "same token" if normalised == tok else f"same token once normalised to '{normalised.text}'"
        self.put(row, Provenance.COPY, {identity: 1.0}, reason)

    def fill(self, rows: Rows, request: Request, method: Method) -> None:
        """Take the method's answer, and the fallbacks where it has none."""
        for index, (row, tok) in enumerate(zip(self.missing, request.tokens, strict=True)):
            if rows.dense is not None and np.isfinite(rows.dense[index]).all():
                self.dense_rows.append(row)
                self.put(row, Provenance.DENSE, {}, rows.reasons[index])
            elif rows.weights[index]:
                self.put(row, Provenance.COMPOSED, rows.weights[index], rows.reasons[index])
            elif method.has_fallback:
                self._fall_back(row, tok)
            else:
                self.put(row, Provenance.NOISE, {}, rows.reasons[index])
        if self.dense_rows and rows.dense is not None:
            is_taken = np.isin(self.missing, self.dense_rows)
            self.dense = np.asarray(rows.dense[is_taken], dtype=np.float32)

    def _fall_back(self, row: int, tok: Tok) -> None:
        if variants := self.old.boundary_variants(tok):
            weights = {identity: 1 / len(variants) for identity in variants}
            return self.put(row, Provenance.BOUNDARY, weights, "nothing similar; same text, other boundary")
        if characters := self.old.characters(tok):
            weights = dict.fromkeys(characters, 0.0)
            for identity in characters:
                weights[identity] += 1 / len(characters)
            return self.put(row, Provenance.CHARACTERS, weights, "nothing similar; its characters")
        return self.put(row, Provenance.NOISE, {}, "nothing similar and no known character")

    def plan(self, noise: Noise, norm_match: NormMatch, name: str) -> TransferPlan:
        counts = [len(row) for row in self.weights]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        columns = np.array([column for row in self.weights for column in row], dtype=np.int64)
        values = np.array([value for row in self.weights for value in row.values()], dtype=np.float32)
        return TransferPlan(
            matrix=csr_matrix((values, columns, indptr), shape=(len(self.new), len(self.old))),
            provenance=self.provenance,
            reasons=tuple(self.reasons),
            old_surfaces=self.old.surfaces,
            new_surfaces=self.new.surfaces,
            is_real=self.old.is_normal,
            noise=noise,
            dense_rows=np.array(self.dense_rows, dtype=np.int64),
            dense=self.dense,
            norm_match=norm_match,
            method=name,
        )
