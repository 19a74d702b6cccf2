"""The figures of a result by kind, for notebooks."""

from __future__ import annotations

from collections.abc import Callable

from nlgraft.analysis.rendering import figures, settings_figures
from nlgraft.analysis.rendering.drawing import Drawing, Drawings, notebook_style
from nlgraft.analysis.statistics.compared import ComparedResults
from nlgraft.errors import NlgraftError, nearest


def plot(result: ComparedResults, kind: str) -> Drawings:
    """Draw the figures of one kind; none where the result has nothing to draw.

    Raises:
        NlgraftError: There is no such kind.
    """
    if kind not in _KINDS:
        raise NlgraftError(f"no figure '{kind}'. {nearest(kind, list(_KINDS))}")
    return Drawings(_KINDS[kind](result))


def _on_main_metric(draw: Callable[..., Drawing | None], result: ComparedResults) -> list[Drawing]:
    drawn = (
        draw(result, result.main_metric, notebook_style()) if result.main_metric in result.metrics else None
    )
    return [] if drawn is None else [drawn]


_KINDS: dict[str, Callable[[ComparedResults], list[Drawing]]] = {
    "forest": lambda result: _on_main_metric(figures.forest_plot, result),
    "gains": lambda result: _on_main_metric(figures.gain_curves, result),
    "curves": lambda result: [one for _, one in figures.learning_curves(result, notebook_style())],
    "budget": lambda result: [one for _, one in figures.expected_best_curves(result, notebook_style())],
    "importance": lambda result: [one for _, one in settings_figures.setting_plots(result, notebook_style())],
}
