"""What a comparison asks: the hypothesis of a claim, or of a cell against the baseline."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Weights of the cells of a question: a difference of two cells, or of two such differences."""


@dataclass(frozen=True)
class Question:
    """A difference to test: of two cells, or of two gains.

    Attributes:
        metric: Name of the metric.
        cells: Labels of two or four cells.
        second_metric: The metric of the second of two cells where it is another; may be the same cell.
        null: Difference under the null hypothesis.
    """

    metric: str
    cells: tuple[str, ...]
    null: float = 0.0
    second_metric: str | None = None

    @property
    def has_margin(self) -> bool:
        """True if the study's margin of the metric applies: to differences that are tested against zero."""
        return self.null == 0 and self.second_metric is None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of each cell."""
        return (self.metric, *[self.second_metric or self.metric] * (len(self.cells) - 1))

    @property
    def key(self) -> Hashable:
        """The hypothesis, which two cells share from either side."""
        is_symmetric = len(self.cells) == 2 and self.null == 0
        return frozenset(zip(self.metrics, self.cells, strict=True)) if is_symmetric else self
