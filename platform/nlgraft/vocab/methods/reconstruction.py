"""Rows from character n-grams: n-gram vectors that reproduce the old rows, summed for the new ones.

Source: Zhao, Mudgal and Liang (2018), Generalizing word embeddings using bag of subwords, with n-grams of 3
to 6 characters. Differs: the least-squares problem is solved by conjugate gradients until convergence, not by
SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from nlgraft.vocab.methods.interface import Request, Rows
from nlgraft.vocab.tokenizers.vocabulary import Tok
from nlgraft.vocab.transfer_plan import Array

SHORTEST, LONGEST = 3, 6
RIDGE = 1e-3
"""Weight of the n-gram vectors' squared norm; most n-grams occur once, so the problem is underdetermined."""
MAX_ITERATIONS = 100
TOLERANCE = 1e-5


def character_ngrams(tok: Tok) -> list[str]:
    """List all runs of 3 to 6 characters of ``<core>``; the whole when it is shorter.

    ``<`` and ``>`` stand only where a word begins or ends.
    """
    try:
        text = tok.core.decode()
    except UnicodeDecodeError:
        # Half a character of a byte-level tokenizer has no text; Latin-1 gives one character per byte.
        text = tok.core.decode("latin-1")
    text = f"{'<' if tok.starts_word else ''}{text}{'>' if tok.ends_word else ''}"
    if len(text) < SHORTEST:
        return [text]
    return [
        text[start : start + size]
        for size in range(SHORTEST, min(LONGEST, len(text)) + 1)
        for start in range(len(text) - size + 1)
    ]


def reconstruct(request: Request) -> Rows:
    """Fit n-gram vectors to the old rows and add them up for the new tokens.

    Rows of tokens without a known n-gram are NaN, which asks for the fallback.
    """
    old_rows = request.material.old_rows
    assert old_rows is not None, "checked where the plan is built"
    real = np.flatnonzero(request.old.is_normal)
    ngrams = [character_ngrams(request.old.token(int(i))) for i in real]
    distinct = dict.fromkeys(ngram for row in ngrams for ngram in row)
    index = {ngram: column for column, ngram in enumerate(distinct)}
    bags = _bags(ngrams, index)
    rows = np.asarray(old_rows[real], dtype=np.float32)
    # n-grams explain the differences between rows, so the common mean is taken out
    mean = rows.mean(axis=0)
    vectors = _solve(bags, rows - mean)
    new_ngrams = [[g for g in character_ngrams(tok) if g in index] for tok in request.tokens]
    dense = np.asarray(_bags(new_ngrams, index) @ vectors, dtype=np.float32) + mean
    dense[[not row for row in new_ngrams]] = np.nan
    reasons = [f"{len(row)} character n-grams" for row in new_ngrams]
    return Rows([{}] * len(new_ngrams), reasons, dense)


def _bags(ngrams: Sequence[Sequence[str]], index: Mapping[str, int]) -> csr_matrix:
    """Mean of n-grams as a sparse matrix, [tokens, n-grams]."""
    sizes = [*map(len, ngrams)]
    indptr = np.cumsum([0, *sizes])
    columns = np.array([index[ngram] for row in ngrams for ngram in row], dtype=np.int64)
    shares = np.repeat([1 / max(1, size) for size in sizes], sizes)
    shape = (len(ngrams), len(index))
    return csr_matrix((shares.astype(np.float32), columns, indptr), shape=shape)


def _solve(bags: csr_matrix, rows: Array) -> Array:
    """Minimise |bags @ X - rows|^2 + RIDGE |X|^2 by conjugate gradients, each column of X separately."""
    # The normal equations, without forming the [n-grams, n-grams] matrix.
    residual = np.asarray(bags.T @ rows)
    solution = np.zeros_like(residual)
    direction = residual.copy()
    squared = (residual**2).sum(axis=0)
    enough = TOLERANCE**2 * squared
    for _ in range(MAX_ITERATIONS):
        # Columns converge at different times; converged ones are left as they are.
        is_active = squared > enough
        if not is_active.any():
            break
        product = np.asarray(bags.T @ (bags @ direction)) + RIDGE * direction
        curvature = (direction * product).sum(axis=0)
        step = np.divide(squared, curvature, out=np.zeros_like(squared), where=is_active & (curvature > 0))
        solution += step * direction
        residual -= step * product
        before, squared = squared, (residual**2).sum(axis=0)
        ratio = np.divide(squared, before, out=np.zeros_like(squared), where=is_active & (before > 0))
        direction = residual + ratio * direction
    return solution
