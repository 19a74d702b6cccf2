"""Comparison with earlier results: ratios to peers, read from the tables of dated results.

Only ratios are compared, since times depend on the machine and on its load. A ratio is a regression if its
range over rounds lies wholly below the earlier one and it has lost more than a tenth: the same code differs
by up to 8 % between machines (1.16 to 1.26 of Marian).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TOLERANCE = 0.1
OURS = "nlgraft"
_NOT_OURS = (
    *("Marian", "JoeyNMT", "Hugging Face", "CTranslate2", "GEMM limit", "transformers"),
    "language model, read anew",  # ours, with the cache switched off
)
_UNCOMPARED = ("Growth of cost",)
"""Sections whose ratios are between sizes and not between systems."""
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")
_NUMBERS = r"(?P<value>\d+\.\d+) \((?P<low>\d+\.\d+)-(?P<high>\d+\.\d+)(?: over rounds)?\)"
_HEADER = re.compile(r"ratio to (?P<peer>.+?) \(range over rounds\)")
_CELL = re.compile(_NUMBERS)
_ITEM = re.compile(rf"- (?:{OURS} to (?:the )?)?(?P<peer>.+?): {_NUMBERS}")

Key = tuple[str, str, str]
"""Heading of the section, system, peer."""


@dataclass(frozen=True)
class Ratio:
    """Speed of a system over that of a peer.

    Attributes:
        value: Ratio of medians.
        low: Lowest ratio of a round.
        high: Highest ratio of a round.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def read_ratios(text: str) -> dict[Key, Ratio]:
    """Read the ratios of our systems from results in Markdown.

    They stand in the last column of tables whose header says ``ratio to PEER (range over rounds)``, as
    `benchmarks.measure.table` writes them, and in items ``- PEER: ratio (range over rounds)``.
    """
    found: dict[Key, Ratio] = {}
    section, peer = "", None
    for line in text.splitlines():
        if line.startswith("#"):
            section, peer = line.lstrip("# "), None
        elif line.startswith("|"):
            first, *_, last = (cell.strip() for cell in line.strip("| ").split("|"))
            header, cell = _HEADER.fullmatch(last), _CELL.fullmatch(last)
            peer = header["peer"] if header else peer
            is_ours = first != peer and not first.startswith(_NOT_OURS) and section not in _UNCOMPARED
            if cell and peer is not None and is_ours:
                found[section, first, peer] = _ratio(cell)
        else:
            peer = None
            item = _ITEM.match(line)
            if item and item["peer"].startswith(_NOT_OURS) and " to " not in item["peer"]:
                found[section, OURS, item["peer"]] = _ratio(item)
    return found


def last_ratios(files: Iterable[Path]) -> dict[Key, tuple[str, Ratio]]:
    """Return the newest ratio of every pair that dated results hold, with the name of its file."""
    known: dict[Key, tuple[str, Ratio]] = {}
    for file in sorted(files):
        known |= {key: (file.stem, ratio) for key, ratio in read_ratios(file.read_text()).items()}
    return known


def regressions(text: str, files: Iterable[Path]) -> Iterator[str]:
    """Say in a sentence each what is slower than the newest of some dated results, by more than noise."""
    known = last_ratios(files)
    for (section, system, peer), new in read_ratios(text).items():
        when, old = known.get((section, system, peer), ("", new))
        if new.high < old.low and new.value < (1 - TOLERANCE) * old.value:
            yield f"{section}: {system} is {new} of {peer}, and was {old} in {when}."


def earlier(directory: Path, date: str) -> list[Path]:
    """List the dated results of a directory from before a date (``YYYY-MM-DD``)."""
    return [file for file in directory.glob("*.md") if _DATED.match(file.stem) and file.stem[:10] < date]


def compare(text: str, directory: Path, date: str) -> None:
    """Compare results with those of earlier dates in a directory.

    Raises:
        SystemExit: With code 1 where something is slower; stderr says what.
    """
    slower = [*regressions(text, earlier(directory, date))]
    sys.stderr.write("".join(f"regression: {sentence}\n" for sentence in slower))
    if slower:
        raise SystemExit(1)


def _ratio(match: re.Match[str]) -> Ratio:
    return Ratio(*(float(match[name]) for name in ("value", "low", "high")))
