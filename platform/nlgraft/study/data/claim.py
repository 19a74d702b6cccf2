"""Claims: a paper's findings with the published figures that support them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.study.data.design import axes_of, label_finder
from nlgraft.study.data.published import Column, Statement
from nlgraft.study.data.study import Study


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A finding of a paper: one cell better than another, or the figure of one cell.

    Attributes:
        better: The cell that the paper found better, as the study file names it.
        worse: The cell that the paper found worse.
        cell: The cell whose figure is claimed.
        value: The published figure of ``cell``.
        metric: A metric of the system.
        source: Table, figure or section of the paper.
        figures: Published figures of ``better`` and ``worse``; empty where the paper prints none.
        signature: How the paper computed the metric.
    """

    metric: str
    source: str
    better: str | None = None
    worse: str | None = None
    cell: str | None = None
    value: float | None = None
    figures: Sequence[float] = ()
    signature: str | None = None

    @property
    def is_ordering(self) -> bool:
        """True for two ordered cells, False for the figure of one."""
        return self.better is not None and self.worse is not None

    @property
    def text(self) -> str:
        """The claim in one line."""
        if self.is_ordering:
            return f"{self.better} better than {self.worse} on {self.metric}"
        return f"{self.cell} has {self.metric} {self.value:g}"


class Figures:
    """The published figures of a study, by cell.

    Args:
        columns: The published columns.
        find: Gives the label of the cell that a text names; None where no cell has that name.
    """

    def __init__(self, columns: Iterable[Column], find: Callable[[str], str | None]) -> None:
        self._find = find
        self._columns = [
            (column, {find(text): figure for text, figure in column.values.items()}) for column in columns
        ]

    def claims(self, stated: Statement) -> Iterator[Claim]:
        """Turn a statement into claims: none where no column has figures of all its cells."""
        for names in stated.comparisons:
            if stated.source is not None and len(names) == 2:
                for metric in stated.metric:
                    yield _claim(names, (), metric=metric, source=stated.source)
                continue
            for column, figures in self._columns:
                labels = [self._find(name) for name in names]
                if column.metric in (stated.metric or [column.metric]) and figures.keys() >= set(labels):
                    yield _claim(
                        names,
                        [figures[label] for label in labels],
                        metric=column.metric,
                        source=column.source,
                        signature=column.signature,
                    )


def _claim(names: Sequence[str], figures: Sequence[float], **origin: Any) -> Claim:
    if len(names) == 1:
        return Claim(cell=names[0], value=figures[0], **origin)
    return Claim(better=names[0], worse=names[1], figures=figures, **origin)


def claims_of(study: Study) -> list[Claim]:
    """List the claims of a study in file order, with the figures of its published columns."""
    axes = axes_of(study)
    figures = Figures(study.published, label_finder(axes, axes.cells()))
    return [claim for stated in study.claims for claim in figures.claims(stated)]
