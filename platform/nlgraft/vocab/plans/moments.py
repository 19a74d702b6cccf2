"""Mean, spread and norms of the rows of a large matrix, computed without copying it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 8192
"""Rows processed at once, to bound memory."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Moments:
    """Mean and spread of rows.

    Attributes:
        mean: Mean of each column, float32, shape [d].
        std: Standard deviation of each column, float32, shape [d].
        covariance: Covariance of the columns, float64, shape [d, d]; None unless requested.
    """

    mean: Array
    std: Array
    covariance: NDArray[np.float64] | None


def moments(rows: Array, is_real: NDArray[np.bool_], *, has_covariance: bool = False) -> Moments:
    """Compute mean and spread of the rows [R, d] under the mask ``is_real`` [R], in double precision."""
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
    """Compute the norms of rows [R, d]: float32, shape [R]."""
    norms = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS].astype(np.float32)
        norms[start : start + CHUNK_ROWS] = np.linalg.norm(part, axis=1)
    return norms


def _chunks(rows: Array, is_real: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        span = slice(start, start + CHUNK_ROWS)
        yield rows[span][is_real[span]].astype(np.float64)
