"""Mean, spread and norms of the rows of a large matrix, without a second copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 8192
"""Rows looked at together: bounds memory, changes no result."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Moments:
    """Mean and spread of some rows of a matrix.

    Attributes:
        mean: Of each column, float32, shape [d].
        std: Of each column, float32, shape [d].
        covariance: Between columns, float64, shape [d, d]; None unless asked for.
    """

    mean: Array
    std: Array
    covariance: NDArray[np.float64] | None


def moments(rows: Array, is_real: NDArray[np.bool_], *, has_covariance: bool = False) -> Moments:
    """Take mean and spread in double precision without a second copy of the matrix.

    Args:
        rows: Shape [R, d].
        is_real: Which rows count, shape [R].
        has_covariance: Whether the covariance is wanted, too.

    Returns:
        Mean, standard deviation and covariance of the rows that count.
    """
    width = rows.shape[1]
    total, squares = np.zeros(width), np.zeros(width)
    products = np.zeros((width, width)) if has_covariance else None
    count = max(1, int(is_real.sum()))
    for part in _chunks(rows, is_real):
        total += part.sum(axis=0)
    mean = total / count
    for part in _chunks(rows, is_real):
        part -= mean
        squares += (part**2).sum(axis=0)
        if products is not None:
            products += part.T @ part
    covariance = None if products is None else products / max(1, count - 1)
    return Moments(mean.astype(np.float32), np.sqrt(squares / count).astype(np.float32), covariance)


def row_norms(rows: NDArray[np.floating]) -> Array:
    """Take the norm of each row without a second copy of the matrix.

    Args:
        rows: Shape [R, d].

    Returns:
        Norms, float32, shape [R].
    """
    norms = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS].astype(np.float32)
        norms[start : start + CHUNK_ROWS] = np.linalg.norm(part, axis=1)
    return norms


def _chunks(rows: Array, is_real: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        span = slice(start, start + CHUNK_ROWS)
        yield rows[span][is_real[span]].astype(np.float64)
