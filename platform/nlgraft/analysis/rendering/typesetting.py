"""Tables of text cells, and how Markdown and LaTeX set them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NOTHING = "–"
_MINUS = "−"
_LATEX_SPECIAL = {
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
    "<": "$<$",
    ">": "$>$",
    "†": r"\textsuperscript{\dag}",
    "α": r"$\alpha$",
}


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        text: What it says.
        kind: ``better``, ``worse``, ``open``, a trial state or a verdict: how it may be coloured.
        hint: More, for those who point at it.
    """

    text: str
    kind: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: Column titles.
        rows: As long as the header each.
        num_text: How many columns, from the left, hold text; the others hold numbers.
        notes: Sentences to print below it.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    num_text: int = 1
    notes: tuple[str, ...] = field(default=())

    def plain(self) -> list[list[str]]:
        """Give the texts, the header first."""
        return [list(self.header), *([entry.text for entry in row] for row in self.rows)]


def make_table(
    header: Sequence[str], rows: Iterable[Sequence[Entry | str]], num_text: int = 1, notes: Sequence[str] = ()
) -> Table:
    """Build a table from entries and plain texts.

    Args:
        header: Column titles.
        rows: Rows.
        num_text: Columns that hold text.
        notes: Sentences to print below it.

    Returns:
        The table.
    """
    full = tuple(tuple(one if isinstance(one, Entry) else Entry(one) for one in row) for row in rows)
    return Table(tuple(header), full, num_text, tuple(notes))


def num_decimals(values: Iterable[float | None]) -> int:
    """Choose how many decimals a column needs: about four significant digits of its largest value.

    Args:
        values: The column.

    Returns:
        0 to 4.
    """
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    for decimals, limit in enumerate((1000.0, 100.0, 5.0, 0.5)):
        if largest >= limit:
            return decimals
    return 4


def number(value: float | None, decimals: int, *, is_signed: bool = False) -> str:
    """Set a number.

    Args:
        value: The number; None becomes a dash.
        decimals: Digits after the point.
        is_signed: Whether a plus sign is wanted.

    Returns:
        Text with a real minus sign.
    """
    if value is None:
        return NOTHING
    text = f"{value:{'+' if is_signed else ''},.{decimals}f}"
    if not any(digit in text for digit in "123456789"):
        return f"{0:.{decimals}f}"
    return text.replace("-", _MINUS)


def probability(p: float | None) -> str:
    """Set a p-value with three decimals."""
    if p is None:
        return NOTHING
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def to_markdown(table: Table) -> str:
    """Set a table in Markdown.

    Args:
        table: The table.

    Returns:
        Lines without a final newline, the notes as a list below.
    """
    rule = ["---" if column < table.num_text else "---:" for column in range(len(table.header))]
    lines = [table.header, rule, *([entry.text for entry in row] for row in table.rows)]
    text = "\n".join("| " + " | ".join(part.replace("|", r"\|") for part in line) + " |" for line in lines)
    return text + ("\n\n" + "\n".join(f"- {note}" for note in table.notes) if table.notes else "")


def to_latex(table: Table, caption: str, label: str) -> str:
    """Set a table for a paper; needs the booktabs package.

    Args:
        table: The table.
        caption: Its caption.
        label: Its label.

    Returns:
        A ``table`` environment.
    """
    columns = "l" * table.num_text + "r" * (len(table.header) - table.num_text)
    lines = [" & ".join(escape_latex(part) for part in table.header) + r" \\"]
    rows = [" & ".join(escape_latex(entry.text) for entry in row) + r" \\" for row in table.rows]
    body = "\n".join([*lines, r"\midrule", *rows])
    notes = "\n".join(r"\par\footnotesize " + escape_latex(note) for note in table.notes)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\small\n\\caption{{{escape_latex(caption)}}}\n\\label{{{label}}}\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        f"{notes}\n\\end{{table}}\n"
    )


def escape_latex(text: str) -> str:
    """Make a text safe for LaTeX."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)
