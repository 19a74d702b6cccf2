"""A paper's findings as a study file states them: columns of published tables, and orderings of cells."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema

from nlgraft.study.data.part import Part


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMore = Annotated[
    list[str],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Column(Part):
    """The published figures of one metric."""

    source: str = Field(min_length=1)
    """Paper, if it is not the study's, and table or figure, e.g. ``Table 2, Laws``."""
    metric: str
    """A metric of the system, e.g. ``test/bleu``."""
    signature: str | None = None
    """How the paper computed the metric, e.g. ``case:mixed|tok:13a``; its figures are printed beside ours
    only where the signatures agree."""
    data: dict[str, JsonValue] = Field(default={})
    """The data on which they were obtained: values of the study's ``data`` by dotted path, ``*`` for any part
    of a text, e.g. ``downstream.test.target: "*/thesis/test.zh"``. On other data verdicts say so, without
    figures."""
    values: dict[str, float] = Field(min_length=1)
    """Figure by cell: ``patt_eg``, ``arm=patt_eg, sides=both``, ``without segment_embedding``."""


class Statement(Part):
    """A claim as written: either ``better`` and ``worse`` (an ordering), or ``cell`` (its published figure).

    It stands for one claim per worse cell and per column of ``published`` that has figures of its cells. With
    a ``source`` it is an ordering without figures, and ``metric`` is needed. With a ``margin`` it says that
    ``better`` is no worse by more than that; with ``exceeds`` it compares two gains; with ``worse_metric``
    two metrics, of one cell too.
    """

    better: str | None = None
    """The cell that the paper found better."""
    worse: OneOrMore = Field(default=[])
    """The cell that the paper found worse; several in a list."""
    cell: str | None = None
    """The cell whose published figure is tested, which needs a ``margin``."""
    margin: float | None = Field(default=None, gt=0)
    """Difference that does not matter, in the metric's unit: ours may be this far from a published figure, or
    ``better`` this much worse than ``worse``."""
    exceeds: list[str] | None = Field(default=None, min_length=2, max_length=2)
    """Two cells: the gain of ``better`` over ``worse`` exceeds the gain of the first over the second."""
    metric: OneOrMore = Field(default=[])
    """The metrics it is about; left out for all columns that have its cells."""
    worse_metric: str | None = None
    """The metric of ``worse`` where it is another, of the same kind as ``metric``; needs a ``source``."""
    source: str | None = Field(default=None, min_length=1)
    """Place in the paper of an ordering without figures."""
    data: dict[str, JsonValue] = Field(default={})
    """The data of an ordering without figures, as in ``published``."""

    @property
    def comparisons(self) -> list[tuple[str, ...]]:
        """The cells of each claim: better, worse and those it exceeds, or the cell alone."""
        if self.cell is not None:
            return [(self.cell,)]
        if self.better is None:
            return []
        return [(self.better, worse, *(self.exceeds or ())) for worse in self.worse]
