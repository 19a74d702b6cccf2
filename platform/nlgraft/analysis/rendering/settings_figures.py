"""Figures of searched settings: importances as bars, and the objective against each setting's values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nlgraft.analysis.estimates.searched_settings import SearchedSetting
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.rendering.drawing import NUM_SERIES, PAGE, Drawing, Style
from nlgraft.study.data.space import Domain

_MAX_PANELS = 6
_BAR = 0.8
_NAME_WIDTH = 18
"""Characters of a choice on an axis; longer names leave no room for the panel."""
_MARKS = "osD^v"
"""One for each round of the colours."""


def setting_plots(result: ComparedResults, style: Style = PAGE) -> list[tuple[str, Drawing]]:
    """Draw importances, and the objective by value of each setting, by title.

    Settings are drawn in the order of their largest importance in any cell, at most six.
    """
    search = result.study.search
    if search is None or not result.searched_settings:
        return []
    bars = _bars(result, style)
    drawn = [("Importance, a description (line: exceeded by one of twenty shuffles)", bars)] if bars else []
    largest = {
        path: max((setting.share or 0.0 for setting in _of(result, path).values()), default=-1.0)
        for path in search.space
    }
    paths = sorted((path for path in largest if largest[path] >= 0), key=lambda path: -largest[path])
    objective = result.study.objective.metric
    return drawn + [(f"{objective} by {path}", _points(result, path, style)) for path in paths[:_MAX_PANELS]]


def _of(result: ComparedResults, path: str) -> dict[int, SearchedSetting]:
    """A setting of each cell that has it, by the cell's place in the result."""
    labels = [cell.cell.label for cell in result.cells]
    return {
        labels.index(settings.label): setting
        for settings in result.searched_settings
        for setting in settings.settings
        if setting.path == path
    }


def _bars(result: ComparedResults, style: Style) -> Drawing | None:
    """Draw the importances, one group of bars per setting; None where there are none."""
    assert result.study.search is not None
    paths = list(result.study.search.space)
    by_path = {path: _of(result, path) for path in paths}
    if not any(setting.share is not None for by_cell in by_path.values() for setting in by_cell.values()):
        return None
    height = _BAR / len(result.cells)
    labels = [cell.cell.label for cell in result.cells]
    with mpl.rc_context(style.settings):
        width, least = style.panel
        figure = Figure(figsize=(width, max(least, 0.3 * len(paths) + 1)), layout="constrained")
        axes = figure.add_subplot()
        for row, by_cell in enumerate(by_path.values()):
            for index, setting in by_cell.items():
                at = row + (index - (len(result.cells) - 1) / 2) * height
                color = style.series[index % NUM_SERIES]
                axes.barh(at, setting.share or 0.0, height * 0.9, color=color, label=labels[index])
                if setting.by_chance is not None:
                    ends = [at - height * 0.45, at + height * 0.45]
                    axes.plot([setting.by_chance] * 2, ends, color=style.soft, linewidth=1.6)
        axes.set_yticks(range(len(paths)), paths)
        axes.set_ylim(len(paths) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("share of the importances")
        style.add_legend(figure)
        return Drawing("Importances of the searched settings", figure, style)


def _points(result: ComparedResults, path: str, style: Style) -> Drawing:
    """Draw the objective of every finished trial against its value of a setting, coloured by cell."""
    assert result.study.search is not None
    domain = result.study.search.space[path]
    title = f"{result.study.objective.metric} by {path}"
    with mpl.rc_context(style.settings):
        figure = Figure(figsize=style.panel, layout="constrained")
        axes = figure.add_subplot()
        for index, setting in _of(result, path).items():
            places = _places(domain, [value for value, _ in setting.points], index, len(result.cells))
            mark = _MARKS[index // NUM_SERIES % len(_MARKS)]
            values = [value for _, value in setting.points]
            drawn: dict[str, Any] = {"color": style.series[index % NUM_SERIES], "markersize": 5, "alpha": 0.7}
            axes.plot(places, values, mark, label=result.cells[index].cell.label, **drawn)
        _set_axis(axes, domain)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_xlabel(path)
        style.add_legend(figure)
        return Drawing(title, figure, style)


def _places(domain: Domain, values: Sequence[Any], index: int, num_cells: int) -> Sequence[float]:
    """Place values along the axis; choices beside each other by cell, so that points do not hide others."""
    if domain.type != "categorical":
        return [float(value) for value in values]
    names = [json.dumps(choice) for choice in domain.choices]
    shift = (index - (num_cells - 1) / 2) * _BAR / max(num_cells, 2) / 2
    return [names.index(json.dumps(value)) + shift for value in values]


def short_names(choices: Sequence[Any]) -> list[str]:
    """Name choices briefly enough for an axis; of mappings only what tells them apart is named."""
    mappings = [choice for choice in choices if isinstance(choice, Mapping)]
    names = []
    for choice in choices:
        name = choice if isinstance(choice, str) else json.dumps(choice)
        if isinstance(choice, Mapping):
            keys = [key for key in choice if any(other.get(key) != choice[key] for other in mappings)]
            name = ", ".join(f"{key} {choice[key]}" for key in keys) or name
        names.append(name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…")
    return names


def _set_axis(axes: Axes, domain: Domain) -> None:
    if domain.type == "categorical":
        axes.set_xticks(range(len(domain.choices)), short_names(domain.choices))
    elif domain.log:
        axes.set_xscale("log")
        ticks = np.geomspace(domain.low, domain.high, 4)
        axes.set_xticks(ticks, [f"{tick:.1g}" for tick in ticks])
        axes.minorticks_off()
