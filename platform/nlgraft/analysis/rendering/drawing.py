"""How a figure is drawn and written: colours and sizes of a page, of a paper or of a notebook.

Matplotlib draws with the light colours of the page's style sheet. In the SVG of a page, CSS variables replace
them, so that one figure serves its light and its dark theme. Drawing goes through `Figure` objects only and
needs no display.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

    def add_legend(self, figure: Figure) -> None:
        """Name the cells of a figure, each once, unless its surroundings do."""
        if not self.has_legend:
            return
        handles, labels = figure.axes[0].get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        figure.legend([*named.values()], [*named], loc="outside lower center", ncols=2, frameon=False)


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
        dates = {".pdf": ("CreationDate", "Creator", "Producer"), ".svg": ("Date", "Creator")}
        metadata = dict.fromkeys(dates.get(path.suffix, ()))
        with self._settings():
            self.figure.savefig(path, transparent=path.suffix != ".png", metadata=metadata or None)

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
        with self._settings():
            metadata = {"Date": None, "Creator": None}
            self.figure.savefig(
                buffer, format="svg", transparent=not self.style.has_legend, metadata=metadata
            )
        text = buffer.getvalue()
        return re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Enter the settings it was drawn with; its title makes the ids, which are else random."""
        with warnings.catch_warnings(), mpl.rc_context({**self.style.settings, "svg.hashsalt": self.title}):
            # The page's fonts set the text; Matplotlib's own only measure it.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            yield


class Drawings(tuple[Drawing, ...]):
    """Figures, which a notebook shows one below the other."""

    def __repr__(self) -> str:
        return "\n".join(["Figures:", *(f"  {drawing.title}" for drawing in self)])

    def _repr_html_(self) -> str:
        """Show the figures in a notebook."""
        return "\n".join(drawing.svg() for drawing in self) or "<p>Nothing to draw yet.</p>"
