"""Claims: a paper's findings with the published figures that support them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from nlgraft.study.data import paths
from nlgraft.study.data.design import axes_of, label_finder
from nlgraft.study.data.space import same
from nlgraft.study.data.study import Column, Statement, Study


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A finding of a paper: one cell better than another, or one gain larger than another.

    Attributes:
        better: The cell that the paper found better, as the study file names it.
        worse: The cell that the paper found worse.
        metric: A metric of the system.
        worse_metric: The metric of ``worse`` where it is another.
        source: Table, figure or section of the paper.
        figures: Published figures of its cells; empty where the paper prints none.
        signature: How the paper computed the metric.
        data: The data that the paper used: values or patterns of the study's data, by dotted path.
        margin: Difference that does not matter: the most by which ``better`` may be worse.
        exceeds: Two cells; the gain of ``better`` over ``worse`` is larger than that of the first over the
            second.
    """

    metric: str
    source: str
    better: str
    worse: str
    figures: Sequence[float] = ()
    signature: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    margin: float = 0.0
    exceeds: Sequence[str] = ()
    worse_metric: str | None = None

    def other_data(self, data: Mapping[str, Any]) -> str:
        """Describe how a study's data differ from the paper's; empty if they are the same."""
        if not self.data:
            return "the claim does not state its data"
        for path, published in self.data.items():
            study_value = paths.get(data, path)
            if study_value is paths.MISSING:
                return f"{path} is missing, the paper's is {published}"
            # Equal values first: a path may itself hold characters that are wildcards.
            if not (same(study_value, published) or fnmatchcase(str(study_value), str(published))):
                return f"{path} is {study_value}, the paper's is {published}"
        return ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells it names, in the order of its figures."""
        return (self.better, self.worse, *self.exceeds)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of each of ``cells``."""
        if self.worse_metric is not None:
            return self.metric, self.worse_metric
        return (self.metric,) * len(self.cells)

    @property
    def text(self) -> str:
        """The claim in one line."""
        better, more = ("no worse", "no less") if self.margin else ("better", "more")
        if self.exceeds:
            first, second = self.exceeds
            gains = f"{self.better} gains {more} over {self.worse} than {first} over {second}"
            text = f"{gains} on {self.metric}"
        elif self.worse_metric is not None:
            text = f"{self.better}'s {self.metric} {better} than {self.worse}'s {self.worse_metric}"
        else:
            text = f"{self.better} {better} than {self.worse} on {self.metric}"
        return f"{text} by more than {self.margin:g}" if self.margin else text


def gain(values: Sequence[float]) -> float:
    """Subtract worse from better, and from that the second gain, if there is one."""
    better, worse, *exceeds = values
    return better - worse - (exceeds[0] - exceeds[1] if exceeds else 0.0)


class Figures:
    """The published figures of a study, by cell.

    Args:
        columns: The published columns.
        find: Gives the label of the cell that a text names; None where no cell has that name.
    """

    def __init__(self, columns: Iterable[Column], find: Callable[[str], str | None]) -> None:
        self._find = find
        # By label, since a cell has several names.
        self._columns = [
            (column, {find(text): figure for text, figure in column.values.items()}) for column in columns
        ]

    def claims(self, statement: Statement) -> Iterator[Claim]:
        """Turn a statement into claims: none where no column has figures of all its cells."""
        for names in statement.comparisons:
            # A source of its own: the paper states the ordering and prints no figures.
            if statement.source is not None:
                for metric in statement.metric:
                    origin = {"metric": metric, "source": statement.source, "data": statement.data}
                    yield _claim(statement, names, (), worse_metric=statement.worse_metric, **origin)
                continue
            for column, figures in self._columns:
                labels = [self._find(name) for name in names]
                # A statement without a metric is about every column that has all of its cells.
                is_meant = not statement.metric or column.metric in statement.metric
                if is_meant and figures.keys() >= set(labels):
                    yield _claim(
                        statement,
                        names,
                        [figures[label] for label in labels],
                        metric=column.metric,
                        source=column.source,
                        signature=column.signature,
                        data=column.data,
                    )

    def printed(self, claim: Claim) -> Sequence[float]:
        """Return the published figures of a claim's cells on its data, also of one without figures."""
        if claim.figures or claim.worse_metric is not None:
            return claim.figures
        labels = [self._find(text) for text in claim.cells]
        for column, figures in self._columns:
            is_same = (column.metric, column.data) == (claim.metric, claim.data)
            if is_same and figures.keys() >= set(labels):
                return [figures[label] for label in labels]
        return ()


def _claim(
    statement: Statement,
    names: Sequence[str],
    figures: Sequence[float],
    **origin: Any,
) -> Claim:
    margin = statement.margin or 0.0
    better, worse, *exceeds = names
    return Claim(better=better, worse=worse, exceeds=tuple(exceeds), figures=figures, margin=margin, **origin)


def claims_of(study: Study) -> list[Claim]:
    """List the claims of a study in file order, with the figures of its published columns."""
    axes = axes_of(study)
    figures = Figures(study.published, label_finder(axes, axes.cells()))
    return [claim for statement in study.claims for claim in figures.claims(statement)]
