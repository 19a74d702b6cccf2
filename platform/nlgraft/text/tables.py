"""Text in columns: CSV, TSV and JSON lines, plain or gzip, UTF-8."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError, nearest
from nlgraft.text.files import open_file, unreadable
from nlgraft.text.hub import as_line

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = ".jsonl"
_MAX_CELL = 1 << 30
"""Characters; a longer cell is taken for a quotation mark that was never closed."""


def table_suffix(path: str) -> str | None:
    """Return ``.csv``, ``.tsv`` or ``.jsonl`` if a file's name says that it holds a table, ``.gz`` or not."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in (*DELIMITERS, JSON_LINES) else None


def read_table(
    path: str, columns: Mapping[str, str], max_line_chars: int
) -> tuple[dict[str, list[str]], int]:
    """Read columns of a table; line feeds inside a cell become spaces, since an example is a line.

    CSV may be quoted, TSV is taken as it is. The first row holds the names of the columns, unless all columns
    that are asked for are numbers from 1. Of JSON lines a column is a key; a dot reaches inside.

    Args:
        path: The file; its name ends in .csv, .tsv or .jsonl, with or without .gz.
        columns: Column by role.
        max_line_chars: Longer cells are truncated and counted.

    Returns:
        Lines by role, and the number of truncated ones.

    Raises:
        DataError: The file is missing, broken, empty or no table, or a row lacks a column.
    """
    suffix = table_suffix(path)
    if suffix is None:
        raise DataError(f"{path}: a table ends in .csv, .tsv or .jsonl (or these with .gz); rename the file")
    read = _json_cells if suffix == JSON_LINES else _csv_cells
    cells: list[list[str]] = []
    try:
        with open_file(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            cells = [*read(text, path, [*columns.values()])]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); convert it, e.g. with iconv -t UTF-8") from error
    except (csv.Error, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as {suffix[1:]} ({error})") from error
    except OSError as error:
        raise DataError(unreadable(path, error)) from error
    if not cells:
        raise DataError(f"{path}: no rows; give a table with a row per example")
    num_cut = sum(len(cell) > max_line_chars for row in cells for cell in row)
    return {
        role: [row[index][:max_line_chars] for row in cells] for index, role in enumerate(columns)
    }, num_cut


def _csv_cells(text: io.TextIOWrapper, path: str, columns: list[str]) -> Iterator[list[str]]:
    delimiter = DELIMITERS[table_suffix(path) or ".csv"]
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    csv.field_size_limit(_MAX_CELL)  # the module's own, 131,072 characters, is less than a long document has
    rows = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
    if all(column.isdigit() and int(column) > 0 for column in columns):
        places = [int(column) - 1 for column in columns]
    else:
        header = next(rows, [])
        for column in columns:
            if column not in header:
                raise DataError(f"{path}: no column {column!r} in its first row. {nearest(column, header)}")
            if (number := header.count(column)) > 1:
                raise DataError(f"{path}: {number} columns are named {column!r}; rename those not meant")
        places = [header.index(column) for column in columns]
    for row in rows:
        if not row:
            continue
        where = f"{path}, line {rows.line_num}"
        if max(places) >= len(row):
            raise DataError(f"{where}: {len(row)} columns, {max(places) + 1} are needed")
        yield [as_line(row[place], where=where) for place in places]


def _json_cells(text: io.TextIOWrapper, path: str, columns: list[str]) -> Iterator[list[str]]:
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: not JSON ({error}); a file of JSON lines has an object per line"
            ) from error
        yield [as_line(row, column.split("."), where=where) for column in columns]
