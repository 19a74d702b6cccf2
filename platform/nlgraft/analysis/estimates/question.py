"""What a comparison asks: whether a weighted sum of cells is zero, or another difference."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from nlgraft.analysis.data.trials import CellResult

SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Weights of cells that are no effect: a difference of two cells, or of two such differences."""


@dataclass(frozen=True)
class Term:
    """A cell's part in a comparison: its weight, and the metric on which it counts."""

    weight: float
    cell: CellResult
    metric: str


@dataclass(frozen=True)
class Question:
    """A weighted sum of cells, which is a difference: of two cells, of two gains, or an effect.

    Attributes:
        metric: The metric that it is in the unit of.
        a: Meaning of the positive weights.
        b: Meaning of the negative weights.
        terms: The cells with their weights.
        null: The sum under the null hypothesis.
        margin: Difference that the study declares too small to matter.
        second_metric: The metric of the second of two cells where it is another; may be the same cell.
        is_effect: True for the effect of a factor or an interaction.
    """

    metric: str
    a: str
    b: str
    terms: tuple[Term, ...]
    null: float = 0.0
    margin: float | None = None
    second_metric: str | None = None
    is_effect: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the cells; of an effect, those with positive weights first, which tells effects apart."""
        terms = self.terms
        if self.is_effect:
            terms = tuple(sorted(terms, key=lambda term: (-term.weight, term.cell.label)))
        return tuple(term.cell.label for term in terms)

    @property
    def key(self) -> Hashable:
        """The hypothesis, which two cells share from either side."""
        is_symmetric = len(self.terms) == 2 and self.null == 0
        return frozenset((term.metric, term.cell.label) for term in self.terms) if is_symmetric else self
