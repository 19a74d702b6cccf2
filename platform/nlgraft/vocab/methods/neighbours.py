"""Rows from vectors that tokens have in a text or in a donor: used directly, or by tokens that have a row.

Shape letters: N tokens without a row, O tokens to choose from, K width of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nlgraft.vocab.methods.interface import Request, Rows, TokenVectors
from nlgraft.vocab.transfer_plan import Array

CHUNK_TOKENS = 512
"""Tokens compared at once with all others, to bound memory."""
NUM_NEIGHBOURS = 10
TEMPERATURE = 0.1
"""WECHSEL's number of neighbours and softmax temperature (Minixhofer et al. 2022, section 3)."""


def take_vectors(request: Request) -> Rows:
    """Use the vectors of the text themselves as rows, without alignment.

    Rows of tokens that the text lacks are NaN, which means drawn.
    """
    vectors = _required(request.material.new_vectors)
    missing = np.asarray(request.missing, dtype=np.int64)
    dense = vectors.vectors[missing].astype(np.float32)
    # NaN marks tokens without a vector; the plan then draws their rows.
    dense[~vectors.is_known[missing]] = np.nan
    return Rows([{}] * len(missing), ["vector of the downstream text"] * len(missing), dense)


def focus(request: Request) -> Rows:
    """Weight the shared tokens by distributional similarity: sparsemax over cosines.

    Tokens that the text lacks get no weights.

    Source: Dobler and de Melo (2023), section 3.2.
    """
    vectors = _required(request.material.new_vectors)
    shared = [(new, old) for new, old in request.shared if vectors.is_known[new]]
    choice_OK = _unit_rows(vectors.vectors[[new for new, _ in shared]])
    weights: list[dict[int, float]] = []
    for ids, cosines_NO in _cosines(request, vectors, choice_OK):
        for i, row in zip(ids, sparsemax(cosines_NO), strict=True):
            places = np.flatnonzero(row) if vectors.is_known[i] else ()
            weights.append({shared[o][1]: float(row[o]) for o in places})
    return Rows(weights, [f"{len(row)} distributionally similar tokens" for row in weights])


def wechsel(request: Request) -> Rows:
    """Weight the nearest old tokens in a space into which the new vectors are rotated.

    The rotation is the best one for the shared tokens (orthogonal Procrustes). Weights are the softmax of
    cosine / 0.1 over ten old tokens; tokens that the text lacks get none.

    Source: Minixhofer et al. (2022), section 3. Differs: vectors from our own text and tokens, not fastText's
    of whole words, so the dictionary is the shared tokens.
    """
    new, old = _required(request.material.new_vectors), _required(request.material.old_vectors)
    pairs = [(i, o) for i, o in request.shared if new.is_known[i] and old.is_known[o]]
    # Both spaces were learned separately, so their axes have nothing in common before the rotation.
    new_rows, old_rows = [i for i, _ in pairs], [o for _, o in pairs]
    rotation_KK = procrustes(new.vectors[new_rows], old.vectors[old_rows])
    candidates = np.flatnonzero(old.is_known & request.old.is_normal)
    choice_OK = _unit_rows(old.vectors[candidates])
    turned = TokenVectors(new.vectors @ rotation_KK, new.counts, new.min_count)
    weights: list[dict[int, float]] = []
    for ids, cosines_NO in _cosines(request, turned, choice_OK):
        for i, row, columns in zip(ids, cosines_NO, largest(cosines_NO, NUM_NEIGHBOURS), strict=True):
            cosines = row[columns]
            scores = np.exp((cosines - cosines.max(initial=0.0)) / TEMPERATURE)
            # Without candidates there is nothing to divide.
            shares = scores / max(scores.sum(), np.finfo(np.float32).tiny)
            pairs_of_row = zip(candidates[columns].tolist(), shares.tolist(), strict=True)
            weights.append(dict(pairs_of_row) if new.is_known[i] else {})
    return Rows(weights, [f"{len(row)} nearest tokens of the aligned space" for row in weights])


def largest(scores_NO: Array, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield for each row the places of its largest scores, in descending order; of equal ones the first."""
    place = max(0, scores_NO.shape[1] - count)
    # A partition takes a tenth of the time of sorting whole rows.
    edges_N = np.partition(scores_NO, place, axis=1)[:, place] if scores_NO.size else scores_NO[:, :1]
    for row, edge in zip(scores_NO, edges_N, strict=True):
        columns = np.flatnonzero(row >= edge)
        yield columns[np.argsort(-row[columns], kind="stable")][:count]


def sparsemax(scores_NO: Array) -> Array:
    """Project each row of scores onto the simplex: a softmax with mostly zero weights.

    Source: Martins and Astudillo (2016), Algorithm 1.
    """
    if scores_NO.shape[1] == 0:
        return scores_NO
    ordered = -np.sort(-scores_NO, axis=1)
    sums = np.cumsum(ordered, axis=1)
    ranks = np.arange(1, scores_NO.shape[1] + 1)
    # The size of the support, the k of Algorithm 1.
    size = (1 + ranks * ordered > sums).sum(axis=1, keepdims=True)
    threshold = (np.take_along_axis(sums, size - 1, axis=1) - 1) / size
    return np.maximum(scores_NO - threshold, 0)


def procrustes(source_PK: Array, target_PK: Array) -> Array:
    """Find the orthogonal matrix R [K, K] that minimises the distance of ``source @ R`` and ``target``.

    Source: Schönemann (1966).
    """
    # Unit rows, so that frequent tokens with long vectors do not dominate the rotation.
    u, _, vt = np.linalg.svd(_unit_rows(source_PK).T @ _unit_rows(target_PK))
    return (u @ vt).astype(np.float32)


def _required(vectors: TokenVectors | None) -> TokenVectors:
    assert vectors is not None, "checked where the plan is built"
    return vectors


def _unit_rows(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0).astype(np.float32)


def _cosines(
    request: Request, vectors: TokenVectors, choice_OK: Array
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    missing = np.asarray(request.missing, dtype=np.int64)
    for start in range(0, len(missing), CHUNK_TOKENS):
        ids = missing[start : start + CHUNK_TOKENS]
        yield ids, _unit_rows(vectors.vectors[ids]) @ choice_OK.T


# Rows from a donor, a model that has the new tokens: sums of shared tokens that fit in its space.
#
# Shape letters: S shared tokens, K width of the donor, T tokens in a sum.


NUM_TERMS = 64
"""Shared tokens in a sum (tokensurgeon's default)."""
APPROXIMATED_TOKENS = 64
"""Tokens approximated at once, to bound memory."""
_EXACT = 1e-6  # share of its norm that is left of a token which is approximated


def omp(request: Request) -> Rows:
    """Approximate the donor's row of each token by few shared tokens; the new row is that sum of old rows.

    Tokens that the donor lacks get no weights.

    Source: Goddard and Fernandes Neto (2025), Training-free tokenizer transplantation via orthogonal matching
    pursuit; as in mergekit's tokensurgeon, the next token is that of the largest inner product, not cosine.
    """
    donor = _required(request.material.donor)
    shared = [(new, old) for new, old in request.shared if donor.is_known[new]]
    atoms_SK = donor.vectors[[new for new, _ in shared]].astype(np.float32)
    missing = np.asarray(request.missing, dtype=np.int64)
    weights: list[dict[int, float]] = []
    for start in range(0, len(missing), APPROXIMATED_TOKENS):
        ids = missing[start : start + APPROXIMATED_TOKENS]
        chosen, values = matching_pursuit(donor.vectors[ids].astype(np.float32), atoms_SK, NUM_TERMS)
        for i, places, row in zip(ids, chosen, values, strict=True):
            pairs = zip(places, row.tolist(), strict=True)
            near = {shared[p][1]: w for p, w in pairs if w}
            weights.append(near if donor.is_known[i] else {})
    return Rows(weights, [f"{len(row)} shared tokens in the donor's space" for row in weights])


def matching_pursuit(
    targets_NK: Array,
    atoms_SK: Array,
    num_terms: int,
) -> tuple[list[NDArray[np.int64]], list[Array]]:
    """Approximate each target by a least-squares sum of atoms that are chosen one by one.

    Args:
        targets_NK: What is approximated.
        atoms_SK: What it is approximated by.
        num_terms: Largest number of atoms in a sum, T.

    Returns:
        For each target the atoms' numbers and their coefficients, [T] or fewer where fewer are exact.

    Source: Pati, Rezaiifar and Krishnaprasad (1993).
    """
    num_terms = min(num_terms, *atoms_SK.shape)
    rest_NK = targets_NK.copy()
    basis_NTK = np.zeros((len(targets_NK), num_terms, targets_NK.shape[1]), dtype=np.float32)
    chosen_NT = np.zeros((len(targets_NK), num_terms), dtype=np.int64)
    rows = np.arange(len(targets_NK))
    enough = _EXACT * np.linalg.norm(targets_NK, axis=1)
    lengths = np.zeros(len(targets_NK), dtype=np.int64)
    for term in range(num_terms):
        lengths += np.linalg.norm(rest_NK, axis=1) > enough
        products_NS = np.abs(rest_NK @ atoms_SK.T)
        products_NS[rows[:, None], chosen_NT[:, :term]] = -1.0
        chosen_NT[:, term] = products_NS.argmax(1)
        direction_NK = atoms_SK[chosen_NT[:, term]]
        for _ in range(2):  # twice, since rounding leaves a part of earlier directions
            earlier_NT = np.einsum("ntk,nk->nt", basis_NTK[:, :term], direction_NK)
            direction_NK = direction_NK - np.einsum("nt,ntk->nk", earlier_NT, basis_NTK[:, :term])
        norms = np.linalg.norm(direction_NK, axis=1, keepdims=True)
        unit_NK = np.divide(direction_NK, norms, out=np.zeros_like(direction_NK), where=norms > 0)
        basis_NTK[:, term] = unit_NK
        rest_NK -= np.einsum("nk,nk->n", unit_NK, rest_NK)[:, None] * unit_NK
    chosen = [places[:length] for places, length in zip(chosen_NT, lengths, strict=True)]
    values = []
    for places, target in zip(chosen, targets_NK, strict=True):
        atoms_KT = atoms_SK[places].T.astype(np.float64)
        values.append(np.linalg.lstsq(atoms_KT, target.astype(np.float64), rcond=None)[0])
    return chosen, values
