"""Figures of results: for a report's page, a paper or a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nlgraft.analysis.data.trials import Array, CellResult
from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.estimates.searched_settings import SearchedSetting
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.rendering.drawing import NUM_SERIES, PAGE, Drawing, Drawings, Style, notebook_style
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.study.data.design import axes_of, level_text
from nlgraft.study.data.space import Domain

_MAX_PANELS = 6
_MAX_POINTS = 200
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Band:
    """A curve with its band: a learning curve over several seeds, or a search's expected best.

    Attributes:
        labels: Cells of the curve; several where they share the stage that reported it.
        steps: Optimiser steps, or another budget.
        mean: Mean over the seeds that reported a step, or the expectation.
        low: Lower end of the band: the seeds' minimum.
        high: Upper end.
        num_seeds: Number of seeds, or of search trials; one has no band.
    """

    labels: tuple[str, ...]
    steps: Array
    mean: Array
    low: Array
    high: Array
    num_seeds: int


def forest_plot(result: ComparedResults, metric: str, style: Style = PAGE) -> Drawing | None:
    """Draw every cell's difference from the baseline with its interval; None without any."""
    compared = [result.compare(cell.cell, metric=metric) for cell in result.cells[1:]]
    rows = [
        (comparison, comparison.difference) for comparison in compared if comparison.difference is not None
    ]
    if not rows:
        return None
    with mpl.rc_context(style.settings):
        figure = Figure(figsize=(style.width, 0.8 + style.row_height * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for row, (comparison, difference) in enumerate(rows):
            color = style.standing[result.standing(comparison)]
            low, high = comparison.ci if comparison.ci is not None else (difference, difference)
            line = ":" if comparison.scope == "segments" else "-"
            axes.plot([low, high], [row, row], line, color=color, linewidth=2.4, solid_capstyle="round")
            axes.plot([difference], [row], marker="o", markersize=6.5, color=color)
        axes.axvline(0, color=style.soft, linewidth=1)
        if (margin := result.margin(metric)) is not None:
            axes.axvspan(-margin, margin, color=style.standing["equal"], alpha=0.15, linewidth=0)
        axes.set_yticks(range(len(rows)), [comparison.a for comparison, _ in rows], color=style.ink)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        unit = result.system.metrics[metric].unit
        band = "" if margin is None else f"; band: margin of {margin:g}"
        if any(comparison.scope == "segments" for comparison, _ in rows):
            band += "; dotted: one seed, nothing is decided"
        axes.set_xlabel(f"{metric} minus that of {result.baseline.cell.label} ({unit}){band}")
        return Drawing(f"Differences from the baseline on {metric}", figure, style)


def gain_curves(result: ComparedResults, metric: str, style: Style = PAGE) -> Drawing | None:
    """Draw the gains over the levels of ``analysis.gains_over``, intervals as bands; None without any."""
    over = result.study.analysis.gains_over
    levels = list(map(level_text, axes_of(result.study).levels[over])) if over is not None else []
    curves = {
        curve.label: [
            (levels.index(level), gain.difference, *(gain.ci or (gain.difference, gain.difference)))
            for level, gain in curve.gains
            if gain.difference is not None
        ]
        for curve in result.gains(metric)
    }
    if not any(curves.values()):
        return None
    with mpl.rc_context(style.settings):
        figure = Figure(figsize=(style.width, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for index, (label, points) in enumerate(curves.items()):
            at, middle, low, high = np.array(points, dtype=float).reshape(-1, 4).T
            color = style.series[(index + 1) % NUM_SERIES]
            dashes = _DASHES[(index + 1) // NUM_SERIES % len(_DASHES)]
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(at, middle, color=color, linestyle=dashes, linewidth=1.6, marker="o", label=label)
        axes.axhline(0, color=style.soft, linewidth=1)
        axes.set_xticks(range(len(levels)), levels)
        axes.set_xlabel(str(over))
        axes.set_ylabel(f"gain in {metric} ({result.system.metrics[metric].unit})")
        axes.legend(frameon=False)
        return Drawing(f"Gains over {over} in {metric}", figure, style)


def learning_curves(result: ComparedResults, style: Style = PAGE) -> list[tuple[str, Drawing]]:
    """Draw the learning curves of all cells by title, at most six, dev curves first."""
    names = {
        name: None
        for cell in result.cells
        for trial in cell.trials
        if trial.record is not None
        for name in trial.record.curves
    }
    drawn = []
    for name in sorted(names, key=_curve_rank):
        bands = share([band for cell in result.cells if (band := make_band(cell, name)) is not None])
        if bands and len(drawn) < _MAX_PANELS and _curve_rank(name)[0] < _NOT_DRAWN:
            title = f"{name}{_unlike_units(result, name)}"
            whole = f"Learning curves of {title}"
            drawn.append((title, _draw_bands(result, whole, "optimiser steps", bands, style)))
    return drawn


def _unlike_units(result: ComparedResults, curve: str) -> str:
    """Mark the curves of a mean over tokens, of train as of dev, where the cells' tokens differ."""
    metric = result.system.metrics.get(f"dev/{curve.rpartition('/')[2]}") if curve.count("/") == 1 else None
    means = [cell.mean(metric.counted_by) for cell in result.cells] if metric and metric.counted_by else []
    if len({round(mean, 9) for mean in means if mean is not None}) < 2:
        return ""
    return ": tokens of different vocabularies, curves of cells cannot be compared"


def expected_best_curves(result: ComparedResults, style: Style = PAGE) -> list[tuple[str, Drawing]]:
    """Draw the expected best of a search by trials, steps and worker seconds, by title."""
    curves = [curve for cell in result.cells if (curve := expected_best(result, cell)) is not None]
    units = {
        "search trials": [1.0 for _ in curves],
        "training steps": [curve.steps_per_trial for curve in curves],
        "worker seconds": [curve.worker_s_per_trial for curve in curves],
    }
    drawn = []
    for unit, costs in units.items():
        bands = [
            Band(
                (curve.label,),
                cost * np.arange(1, len(curve.mean) + 1),
                curve.mean,
                curve.low,
                curve.high,
                len(curve.mean),
            )
            for curve, cost in zip(curves, costs, strict=True)
            if cost is not None
        ]
        if bands:
            title = f"{result.study.objectives[0].metric} by {unit}"
            drawn.append((title, _draw_bands(result, f"Expected best {title}", unit, bands, style)))
    return drawn


def make_band(cell: CellResult, name: str) -> Band | None:
    """Combine the curves of a cell's seeds; None when no seed has a finite point of this name."""
    curves = [trial.record.curves.get(name, []) for trial in cell.trials if trial.record is not None]
    by_step: dict[float, list[float]] = {}
    num_seeds = 0
    for points in curves:
        last = {step: value for step, value, _ in points if np.isfinite(value)}
        num_seeds += bool(last)
        for step, value in last.items():
            by_step.setdefault(step, []).append(value)
    if not by_step:
        return None
    steps = sorted(by_step)
    kept = [steps[index] for index in _spaced(len(steps))]
    values = [np.array(by_step[step]) for step in kept]
    return Band(
        (cell.cell.label,),
        np.array(kept, dtype=float),
        np.array([at_step.mean() for at_step in values]),
        np.array([at_step.min() for at_step in values]),
        np.array([at_step.max() for at_step in values]),
        num_seeds,
    )


def share(bands: Sequence[Band]) -> list[Band]:
    """Join equal bands, of cells that share a stage, in the order of their first cell."""
    joined: dict[tuple[bytes, ...], Band] = {}
    for band in bands:
        # Means of one curve over four and over five seeds differ in their last bits.
        key = tuple(np.round(part, 9).tobytes() for part in (band.steps, band.mean, band.low, band.high))
        same = joined.get(key)
        labels = band.labels if same is None else (*same.labels, *band.labels)
        joined[key] = Band(labels, band.steps, band.mean, band.low, band.high, band.num_seeds)
    return list(joined.values())


_NOT_DRAWN = 9


def _curve_rank(name: str) -> tuple[int, int, str]:
    """Rank dev curves of the last stage first; learning rates and speeds are not drawn."""
    last = name.rsplit("/", 1)[-1]
    if last == "lr" or last.endswith(("_per_s", "_s", "_efficiency", "_norm")):
        return _NOT_DRAWN, 0, name
    is_dev = name.rsplit("/", 2)[-2:-1] == ["dev"]
    return name.count("/") > 1, not is_dev, name


def _draw_bands(
    result: ComparedResults, title: str, budget: str, bands: Sequence[Band], style: Style
) -> Drawing:
    with mpl.rc_context(style.settings):
        figure = Figure(figsize=style.panel, layout="constrained")
        axes = figure.add_subplot()
        series = [cell.cell.label for cell in result.cells]
        is_shared = len(bands[0].labels) == len(result.cells) > 1
        for band in bands:
            index = series.index(band.labels[0])
            color = style.ink if is_shared else style.series[index % NUM_SERIES]
            dashes = _DASHES[index // NUM_SERIES % len(_DASHES)]
            if band.num_seeds > 1:
                axes.fill_between(band.steps, band.low, band.high, color=color, alpha=0.15, linewidth=0)
            marker = "o" if len(band.steps) == 1 else None
            drawn: dict[str, Any] = {"linestyle": dashes, "linewidth": 1.6, "marker": marker}
            axes.plot(band.steps, band.mean, color=color, label=", ".join(band.labels), **drawn)
        axes.set_xlabel(budget + (" (all cells share this stage)" if is_shared else ""))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        if not is_shared:
            style.add_legend(figure)
        return Drawing(title, figure, style)


def _spaced(length: int) -> Sequence[int]:
    if length <= _MAX_POINTS:
        return range(length)
    return sorted({round(index) for index in np.linspace(0, length - 1, _MAX_POINTS)})


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
    objective = result.study.objectives[0].metric
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
    title = f"{result.study.objectives[0].metric} by {path}"
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
    "forest": _on_main_metric(forest_plot),
    "gains": _on_main_metric(gain_curves),
    "curves": learning_curves,
    "budget": expected_best_curves,
    "importance": setting_plots,
}
"""Draws the figures of a kind, each with a title that may be longer than its own."""
