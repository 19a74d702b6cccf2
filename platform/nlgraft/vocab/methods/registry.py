"""All methods by name, one entry for each published way to fill new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from nlgraft.basics.errors import DataError, nearest
from nlgraft.vocab.methods.interface import Method, Request, Rows, shares
from nlgraft.vocab.methods.neighbours import focus, omp, take_vectors, wechsel
from nlgraft.vocab.methods.partitions import one_partition, shuffled, vipi
from nlgraft.vocab.methods.reconstruction import reconstruct
from nlgraft.vocab.methods.similar import Relation, Similar
from nlgraft.vocab.transfer_plan import Noise

# Methods that need nothing but the two vocabularies: averages of similar tokens or of pieces.


def nothing(request: Request) -> Rows:
    """Leave every row to be drawn."""
    return Rows([{}] * len(request.missing), ["drawn"] * len(request.missing))


def same_ids(request: Request) -> Rows:
    """Give each token the old row with its id, whatever token that row is of; none where there is none."""
    has_token = [tok is not None for tok in request.old.tokens]
    weights = [
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
    return weighted_rows(similar, [shares([i for i, _ in members]) for members in similar])


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


_MOSIN = "Mosin et al. (2021), VIPI"
_NEW_MODEL = Noise(center="zero", spread="fixed", scale=0.02)
"""Rows as a new model's."""
_drawn = partial(Method, noise=_NEW_MODEL, has_fallback=False)
"""A method that leaves rows for which it has no answer as a new model has them."""
METHODS: tuple[Method, ...] = (
    _drawn(
        name="random",
        produce=nothing,
        source="Aji et al. (2020): seen rows copied, unseen rows as a new model's",
    ),
    _drawn(
        name="all_random",
        produce=nothing,
        source=f"{_MOSIN}: all rows of text as a new model's",
        has_copies=False,
    ),
    _drawn(
        name="same_ids",
        produce=same_ids,
        source="control: the old table read with the new ids, as where a model is given a foreign tokenizer",
        has_copies=False,
    ),
    Method(
        name="mean",
        produce=nothing,
        source="mean of all old rows",
        noise=Noise(center="mean", spread="none"),
        has_fallback=False,
    ),
    Method(
        name="hewitt",
        produce=nothing,
        source="Hewitt (2021), Initializing new word embeddings: N(mean, 1e-9 covariance)",
        noise=Noise(center="mean", spread="covariance", scale=1e-9),
        has_fallback=False,
    ),
    Method(name="avg", produce=average, source="Liu et al. (2021), eq. 1", has_similar_tokens=True),
    Method(
        name="fvt",
        produce=lambda request: segmentation(request, is_length_weighted=False),
        source="Gee et al. (2022), Fast Vocabulary Transfer: mean of the old tokenizer's pieces",
    ),
    Method(
        name="wvt",
        produce=lambda request: segmentation(request, is_length_weighted=True),
        source="Gee et al. (2022), pieces weighted by length",
    ),
    _drawn(
        name="vipi",
        produce=vipi,
        source=f"{_MOSIN}: mean over the partitions into the fewest old tokens, longest token first",
    ),
    _drawn(
        name="vipi_count",
        produce=lambda request: vipi(request, ties="count"),
        source=f"{_MOSIN}, as the released code: all partitions into the fewest old tokens",
    ),
    _drawn(
        name="vipi_one",
        produce=one_partition,
        source=f"{_MOSIN}: one of the partitions at random",
    ),
    _drawn(
        name="vipi_shuffled",
        produce=shuffled,
        source=f"{_MOSIN}: random old tokens, as many as VIPI's partitions have",
    ),
    Method(
        name="reconstruction",
        produce=reconstruct,
        source="Zhao et al. (2018): sums of character n-gram vectors fitted to the old rows",
        needs_old_rows=True,
    ),
    Method(
        name="word2vec",
        produce=take_vectors,
        source="Mikolov et al. (2013), a baseline of Liu et al. (2021): unseen rows are skip-gram vectors",
        has_fallback=False,
        vectors="skipgram",
        has_vector_rows=True,
    ),
    Method(
        name="cbow",
        produce=take_vectors,
        source="Sato et al. (2020): all rows of text replaced by CBOW vectors of the downstream text",
        has_fallback=False,
        has_copies=False,
        vectors="cbow",
        has_vector_rows=True,
    ),
    Method(
        name="focus",
        produce=focus,
        source="Dobler and de Melo (2023), FOCUS: sparsemax over similar shared tokens",
        has_fallback=False,
        vectors="skipgram",
    ),
    Method(
        name="wechsel",
        produce=wechsel,
        source="Minixhofer et al. (2022), WECHSEL: ten nearest old tokens in an aligned space",
        has_fallback=False,
        has_copies=False,
        vectors="skipgram",
        needs_old_vectors=True,
    ),
    Method(
        name="omp",
        produce=omp,
        source="Goddard and Fernandes Neto (2025): sums of shared tokens that fit best in a donor's space",
        needs_donor=True,
    ),
)
"""Those that need nothing but the two vocabularies come first."""


def find_method(name: str) -> Method:
    """Look a method up by name.

    Raises:
        DataError: There is none of that name; the nearest is named.
    """
    for method in METHODS:
        if method.name == name:
            return method
    raise DataError(f"no transfer method '{name}'. {nearest(name, [m.name for m in METHODS])}")
