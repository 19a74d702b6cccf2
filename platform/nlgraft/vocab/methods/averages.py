"""Methods that need nothing but the two vocabularies: averages of similar tokens or of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nlgraft.vocab.methods.interface import Request, Rows
from nlgraft.vocab.methods.similar import Relation, Similar


def nothing(request: Request) -> Rows:
    """Leave every row to be drawn."""
    return Rows([{}] * len(request.missing), ["drawn"] * len(request.missing))


def same_ids(request: Request) -> Rows:
    """Give each token the old row with its id, whatever token that row is of; none where there is none."""
    has_token = [tok is not None for tok in request.old.tokens]
    weights: list[dict[int, float]] = [
        {identity: 1.0} if identity < len(has_token) and has_token[identity] else {}
        for identity in request.missing
    ]
    return Rows(
        weights, ["the old row with this id" if row else "no old token has this id" for row in weights]
    )


def weighted_rows(similar: Sequence[Similar], weights: Sequence[Mapping[int, float]]) -> Rows:
    """Turn weights (old id -> weight) of similar tokens into rows with reasons."""
    reasons = []
    for members in similar:
        num_subwords = sum(relation < Relation.HYP_PREFIX for _, relation in members)
        reasons.append(f"{num_subwords} subwords, {len(members) - num_subwords} hyperwords")
    return Rows(weights, reasons)


def average(request: Request) -> Rows:
    """Average the similar tokens (AVG-EG, Liu et al. 2021, eq. 1): every weight is 1/|S_m|."""
    similar = request.similar()
    return weighted_rows(similar, [{i: 1 / len(members) for i, _ in members} for members in similar])


def segmentation(request: Request, *, is_length_weighted: bool) -> Rows:
    """Average the pieces of the old tokenizer's segmentation of each token.

    With ``is_length_weighted`` a piece counts by its length in bytes.
    """
    weights: list[dict[int, float]] = []
    for tok in request.tokens:
        row: dict[int, float] = {}
        for piece in request.old.segment(tok):
            share = float(piece.end - piece.start) if is_length_weighted else 1.0
            row[piece.id] = row.get(piece.id, 0.0) + share
        total = sum(row.values())
        weights.append({identity: share / total for identity, share in row.items() if share > 0})
    return Rows(weights, [f"{len(row)} pieces of the old tokenizer" for row in weights])
