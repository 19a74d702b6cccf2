"""Comparison of results with the last dated ones: what became slower beyond noise.

Two kinds of figures are compared, both read from the tables of the Markdown results: ratios to a peer with
their range over rounds, worse if each median lies outside the other's range, and CPU-seconds, which have no
range. Rates are not compared, but their ratios are. Results of other processors are left out: which libraries
are fast differs between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_TIMES_CPU_S = 1.5
"""CPU-seconds of the last result from which on a figure without range is worse..."""
MIN_MORE_CPU_S = 0.5
"""...if it is also that much more: shorter ones vary."""
PEERS = ("Marian", "Hugging Face", "CTranslate2", "JoeyNMT", "GEMM limit")
"""Beginnings of rows that are not ours."""
_RANGED = re.compile(r"([\d.]+) \(([\d.]+)-([\d.]+)\)")
_CPU = re.compile(r"^Processor: .*$", re.MULTILINE)
_DATED = re.compile(r"\d{4}-\d\d-\d\d\.md")


@dataclass(frozen=True)
class Figure:
    """One cell of a table; without a range ``low`` and ``high`` are the value."""

    value: float
    low: float
    high: float
    is_ratio: bool

    def is_worse_than(self, last: Figure) -> bool:
        """Tell if this is beyond noise worse than the last one."""
        if self.is_ratio:
            return self.value < last.low and last.value > self.high
        return self.value > max(MAX_TIMES_CPU_S * last.value, last.value + MIN_MORE_CPU_S)

    def __str__(self) -> str:
        return f"{self.value:g} ({self.low:g}-{self.high:g})" if self.is_ratio else f"{self.value:g}"


Place = tuple[str, str, str]
"""Heading, row and column of a figure."""


def figures(text: str) -> dict[Place, Figure]:
    """Read the comparable figures of a result."""
    return dict(_figures(text.splitlines()))


def _figures(lines: list[str]) -> Iterator[tuple[Place, Figure]]:
    heading, columns = "", list[str]()
    for line in lines:
        if line.startswith("## "):
            heading = line[3:]
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
            continue
        for column, cell in zip(columns[1:], cells[1:], strict=False):
            figure = _figure(column, cell)
            if figure is not None and not cells[0].startswith(PEERS):
                yield (heading, cells[0], column), figure


def _figure(column: str, cell: str) -> Figure | None:
    if column.startswith("ratio to"):
        numbers = _RANGED.match(cell)
        return None if numbers is None else Figure(*map(float, numbers.groups()), is_ratio=True)
    if column.endswith("CPU-s") and not column.endswith("per CPU-s") and re.match(r"[\d.]+", cell):
        value = float(cell.split()[0])
        return Figure(value, value, value, is_ratio=False)
    return None


def _processor(text: str) -> str | None:
    cpu = _CPU.search(text)
    return cpu and cpu[0]


def _last_figures(text: str, folder: Path, before: str) -> dict[Place, tuple[str, Figure]]:
    """Find the newest earlier figure of every place, with its date; old results name no processor."""
    newest: dict[Place, tuple[str, Figure]] = {}
    for path in sorted(folder.iterdir()):
        if not _DATED.fullmatch(path.name) or path.stem >= before:
            continue
        earlier = path.read_text("utf-8")
        if _processor(earlier) in (None, _processor(text)):
            newest |= {place: (path.stem, figure) for place, figure in figures(earlier).items()}
    return newest


def regressions(text: str, folder: Path, *, before: str) -> list[str]:
    """Name what is slower in a result than in the last one that has it, one line each.

    Args:
        text: The result, Markdown.
        folder: Dated results.
        before: ISO date of the result.
    """
    last, lines = _last_figures(text, folder, before), []
    for place, figure in figures(text).items():
        if place in last and figure.is_worse_than(last[place][1]):
            date, earlier = last[place]
            lines.append(f"{' / '.join(place)}: {figure}, on {date} it was {earlier}")
    return lines
