"""Transfer plans: the origin of every row of a new embedding matrix.

A plan is a sparse matrix from old rows to new rows, with the provenance and the reason of each new row. It
needs the two vocabularies only, and applies alike to input embeddings, output embeddings and output bias,
tied or untied, on one side of a model or on both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, refuse_special

FORMAT_VERSION = 1
GAP_BIAS = -1e4
"""Output bias of a row without a token: no probability in a softmax, finite in half precision."""
PART_BYTES = 2**25
"""Memory for the rows of a part, and for the old rows of which they are made."""


class Provenance(IntEnum):
    """Origin of a new row."""

    COPY = 0
    """The old row of the same token."""
    SPECIAL = 1
    """The old row of the special token with the same role."""
    COMPOSED = 2
    """A weighted sum of old rows that the method chose."""
    BOUNDARY = 3
    """The old row of the same text with another word boundary, for want of similar tokens."""
    CHARACTERS = 4
    """The mean of the old rows of its characters, for want of similar tokens."""
    NOISE = 5
    """Drawn at random."""
    DENSE = 6
    """A vector from outside the old matrix."""
    GAP = 7
    """No token has this id."""


@dataclass(frozen=True)
class Noise:
    """Distribution of rows without any old row.

    Attributes:
        center: The origin or the mean of the old rows.
        spread: No noise; a fixed standard deviation; that of each column of the old rows; or their
            covariance.
        scale: The standard deviation (fixed), or a factor on it (column) or on the covariance.
        seed: Every row has its own random stream, so rows are distinct and do not depend on their order.
    """

    center: Literal["zero", "mean"] = "mean"
    spread: Literal["none", "fixed", "column", "covariance"] = "column"
    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Origin of each row of a new vocabulary.

    Attributes:
        matrix: Weights, shape [V_new, V_old]; rows that are drawn, dense or gaps are empty.
        provenance: ``Provenance`` of each row, int8, shape [V_new].
        reasons: Reason of each row, in words.
        old_surfaces: Old tokens in their tokenizer's notation.
        new_surfaces: New tokens likewise.
        is_real: Mask of the old rows that belong to text and count in means, bool, shape [V_old].
        noise: Distribution of NOISE rows.
        dense: Vectors of the M DENSE rows, float32, shape [M, d]; None where there are none.
        method: Name of the method that made the plan.
        old_roles: Role -> old id of the special tokens, for the ids in a model's configuration.
        new_roles: Role -> new id.
    """

    matrix: csr_matrix
    provenance: NDArray[np.int8]
    reasons: tuple[str, ...]
    old_surfaces: tuple[str, ...]
    new_surfaces: tuple[str, ...]
    is_real: NDArray[np.bool_]
    noise: Noise = field(default_factory=Noise)
    dense: Array | None = None
    method: str = "plan"
    old_roles: Mapping[str, int] = field(default_factory=dict)
    new_roles: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.new_surfaces)

    def rows(self, *kinds: Provenance) -> NDArray[np.int64]:
        """List the ids of the rows of some provenances, ascending."""
        is_of_kind = np.isin(self.provenance, [*map(int, kinds)])
        return np.flatnonzero(is_of_kind).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """Count the rows by provenance (lower case); only those that occur."""
        numbers = {kind.name.lower(): len(self.rows(kind)) for kind in Provenance}
        return {name: number for name, number in numbers.items() if number}

    def apply(self, old: Rows, *, stream: int = 0) -> Array:
        """Compute the new rows from the old ones, accumulating in single precision.

        Args:
            old: Old rows, shape [R, d]; rows beyond the old vocabulary (padding) are never read.
            stream: Another number gives other noise: for the second of two untied matrices.

        Returns:
            New rows, float32, shape [V_new, d].

        Raises:
            DataError: The matrix has fewer rows than the old vocabulary has ids, or DENSE rows have another
                width.
        """
        new = np.empty((len(self), old.shape[1]), dtype=np.float32)
        for start, rows in self.parts(old, stream=stream):
            new[start : start + len(rows)] = rows
        return new

    def parts(self, old: Rows, *, stream: int = 0) -> Iterator[tuple[int, Array]]:
        """Compute the new rows as ``apply`` does, in parts of bounded size: id of the first row, and rows."""
        self._check_old(old)
        width = old.shape[1]
        if self.dense is not None and self.dense.shape[1] != width:
            raise DataError(
                f"plan '{self.method}': its vectors have {self.dense.shape[1]} dimensions, the matrix "
                f"has {width}; train the auxiliary vectors with the width of the model"
            )
        gap = moments(old, self.is_real).mean if len(self.rows(Provenance.GAP)) else None
        draw = self._drawing(old, stream) if len(self.rows(Provenance.NOISE)) else None
        size = max(1, PART_BYTES // (4 * width))
        for start in range(0, len(self), size):
            kinds = self.provenance[start : start + size]
            rows = self._sums(old, start, len(kinds))
            if self.dense is not None:
                first, end = np.searchsorted(self.rows(Provenance.DENSE), [start, start + size])
                rows[kinds == Provenance.DENSE] = self.dense[first:end]
            if gap is not None:
                rows[kinds == Provenance.GAP] = gap
            if draw is not None:
                for index in np.flatnonzero(kinds == Provenance.NOISE).tolist():
                    rows[index] = draw(start + index)
            yield start, rows

    def _sums(
        self,
        old: Rows,
        start: int,
        count: int,
    ) -> Array:
        """Compute weighted sums of old rows for ``count`` new rows."""
        part = self.matrix[start : start + count]
        # Only the old rows that this part reads are converted to single precision.
        used, places = np.unique(part.indices, return_inverse=True)
        weights = csr_matrix((part.data, places, part.indptr), shape=(count, len(used)))
        width = old.shape[1]
        rows = np.empty((count, width), dtype=np.float32)
        step = max(1, PART_BYTES // (4 * max(1, len(used))))
        for first in range(0, width, step):
            columns = slice(first, first + step)
            rows[:, columns] = weights @ np.asarray(old[used, columns], dtype=np.float32)
        return rows

    def apply_bias(self, old: NDArray[np.floating]) -> Array:
        """Compute the new output bias [V_new] from the old one [R] with the same weights, float32.

        Drawn and dense rows get the mean, gaps ``GAP_BIAS``.

        Raises:
            DataError: The bias has fewer entries than the old vocabulary has ids.
        """
        self._check_old(old)
        rows = np.asarray(old[: len(self.old_surfaces)], dtype=np.float32)
        new = np.asarray(self.matrix @ rows, dtype=np.float32)
        # These rows have no weights, which would give a bias of 0 however large the others are.
        new[self.rows(Provenance.NOISE, Provenance.DENSE)] = rows[self.is_real].mean()
        new[self.rows(Provenance.GAP)] = GAP_BIAS
        return new

    def _check_old(self, old: Rows) -> None:
        if len(old) < len(self.old_surfaces):
            raise DataError(
                f"plan '{self.method}': the matrix has {len(old)} rows, but token "
                f"'{self.old_surfaces[len(old)]}' of the old tokenizer has id {len(old)}; "
                "give the tokenizer that belongs to this model"
            )

    def _drawing(self, old: Rows, stream: int) -> Callable[[int], Array]:
        """Return the function that draws the row of an id."""
        noise, width = self.noise, old.shape[1]
        needs_moments = noise.center == "mean" or noise.spread in ("column", "covariance")
        real = (
            moments(old, self.is_real, has_covariance=noise.spread == "covariance") if needs_moments else None
        )
        center = real.mean if real is not None and noise.center == "mean" else np.zeros(width, np.float32)
        factor = _spread(noise, width, real)
        # Up to 64 matrices of one seed draw different noise.
        key = np.uint64(noise.seed * 64 + stream)

        def draw(row: int) -> Array:
            # Philox is counter-based: a generator for every row costs nothing and depends on the row alone.
            row_key = np.array([key, row], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=row_key))
            sample = generator.standard_normal(width).astype(np.float32)
            spread: Array = sample @ factor if factor.ndim == 2 else sample * factor
            return center + spread

        return draw

    def save(self, directory: str | Path) -> None:
        """Write ``plan.safetensors`` and ``plan.json``; the directory is created if missing."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        # Few distinct reasons for many rows: they are stored once and numbered.
        reasons = sorted(set(self.reasons))
        index = {reason: i for i, reason in enumerate(reasons)}
        tensors: dict[str, NDArray] = {
            "indptr": self.matrix.indptr.astype(np.int64),
            "indices": self.matrix.indices.astype(np.int64),
            "weights": self.matrix.data.astype(np.float32),
            "provenance": self.provenance,
            "reasons": np.array([index[reason] for reason in self.reasons], dtype=np.int32),
            "is_real": self.is_real,
            "dense_rows": self.rows(Provenance.DENSE),
        }
        if self.dense is not None:
            tensors["dense"] = self.dense
        save_file(tensors, directory / "plan.safetensors")
        document = {
            "format": FORMAT_VERSION,
            "method": self.method,
            "noise": asdict(self.noise),
            "counts": self.counts(),
            "reasons": reasons,
            "old": list(self.old_surfaces),
            "new": list(self.new_surfaces),
            "old_roles": dict(self.old_roles),
            "new_roles": dict(self.new_roles),
        }
        (directory / "plan.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> TransferPlan:
        """Read a plan that ``save`` wrote.

        Raises:
            DataError: There is no plan, or one of another format.
        """
        directory = Path(directory)
        if not (directory / "plan.json").is_file():
            raise DataError(f"{directory}: no plan here (plan.json and plan.safetensors)")
        try:
            document = read_json(directory / "plan.json")
            refuse_special(directory / "plan.safetensors")
            tensors = load_file(directory / "plan.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise DataError(f"{directory}: the plan cannot be read ({error}); make it again") from error
        if document.get("format") != FORMAT_VERSION:
            raise DataError(
                f"{directory}: plan format {document.get('format')}, this version reads {FORMAT_VERSION}"
            )
        if document.get("norm_match", "none") != "none":
            raise DataError(f"{directory}: the plan scales rows, as version 0.1 could; make it again")
        shape = (len(document["new"]), len(document["old"]))
        return cls(
            matrix=csr_matrix((tensors["weights"], tensors["indices"], tensors["indptr"]), shape=shape),
            provenance=tensors["provenance"],
            reasons=tuple(document["reasons"][i] for i in tensors["reasons"]),
            old_surfaces=tuple(document["old"]),
            new_surfaces=tuple(document["new"]),
            is_real=tensors["is_real"],
            noise=Noise(**document["noise"]),
            dense=tensors.get("dense"),
            method=document["method"],
            old_roles=document["old_roles"],
            new_roles=document["new_roles"],
        )

    def describe(self, row: int) -> str:
        """Describe a row in one line: token, provenance, reason, and the old tokens with their weights."""
        span = slice(self.matrix.indptr[row], self.matrix.indptr[row + 1])
        parts = " + ".join(
            f"{weight:.3g} {self.old_surfaces[column]}"
            for column, weight in zip(self.matrix.indices[span], self.matrix.data[span], strict=True)
        )
        kind = Provenance(self.provenance[row]).name.lower()
        return f"{self.new_surfaces[row]}: {kind} ({self.reasons[row]}){' = ' + parts if parts else ''}"


def _spread(
    noise: Noise,
    width: int,
    real: Moments | None,
) -> Array:
    """Return the factor of standard normal samples: one per column, or a matrix for a covariance."""
    if noise.spread == "none":
        return np.zeros(width, dtype=np.float32)
    if noise.spread == "fixed":
        return np.full(width, noise.scale, dtype=np.float32)
    assert real is not None, "computed where the noise needs it"
    if real.covariance is None:
        return (noise.scale * real.std).astype(np.float32)
    values, vectors = np.linalg.eigh(real.covariance)
    # Rounding may make small eigenvalues negative.
    root = np.sqrt(noise.scale * np.clip(values, 0, None))
    return (root[:, None] * vectors.T).astype(np.float32)


# Mean, spread and norms of the rows of a large matrix, computed without copying it.


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


def moments(
    rows: Rows,
    is_real: NDArray[np.bool_],
    *,
    has_covariance: bool = False,
) -> Moments:
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
    std = np.sqrt(squares / count)
    return Moments(mean.astype(np.float32), std.astype(np.float32), covariance)


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


# Row norms before and after a transfer, since averaging shrinks rows.


@dataclass(frozen=True)
class NormReport:
    """Row norms of a new matrix beside the old one.

    Attributes:
        old_median: Median norm of the old rows of text.
        medians: Median norm of the new rows by provenance.
        outside: Number of new rows with a norm outside 0.3 to 1.5 times the old median, by provenance.
        num_zero: Rows that are all zero.
        num_not_finite: Rows with NaN or infinity.
    """

    old_median: float
    medians: Mapping[str, float]
    outside: Mapping[str, int]
    num_zero: int
    num_not_finite: int

    @property
    def summary(self) -> str:
        """Old and new medians in one line."""
        medians = ", ".join(f"{kind} {norm:.3g}" for kind, norm in self.medians.items())
        return f"median row norms: old {self.old_median:.3g}; new: {medians}"

    @property
    def warnings(self) -> list[str]:
        """Remarks on unusual norms; averages shrink norms (two orthogonal unit rows: 0.707)."""
        messages = [
            f"{count} {kind} rows have norms outside 0.3-1.5 times the old median {self.old_median:.3g}"
            for kind, count in self.outside.items()
            if count
        ]
        if self.num_zero:
            messages.append(f"{self.num_zero} rows are all zero")
        if self.num_not_finite:
            messages.append(f"{self.num_not_finite} rows hold NaN or infinity")
        return messages


def norm_report(plan: TransferPlan, old: Rows, new: Rows) -> NormReport:
    """Compare the norms of old and new rows of a plan that was applied; padding beyond them is left out."""
    old_norms = row_norms(old)[: len(plan.old_surfaces)][plan.is_real]
    norms = row_norms(new)[: len(plan)]
    median = float(np.median(old_norms)) if len(old_norms) else 0.0
    is_outside = ~((norms >= 0.3 * median) & (norms <= 1.5 * median))
    rows = {kind.name.lower(): ids for kind in Provenance if len(ids := plan.rows(kind))}
    return NormReport(
        old_median=median,
        medians={name: float(np.median(norms[numbers])) for name, numbers in rows.items()},
        outside={name: int(is_outside[numbers].sum()) for name, numbers in rows.items()},
        num_zero=int((norms == 0).sum()),
        num_not_finite=int((~np.isfinite(norms)).sum()),
    )
