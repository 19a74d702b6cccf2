"""Rows from vectors that tokens get from text: used directly, or by the nearest tokens that have a row.

Shape letters: N tokens without a row, O tokens to choose from, K width of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nlgraft.vocab.methods.interface import Request, Rows, TokenVectors
from nlgraft.vocab.plans.transfer_plan import Array

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
        weights_NO = sparsemax(cosines_NO)
        weights.extend(
            {shared[o][1]: float(row[o]) for o in np.flatnonzero(row)} if vectors.is_known[i] else {}
            for i, row in zip(ids, weights_NO, strict=True)
        )
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
    rotation_KK = procrustes(new.vectors[[i for i, _ in pairs]], old.vectors[[o for _, o in pairs]])
    candidates = np.flatnonzero(old.is_known & request.old.is_normal)
    choice_OK = _unit_rows(old.vectors[candidates])
    turned = TokenVectors(new.vectors @ rotation_KK, new.counts, new.min_count)
    weights: list[dict[int, float]] = []
    for ids, cosines_NO in _cosines(request, turned, choice_OK):
        for i, row, columns in zip(ids, cosines_NO, largest(cosines_NO, NUM_NEIGHBOURS), strict=True):
            scores = np.exp((row[columns] - row[columns].max(initial=0.0)) / TEMPERATURE)
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
