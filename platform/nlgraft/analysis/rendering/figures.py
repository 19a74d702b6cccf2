"""Figures of results: for a report's page, a paper or a notebook.

Matplotlib draws with the light colours of the page's style sheet. In the SVG of a page, CSS variables replace
them, so that one figure serves its light and its dark theme. Drawing goes through `Figure` objects only and
needs no display.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nlgraft.analysis.data.trials import Array, CellResult
from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.study.data.design import axes_of, level_text

NUM_SERIES = 8


@cache
def colors() -> dict[str, str]:
    """Light colours of a report's page by the names of its CSS variables; no two are alike."""
    css = files("nlgraft.analysis.rendering").joinpath("templates/style.css").read_text("utf-8")
    return dict(re.findall(r"--([\w-]+): (#\w{6});", css[: css.index("@media")]))


def series_color(index: int) -> str:
    """Return the colour of a cell by its place in the result."""
    return colors()[f"series-{index % NUM_SERIES}"]


@dataclass(frozen=True)
class Style:
    """Sizes of figures.

    Attributes:
        width: Of a figure that stands alone, in inches.
        row_height: Of a row of such a figure, in inches.
        panel: Width and height of a figure that stands beside others, in inches.
        font_size: In points.
        has_legend: True where nothing around a figure says which colour is which cell.
    """

    width: float = 5.0
    row_height: float = 0.24
    panel: tuple[float, float] = (4.8, 2.8)
    font_size: float = 9
    has_legend: bool = False

    @property
    def settings(self) -> dict[Any, Any]:
        """Settings of Matplotlib."""
        ink, soft, rule = (colors()[name] for name in ("ink", "soft", "rule"))
        return {
            "text.parse_math": False,
            "svg.fonttype": "path" if self.has_legend else "none",
            "pdf.fonttype": 42,  # publishers refuse Type 3
            "font.size": self.font_size,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": rule,
            "axes.labelcolor": soft,
            "axes.titlecolor": ink,
            "axes.grid": True,
            "grid.color": rule,
            "grid.linewidth": 0.6,
            "text.color": ink,
            "xtick.color": soft,
            "ytick.color": soft,
        }

    @contextmanager
    def canvas(self, size: tuple[float, float]) -> Iterator[tuple[Figure, Axes]]:
        """Begin a figure of that width and height in inches, to be drawn on inside the context."""
        with mpl.rc_context(self.settings):
            figure = Figure(figsize=size, layout="constrained")
            yield figure, figure.add_subplot()


PAGE = Style()
NOTEBOOK = Style(has_legend=True)
PAPER = Style(width=3.05, row_height=0.18, panel=(3.05, 2.3), font_size=7, has_legend=True)
"""A column of a paper with two."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure.

    Attributes:
        title: What it shows, in words.
        figure: The figure, which may be changed before it is written.
        style: How it was drawn.
        caption: What stands above or below it; empty where its title does.
    """

    title: str
    figure: Figure = field(repr=False)
    style: Style = field(repr=False)
    caption: str = ""

    def save(self, path: Path) -> None:
        """Write the figure in the format of the path's suffix; no date is in it."""
        self._write(path, path.suffix[1:] or None, is_transparent=path.suffix != ".png")

    def inline(self, owner: str = "fig") -> str:
        """Write the figure as SVG for a page, whose variables give the colours.

        Args:
            owner: What no other figure of this title on the page has, as the beginning of ids.
        """
        text = self.svg()
        prefix = f"{owner}-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        # Several figures share one page, so their ids must differ.
        text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
        text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
        for name, color in colors().items():
            text = text.replace(color, f"var(--{name})")
        # The page's own font; Matplotlib's is on no reader's machine.
        text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font: \1px var(--sans)", text)
        label = html.escape(self.title)
        opening = rf'<svg xmlns="http://www.w3.org/2000/svg" viewBox="\1" role="img" aria-label="{label}">'
        return re.sub(r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", opening, text, count=1)

    def svg(self) -> str:
        """Write the figure as SVG that stands alone; on white, since a notebook may be dark."""
        buffer = io.StringIO()
        self._write(buffer, "svg", is_transparent=not self.style.has_legend)
        text = buffer.getvalue()
        return re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)

    def _write(
        self,
        file: Path | io.StringIO,
        kind: str | None,
        *,
        is_transparent: bool,
    ) -> None:
        """Write it with the settings it was drawn with; its title makes the ids, which are else random."""
        dates = {"pdf": ("CreationDate", "Creator", "Producer"), "svg": ("Date", "Creator")}
        metadata = dict.fromkeys(dates.get(kind or "", ())) or None
        with warnings.catch_warnings(), mpl.rc_context({**self.style.settings, "svg.hashsalt": self.title}):
            # The page's fonts set the text; Matplotlib's own only measure it.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            self.figure.savefig(file, format=kind, transparent=is_transparent, metadata=metadata)


class Drawings(tuple[Drawing, ...]):
    """Figures, which a notebook shows one below the other."""

    def __repr__(self) -> str:
        return "\n".join(["Figures:", *(f"  {drawing.title}" for drawing in self)])

    def _repr_html_(self) -> str:
        """Show the figures in a notebook."""
        return "\n".join(drawing.svg() for drawing in self) or "<p>Nothing to draw yet.</p>"


_MAX_PANELS = 6
_MAX_POINTS = 200
_DASHES = ("-", "--", ":", "-.")
_NOT_DRAWN = ("/lr", "_per_s", "_s", "_efficiency", "_norm")
"""Ends of the names of curves that say how a training ran, not what it learned."""
_LINE_WIDTH = 60
"""Characters of a line across a figure that stands alone."""

Draw = Callable[[RecordedResults, Style], list[Drawing]]


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


def plot(result: RecordedResults, kind: str) -> Drawings:
    """Draw the figures of one kind, see `StudyResult.plot`; none where the result has nothing to draw."""
    if kind not in KINDS:
        raise NlgraftError(f"no figure '{kind}'. {nearest(kind, list(KINDS))}")
    return Drawings(KINDS[kind](result, NOTEBOOK))


def forest_plot(result: RecordedResults, style: Style = PAGE) -> list[Drawing]:
    """Draw every cell's difference from the baseline on the main metric with its interval.

    The name of a cell stands above its interval: beside it, a narrow screen would have room for one of them.
    """
    main = result.main_metric
    compared = result.against_baseline() if main in result.metrics else []
    rows = {
        fill(comparison.a, _LINE_WIDTH, break_long_words=False): comparison
        for comparison in compared
        if comparison.difference is not None
    }
    if not rows:
        return []
    soft, equal = colors()["soft"], colors()["equal"]
    num_lines = 2 + max(name.count("\n") for name in rows)
    with style.canvas((style.width, 0.8 + style.row_height * num_lines * len(rows))) as (figure, axes):
        for row, (name, comparison) in enumerate(rows.items()):
            color = colors()[comparison.standing or "open"]
            middle = comparison.difference
            assert middle is not None  # others have no row
            line = ":" if comparison.scope == "segments" else "-"
            # Without an interval the point stands alone.
            ends = comparison.ci or (middle, middle)
            axes.plot(ends, [row, row], line, color=color, linewidth=2.4, solid_capstyle="round")
            axes.plot([middle], [row], marker="o", markersize=6, color=color)
            at = axes.get_yaxis_transform()
            text = axes.text(0, row - 0.45 / num_lines, name, transform=at, va="bottom")
            # The lines of the grid and of zero end at a name.
            text.set_bbox({"facecolor": colors()["panel"], "linewidth": 0, "pad": 1})
        axes.axvline(0, color=soft, linewidth=1)
        unit = result.system.metrics[main].unit
        label = [f"{main} minus that of {result.baseline.label} ({unit})"]
        if (margin := result.margin(main)) is not None:
            axes.axvspan(-margin, margin, color=equal, alpha=0.15, linewidth=0)
            label.append(f"band: margin of {margin:g}")
        if any(comparison.scope == "segments" for comparison in rows.values()):
            label.append("dotted: one seed, nothing is decided")
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.5, -1)
        axes.set_xlabel("\n".join(label))
        return [Drawing(f"Differences from the baseline on {main}", figure, style)]


def gain_curves(result: RecordedResults, style: Style = PAGE) -> list[Drawing]:
    """Draw the gains on the main metric over the levels of ``analysis.gains_over``, intervals as bands."""
    over, main = result.study.analysis.gains_over, result.main_metric
    if over is None or main not in result.metrics:
        return []
    levels = list(map(level_text, axes_of(result.study).levels[over]))
    bands = []
    for curve in result.gains():
        points = [
            (levels.index(level), gain.difference, *(gain.ci or (gain.difference, gain.difference)))
            for level, gain in curve.gains
            if gain.difference is not None
        ]
        if points:
            bands.append(Band((curve.label,), *np.array(points, dtype=float).T, num_seeds=2))
    title = f"Gains over {over} in {main} ({result.system.metrics[main].unit})"
    # The first colour is the baseline's.
    series = ["", *(band.labels[0] for band in bands)]
    return [_draw_bands(series, bands, over, title, style, levels=levels)] if bands else []


def learning_curves(result: RecordedResults, style: Style = PAGE) -> list[Drawing]:
    """Draw the learning curves of all cells, at most six, dev curves of the last stage first."""
    trials = [trial for cell in result.cells for trial in cell.trials]
    names = {name for trial in trials for name in trial.curves if not f"/{name}".endswith(_NOT_DRAWN)}
    drawings = []
    labels = [cell.label for cell in result.cells]

    def rank(name: str) -> tuple[bool, bool, str]:
        return name.count("/") > 1, "dev" not in name.split("/")[-2:-1], name

    for name in sorted(names, key=rank):
        bands = join_equal([band for cell in result.cells if (band := make_band(cell, name)) is not None])
        if bands and len(drawings) < _MAX_PANELS:
            caption = f"{name}{_unlike_units(result, name)}"
            title = f"Learning curves of {caption}"
            drawings.append(_draw_bands(labels, bands, "optimiser steps", title, style, caption))
    return drawings


def _unlike_units(result: RecordedResults, curve: str) -> str:
    """Mark the curves of a mean over tokens, of train as of dev, where the cells' tokens differ."""
    metric = result.system.metrics.get(f"dev/{curve.rpartition('/')[2]}") if curve.count("/") == 1 else None
    means = [cell.mean(metric.counted_by) for cell in result.cells] if metric and metric.counted_by else []
    if len({round(mean, 9) for mean in means if mean is not None}) < 2:
        return ""
    return ": tokens of different vocabularies, curves of cells cannot be compared"


def expected_best_curves(result: RecordedResults, style: Style = PAGE) -> list[Drawing]:
    """Draw the expected best of a search by trials; a table has what a trial costs."""
    curves = [curve for cell in result.cells if (curve := expected_best(result, cell)) is not None]
    bands = [
        Band((curve.label,), np.arange(1.0, num + 1), curve.mean, curve.low, curve.high, num)
        for curve in curves
        if (num := len(curve.mean))
    ]
    caption = f"{result.study.objective.metric} by search trials"
    title = f"Expected best {caption}"
    labels = [cell.label for cell in result.cells]
    return [_draw_bands(labels, bands, "search trials", title, style, caption)] if bands else []


def make_band(cell: CellResult, name: str) -> Band | None:
    """Combine the curves of a cell's seeds; None when no seed has a finite point of this name."""
    curves = [curve for trial in cell.trials if (curve := trial.curve(name))]
    if not curves:
        return None
    steps = np.array(sorted(set().union(*curves)), dtype=float)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, _MAX_POINTS).round().astype(int))]
    values = [np.array([curve[step] for curve in curves if step in curve]) for step in steps]
    mean, low, high = np.array([[at_step.mean(), at_step.min(), at_step.max()] for at_step in values]).T
    return Band((cell.label,), steps, mean, low, high, len(curves))


def join_equal(bands: Sequence[Band]) -> list[Band]:
    """Join equal bands, of cells that share a stage, in the order of their first cell."""
    joined: dict[tuple[bytes, ...], Band] = {}
    for band in bands:
        # Means of one curve over four and over five seeds differ in their last bits.
        key = tuple(np.round(part, 9).tobytes() for part in (band.steps, band.mean, band.low, band.high))
        labels = joined[key].labels if key in joined else ()
        joined[key] = replace(band, labels=(*labels, *band.labels))
    return list(joined.values())


def _draw_bands(
    series: Sequence[str],
    bands: Sequence[Band],
    budget: str,
    title: str,
    style: Style,
    caption: str = "",
    levels: Sequence[str] = (),
) -> Drawing:
    """Draw curves with their bands.

    Args:
        series: Labels in the order of the colours.
        bands: The curves.
        budget: What the horizontal axis shows.
        title: What the figure shows.
        style: Sizes.
        caption: As that of `Drawing`.
        levels: Levels along the axis, of gains; none for steps.
    """
    with style.canvas((style.width, 3.0) if levels else style.panel) as (figure, axes):
        # A stage that all cells share belongs to none of them, so its curve has no cell's colour.
        is_shared = len(bands[0].labels) == len(series) > 1
        for band in bands:
            index = series.index(band.labels[0])
            color = colors()["ink"] if is_shared else series_color(index)
            # From the ninth cell on colours come again, with other dashes.
            dashes = _DASHES[index // NUM_SERIES % len(_DASHES)]
            marker = "o" if levels or len(band.steps) == 1 else None
            if band.num_seeds > 1:
                axes.fill_between(band.steps, band.low, band.high, color=color, alpha=0.15, linewidth=0)
            label = ", ".join(band.labels)
            axes.plot(
                band.steps,
                band.mean,
                dashes,
                color=color,
                label=label,
                linewidth=1.6,
                marker=marker,
            )
        axes.set_xlabel(budget + (" (all cells share this stage)" if is_shared else ""))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        if levels:
            axes.axhline(0, color=colors()["soft"], linewidth=1)
            axes.set_xticks(range(len(levels)), levels)
            axes.legend(frameon=False)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            if style.has_legend and not is_shared:  # nothing around it names the cells
                figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return Drawing(title, figure, style, caption)


KINDS: dict[str, Draw] = {
    "forest": forest_plot,
    "gains": gain_curves,
    "curves": learning_curves,
    "budget": expected_best_curves,
}
WIDE = ("forest", "gains")
"""Kinds of which there is at most one figure, which stands alone."""
