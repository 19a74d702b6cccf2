"""Row norms before and after a transfer, since averaging shrinks rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nlgraft.vocab.plans.moments import Rows, row_norms
from nlgraft.vocab.plans.transfer_plan import Provenance, TransferPlan


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
    kinds = [kind for kind in Provenance if len(plan.rows(kind))]
    return NormReport(
        old_median=median,
        medians={kind.name.lower(): float(np.median(norms[plan.rows(kind)])) for kind in kinds},
        outside={kind.name.lower(): int(is_outside[plan.rows(kind)].sum()) for kind in kinds},
        num_zero=int((norms == 0).sum()),
        num_not_finite=int((~np.isfinite(norms)).sum()),
    )
