"""Mean, spread and norms of the rows of a large matrix, computed without copying it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS, CHUNK_NUMBERS = 2**13, 2**22
"""Rows processed at once, and numbers in them, to bound memory."""

Array = NDArray[np.float32]


class Rows(Protocol):
    """Rows [R, d]: an array, or rows in another precision whose parts are read as arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """R and d."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> NDArray[np.floating]: ...


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


def moments(rows: Rows, is_real: NDArray[np.bool_], *, has_covariance: bool = False) -> Moments:
    """Compute mean and spread of the rows under the mask ``is_real``, in double precision.

    Rows beyond the mask are not read.
    """
    width = rows.shape[1]
    total, squares = np.zeros(width), np.zeros(width)
    products = np.zeros((width, width)) if has_covariance else None
    count = max(1, int(is_real.sum()))
    for part in _chunks(rows, is_real):
        total += part.sum(axis=0)
    mean = total / count
    for part in _chunks(rows, is_real):
        # A second pass: squares minus the squared mean would cancel digits.
        part -= mean
        squares += (part**2).sum(axis=0)
        if products is not None:
            products += part.T @ part
    covariance = None if products is None else products / max(1, count - 1)
    return Moments(mean.astype(np.float32), np.sqrt(squares / count).astype(np.float32), covariance)


def row_norms(rows: Rows) -> Array:
    """Compute the norms of rows [R, d]: float32, shape [R]."""
    norms = np.empty(len(rows), dtype=np.float32)
    size = _chunk_rows(rows)
    for start in range(0, len(rows), size):
        part = rows[start : start + size].astype(np.float32)
        norms[start : start + size] = np.linalg.norm(part, axis=1)
    return norms


def _chunk_rows(rows: Rows) -> int:
    return min(CHUNK_ROWS, max(1, CHUNK_NUMBERS // rows.shape[1]))


def _chunks(rows: Rows, is_real: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
    size = _chunk_rows(rows)
    for start in range(0, len(is_real), size):
        mask = is_real[start : start + size]
        yield rows[start : start + len(mask)][mask].astype(np.float64)
