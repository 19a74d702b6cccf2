"""Numbers, tables and templates as text: plain, Markdown and LaTeX.

tabulate would replace some ten lines of this module; it escapes neither captions and notes nor ``± − †``, and
pandas' Styler not even ``<``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from nlgraft.basics.wording import count, duration, inert_markdown, name_some

if TYPE_CHECKING:
    import jinja2

NOTHING = "–"
NO_BREAK = "\u00a0"
_MINUS = "−"
_COLUMN_GAP = 3
LINE = 120
"""Characters of a LaTeX table's row that fit into two columns of a page in small type."""
_PARAGRAPH, _WORDS = 40, 15
"""Longest text, in characters, that does not wrap: in a LaTeX table that fits, and in one that does not."""
_LONGEST = 80
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "×": r"$\times$",
        "•": r"$\bullet$",
        "<": "$<$",
        ">": "$>$",
        "|": r"\textbar{}\allowbreak{}",  # signatures are long words
        '"': r"{\char34}",
        "…": r"\ldots{}",
        "†": r"\textsuperscript{\dag}",
        NO_BREAK: "~",
    }
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        text: Its text.
        kind: ``better``, ``worse``, ``open``, a trial state or a verdict, by which it may be coloured.
        hint: Further text, shown on hovering.
    """

    text: str
    kind: str = ""
    hint: str = ""


Row = dict[str, Entry | str | int | None]
"""Entries by the titles of their columns; None for a dash."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: Column titles.
        rows: As long as the header each.
        num_text: Number of columns, from the left, that hold text; the others hold numbers.
        notes: Sentences to print below it.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    num_text: int = 1
    notes: tuple[str, ...] = ()

    def parts(self, num_chars: int) -> list[Table]:
        """Distribute columns over tables of at most so many characters; each begins with the first column."""
        widths = [max(map(len, column)) + _COLUMN_GAP for column in zip(*self.plain(), strict=True)]
        groups = column_groups(widths, num_chars)
        return [
            replace(
                self,
                header=tuple(self.header[index] for index in group),
                rows=tuple(tuple(row[index] for index in group) for row in self.rows),
                notes=self.notes if group is groups[-1] else (),
            )
            for group in groups
        ]

    def plain(self) -> list[list[str]]:
        """Return the texts for a terminal, the header first."""
        rows = [list(self.header), *([entry.text for entry in row] for row in self.rows)]
        return [[text.replace(NO_BREAK, " ") for text in row] for row in rows]


def column_groups(widths: Sequence[int], most: int) -> list[list[int]]:
    """Distribute columns, their gaps included, over parts of a width; each part begins with the first."""
    groups, used = [[0]], widths[0]
    for index, width in enumerate(widths[1:], start=1):
        if used + width > most and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(index)
        used += width
    return groups


def make_table(
    rows: Iterable[Mapping[str, Entry | str | int | None]],
    num_text: int = 1,
    notes: Sequence[str] = (),
) -> Table:
    """Build a table from rows; columns are in the order of their first entry, what a row lacks is a dash."""
    rows = list(rows)
    header = tuple(dict.fromkeys(chain.from_iterable(rows)))
    return Table(
        header,
        tuple(tuple(_entry(row.get(title)) for title in header) for row in rows),
        num_text,
        tuple(notes),
    )


def _entry(value: Entry | str | int | None) -> Entry:
    return value if isinstance(value, Entry) else Entry(NOTHING if value is None else str(value))


def num_decimals(values: Iterable[float | None]) -> int:
    """Choose the decimals of a column, 0 to 4: about four significant digits of its largest value."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    for decimals, limit in enumerate((1000.0, 100.0, 5.0, 0.5)):
        if largest >= limit:
            return decimals
    return 4


def number(
    value: float | None,
    decimals: int,
    *,
    is_signed: bool = False,
) -> str:
    """Format a number with a typographic minus, and a plus if ``is_signed``; None becomes a dash."""
    if value is None:
        return NOTHING
    text = f"{value:{'+' if is_signed else ''},.{decimals}f}"
    # What rounds to zero has no sign: "−0.0" would claim a direction.
    if not any(digit in text for digit in "123456789"):
        return f"{0:.{decimals}f}"
    return text.replace("-", _MINUS)


def rounded(value: float | None, *, is_signed: bool = False) -> str:
    """Format a number that stands alone, see `num_decimals`."""
    return number(value, num_decimals([value]), is_signed=is_signed)


def interval(
    ends: tuple[float, float] | None,
    decimals: int,
    *,
    is_signed: bool = True,
) -> str:
    """Format an interval so that no line breaks inside its brackets; None becomes a dash."""
    if ends is None:
        return NOTHING
    low, high = (number(end, decimals, is_signed=is_signed) for end in ends)
    return f"[{low},{NO_BREAK}{high}]"


def probability(p: float | None) -> str:
    """Format a p-value with three decimals."""
    if p is None:
        return NOTHING
    return f"<{NO_BREAK}0.001" if p < 0.0005 else f"{p:.3f}"


def to_markdown(table: Table) -> str:
    """Format a table as Markdown without a final newline, its notes as a list below."""
    rule = ["---" if column < table.num_text else "---:" for column in range(len(table.header))]
    lines = [table.header, rule, *([entry.text for entry in row] for row in table.rows)]
    cells = ([part.replace("|", r"\|").replace("\n", " ") for part in line] for line in lines)
    text = "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return text + ("\n\n" + "\n".join(f"- {note}" for note in table.notes) if table.notes else "")


def to_latex(table: Table, caption: str, label: str) -> str:
    """Format a table as a LaTeX ``table*`` environment, over all columns of a page; needs booktabs.

    Columns of long texts become paragraphs that share the width.
    """
    facts = {"table": table, "caption": caption, "label": label, "columns": _columns(table)}
    return template("table.tex.j2").render(facts)


def _columns(table: Table) -> str:
    lengths = [max(map(len, column)) for column in zip(*table.plain(), strict=True)]
    is_wide = sum(lengths) + _COLUMN_GAP * (len(lengths) - 1) > LINE
    longest = _WORDS if is_wide else _PARAGRAPH
    free = 1 - (sum(length for length in lengths if length <= longest) + _COLUMN_GAP * len(lengths)) / LINE
    shared = sum(min(length, _LONGEST) for length in lengths if length > longest)
    return "".join(
        f"p{{{free * min(length, _LONGEST) / shared:.2f}\\linewidth}}"
        if length > longest
        else "l"
        if index < table.num_text
        else "r"
        for index, length in enumerate(lengths)
    )


def escape_latex(text: str) -> str:
    """Make a text safe for LaTeX, also where it holds control characters; ends of lines become spaces."""
    printable = "".join(char if char.isprintable() or char == NO_BREAK else " " for char in text)
    return printable.translate(_LATEX)


def inert(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    is_formula = isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value)
    return "'" + value if is_formula else value


def slug(text: str) -> str:
    """Reduce a text to lower-case letters, digits and single hyphens, safe in a macro's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def unique_slugs(labels: Iterable[str]) -> dict[str, str]:
    """Reduce labels so that no two are alike."""
    slugs = {}
    for label in labels:
        short, taken = slug(label), set(slugs.values())
        suffixes = ["", *(f"-{index}" for index in range(2, len(slugs) + 2))]
        slugs[label] = next(short + suffix for suffix in suffixes if short + suffix not in taken)
    return slugs


_SIGNS_IN_LATEX: dict[str, Any] = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}
"""Signs of templates of LaTeX, which needs the usual ones itself."""


@cache
def template(name: str) -> jinja2.Template:
    """Load a template of this folder; what is put into it is escaped for HTML, Markdown or LaTeX."""
    import jinja2  # which Python's callers need not pay for

    kind = name.split(".")[1]
    escape = {"md": inert_markdown, "tex": escape_latex, "bib": escape_latex}.get(kind, str)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nlgraft.analysis.rendering"),
        autoescape=kind == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # All text that a template puts in is escaped, but for what it calls safe.
        finalize=None if kind == "html" else lambda value: escape(value) if type(value) is str else value,
        **(_SIGNS_IN_LATEX if escape is escape_latex else {}),
    )
    environment.filters["markdown"] = to_markdown
    helpers = (count, duration, name_some, number, num_decimals, probability, rounded, slug, to_latex)
    environment.globals.update({helper.__name__: helper for helper in helpers})
    return environment.get_template(name)


def sentences(name: str, facts: Mapping[str, Any]) -> list[str]:
    """Render a template that has a sentence or more in each line; empty lines are left out."""
    return [line for line in template(name).render(facts).split("\n") if line]
