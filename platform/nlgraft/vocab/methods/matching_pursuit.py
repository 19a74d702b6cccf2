"""Rows from a donor, a model that has the new tokens: sums of shared tokens' rows, weighted in its space.

Shape letters: N tokens without a row, S shared tokens, K width of the donor, T tokens in a sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nlgraft.vocab.methods.interface import Request, Rows
from nlgraft.vocab.plans.transfer_plan import Array

NUM_TERMS = 64
"""Shared tokens in a sum (tokensurgeon's default)."""
CHUNK_TOKENS = 64
"""Tokens approximated at once, to bound memory."""
_EXACT = 1e-6  # share of its norm that is left of a token which is approximated


def omp(request: Request) -> Rows:
    """Approximate the donor's row of each token by few shared tokens; the new row is that sum of old rows.

    Tokens that the donor lacks get no weights.

    Source: Goddard and Fernandes Neto (2025), Training-free tokenizer transplantation via orthogonal matching
    pursuit; as in mergekit's tokensurgeon, the next token is that of the largest inner product, not cosine.
    """
    donor = request.material.donor
    assert donor is not None, "checked where the plan is built"
    shared = [(new, old) for new, old in request.shared if donor.is_known[new]]
    atoms_SK = donor.vectors[[new for new, _ in shared]].astype(np.float32)
    missing = np.asarray(request.missing, dtype=np.int64)
    weights: list[dict[int, float]] = []
    for start in range(0, len(missing), CHUNK_TOKENS):
        ids = missing[start : start + CHUNK_TOKENS]
        chosen, values = matching_pursuit(donor.vectors[ids].astype(np.float32), atoms_SK, NUM_TERMS)
        for i, places, row in zip(ids, chosen, values, strict=True):
            pairs = zip(places, row.tolist(), strict=True)
            weights.append({shared[p][1]: w for p, w in pairs if w} if donor.is_known[i] else {})
    return Rows(weights, [f"{len(row)} shared tokens in the donor's space" for row in weights])


def matching_pursuit(
    targets_NK: Array, atoms_SK: Array, num_terms: int
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
    values = [
        np.linalg.lstsq(atoms_SK[places].T.astype(np.float64), target.astype(np.float64), rcond=None)[0]
        for places, target in zip(chosen, targets_NK, strict=True)
    ]
    return chosen, values
