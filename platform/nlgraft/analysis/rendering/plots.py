"""The figures of a result by kind: for a report's page, a paper or a notebook."""

from __future__ import annotations

from collections.abc import Callable

from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.rendering import figures, settings_figures
from nlgraft.analysis.rendering.drawing import Drawing, Drawings, Style, notebook_style
from nlgraft.basics.errors import NlgraftError, nearest

Draw = Callable[[ComparedResults, Style], list[tuple[str, Drawing]]]


def plot(result: ComparedResults, kind: str) -> Drawings:
    """Draw the figures of one kind for a notebook; none where the result has nothing to draw.

    Raises:
        NlgraftError: There is no such kind.
    """
    if kind not in KINDS:
        raise NlgraftError(f"no figure '{kind}'. {nearest(kind, list(KINDS))}")
    return Drawings(drawing for _, drawing in KINDS[kind](result, notebook_style()))


def _on_main_metric(draw: Callable[[ComparedResults, str, Style], Drawing | None]) -> Draw:
    def drawn(result: ComparedResults, style: Style) -> list[tuple[str, Drawing]]:
        main = result.main_metric
        drawing = draw(result, main, style) if main in result.metrics else None
        return [] if drawing is None else [(drawing.title, drawing)]

    return drawn


KINDS: dict[str, Draw] = {
    "forest": _on_main_metric(figures.forest_plot),
    "gains": _on_main_metric(figures.gain_curves),
    "curves": figures.learning_curves,
    "budget": figures.expected_best_curves,
    "importance": settings_figures.setting_plots,
}
"""Draws the figures of a kind, each with a title that may be longer than its own."""
