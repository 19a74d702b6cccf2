"""Published orderings and figures, as data that a study tests."""

from __future__ import annotations

from pydantic import Field

from nlgraft.study.data.part import Part


class Claim(Part):
    """What a paper found: one cell better than another, or the figure of one cell.

    Either ``better`` and ``worse`` are given (an ordering, with the two figures if the paper prints them), or
    ``cell`` and ``value`` (a figure).
    """

    better: str | None = None
    """The cell that the paper found better: ``generator=patt``, ``full``, ``without segment_embedding``."""
    worse: str | None = None
    """The cell that the paper found worse."""
    cell: str | None = None
    """The cell whose figure the paper prints."""
    value: float | None = None
    """The figure of ``cell``."""
    metric: str
    """A metric of the system, e.g. ``test/bleu``."""
    source: str = Field(min_length=1)
    """Where the paper says so: table, figure or section."""
    figures: list[float] = Field(default=[])
    """The paper's two numbers of an ordering: first of ``better``, then of ``worse``."""
    signature: str | None = None
    """How the paper computed the metric; figures are printed beside ours only when signatures compare."""

    @property
    def is_ordering(self) -> bool:
        """Whether two cells are ordered (else one cell's figure is given)."""
        return self.better is not None and self.worse is not None

    @property
    def cells(self) -> dict[str, str]:
        """The cells named, by the field that names them."""
        named = {"better": self.better, "worse": self.worse, "cell": self.cell}
        return {field: text for field, text in named.items() if text is not None}

    @property
    def text(self) -> str:
        """The claim in one line."""
        if self.is_ordering:
            return f"{self.better} better than {self.worse} on {self.metric}"
        return f"{self.cell} has {self.metric} {self.value:g}"
