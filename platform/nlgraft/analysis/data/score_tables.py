"""Scores that others computed: tables, and files of evaluation tools, read as one score a row.

| file | what is read | written by |
|---|---|---|
| .csv, .tsv, other text with a header | long, or a column a system, or a column a metric | anybody |
| text without a header | a number a line; sentence scores | anybody; ``sacrebleu -sl``, ``comet-score`` |
| .json | objects by file of hypotheses | ``comet-score --to_json`` |
| .json, .jsonl | instances with their ``stats`` | HELM: ``per_instance_stats.json`` |
| .jsonl | an object a line, as a row of a table | anybody |
| directory | ``samples_*.jsonl``, ``results_*.json`` | ``lm_eval --log_samples`` since 0.4.8 |
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, read_lines

_MAX_CHARS = 10_000_000
_MOST_PROBLEMS = 12
_DELIMITERS = "\t;,|"
_SYNONYMS = {
    "system": ("system", "model", "arm", "method", "sys", "model_name"),
    "seed": ("seed", "random_seed", "run", "replicate"),
    "item": ("item", "segment", "sample", "doc_id", "id", "example", "seg_id", "segment_id", "sample_id"),
    "metric": ("metric", "measure", "metric_name"),
    "value": ("value", "score", "result"),
}
"""Names of columns, in any case, by what they hold."""
_LINES = (
    re.compile(r"(?P<value>[-+]?\.?\d\S*)"),
    re.compile(r"(?P<system>.+)\tSegment (?P<item>\d+)\tscore: (?P<value>\S+)"),
    re.compile(r"(?P<metric>[^\s|=]+)\|\S+ = (?P<value>\S+).*"),
)
"""Lines of files without a header: a number, COMET's and sacreBLEU's."""
_WHOLE_SYSTEM = re.compile(r".+\tscore: \S+")
_SAMPLES = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT.*\.jsonl")

Record = tuple[str, Mapping[str, Any]]
"""File and line, and values by column."""


class Score(NamedTuple):
    """One score.

    Attributes:
        where: File and line, or run.
        system: Name of the system.
        seed: Name of the run of the system.
        item: Name of the item; empty for a score of a whole run.
        metric: Name of the metric.
        value: The score, finite.
    """

    where: str
    system: str
    seed: str
    item: str
    metric: str
    value: float


@dataclass
class ScoreTable:
    """Scores from any number of files or runs.

    Attributes:
        metric: Name of scores whose file names no metric.
        scores: The scores.
        is_up: Which way is better, by metric, where a file says it.
        notes: What was left out, or read in a way that may surprise.
        problems: What cannot be read.
    """

    metric: str = "score"
    scores: list[Score] = field(default_factory=list)
    is_up: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, where: str, system: Any, seed: Any, item: Any, metric: Any, value: Any) -> None:
        """Take a score, or note what is wrong with it."""
        system, seed, item, metric = (
            "" if name is None else str(name).strip() for name in (system, seed, item, metric)
        )
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            self.problems.append(f"{where}: {metric or 'value'} {value!r}; write a finite number")
        elif not system:
            self.problems.append(f"{where}: no name of a system")
        else:
            self.scores.append(Score(where, system, seed, item, metric or self.metric, number))

    def check(self) -> None:
        """Refuse what could not be read, and second scores of the same.

        Raises:
            DataError: All problems.
        """
        first: dict[tuple[str, ...], str] = {}
        for where, *names, _ in self.scores:
            if (earlier := first.setdefault(tuple(names), where)) != where:
                roles = zip(_SYNONYMS, names, strict=False)
                scored = ", ".join(f"{role} {name}" for role, name in roles if name)
                self.problems.append(f"{where}: a second score of {scored}, beside that of {earlier}")
        num_more = len(self.problems) - _MOST_PROBLEMS
        if self.problems:
            more = [f"and {num_more} more problems"] if num_more > 0 else []
            raise DataError("\n".join(self.problems[:_MOST_PROBLEMS] + more))


def read_scores(sources: Sequence[str], metric: str = "score") -> ScoreTable:
    """Read files and directories of scores.

    Args:
        sources: Paths, or ``SYSTEM=PATH``. The files of one system are its seeds, unless they name seeds.
        metric: Name of scores whose file names no metric.

    Raises:
        DataError: All problems of all files.
    """
    table = ScoreTable(metric)
    num_files: dict[tuple[str, str], int] = {}
    for source in sources:
        # The name of a file may hold the sign, too.
        name, _, path = ("", "", source) if Path(source).exists() else source.partition("=")
        start = len(table.scores)
        try:
            _read(path or source, name, table)
        except DataError as error:
            table.problems.append(str(error))
        unnamed = {(score.system, score.metric) for score in table.scores[start:] if not score.seed}
        num_files |= {run: num_files.get(run, 0) + 1 for run in unnamed}
        for index, score in enumerate(table.scores[start:], start):
            if not score.seed:
                table.scores[index] = score._replace(seed=str(num_files[score.system, score.metric]))
    table.check()
    return table


def _read(path: str, name: str, table: ScoreTable) -> None:
    if Path(path).is_dir():
        _read_samples(Path(path), name, table)
        return
    lines = read_lines(path, _MAX_CHARS).lines
    if path.endswith(".json"):
        document = _parsed("\n".join(lines), path, table)
        if isinstance(document, dict):
            _read_comet(path, name, document, table)
        elif isinstance(document, list):
            entries = [(f"{path}, entry {number}", entry) for number, entry in enumerate(document, 1)]
            _read_records(path, name, entries, table)
    elif path.removesuffix(".gz").endswith(".jsonl"):
        places = ((f"{path}, line {number}", line) for number, line in enumerate(lines, 1))
        _read_records(path, name, [(where, _parsed(line, where, table)) for where, line in places], table)
    elif any(pattern.fullmatch(lines[0].strip()) for pattern in _LINES):
        _read_plain(path, name, lines, table)
    else:
        _read_records(path, name, list(_rows(path, lines, table)), table)


def _parsed(text: str, where: str, table: ScoreTable) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        table.problems.append(f"{where}: no JSON ({error})")
        return {}


def _rows(path: str, lines: Sequence[str], table: ScoreTable) -> Iterator[Record]:
    """Read a table with a header, by the separator that gives it the most columns."""
    delimiter = max(_DELIMITERS, key=lambda sign: len(next(csv.reader(lines[:1], delimiter=sign))))
    rows = csv.reader(lines, delimiter=delimiter)
    header = [title.strip() for title in next(rows)]
    if twice := {title for title in header if title and header.count(title) > 1}:
        table.problems.append(f"{path}, line 1: two columns {', '.join(sorted(twice))}")
    # Where no number has a point, commas are the sign of decimals, not of thousands.
    has_commas = delimiter != "," and not any(re.search(r"\d\.\d", line) for line in lines)
    example = ""
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        if row and len(row) != len(header):
            table.problems.append(f"{where}: {len(row)} columns, where line 1 has {len(header)}")
            continue
        for place, text in enumerate(row):
            if has_commas and re.fullmatch(r"\s*[-+]?\d*,\d+\s*", text):
                row[place], example = text.replace(",", "."), text.strip()
        yield where, dict(zip(header, row, strict=False))
    if example:
        table.notes.append(f"{path}: {example} is read as {example.replace(',', '.')}")


def _read_plain(path: str, name: str, lines: Sequence[str], table: ScoreTable) -> None:
    for number, line in enumerate(map(str.strip, lines), 1):
        where = f"{path}, line {number}"
        if match := next(filter(None, (pattern.fullmatch(line) for pattern in _LINES)), None):
            parts = match.groupdict()
            metric = "COMET" if "system" in parts else parts.get("metric")
            system = name or parts.get("system") or Path(path).stem
            table.add(where, system, None, parts.get("item", number), metric, parts["value"])
        elif not _WHOLE_SYSTEM.fullmatch(line):
            table.problems.append(f"{where}: {line[:60]!r}; write a number, or a header in line 1")


def _read_comet(path: str, name: str, document: Mapping[str, Any], table: ScoreTable) -> None:
    for system, segments in document.items():
        for item, segment in enumerate(segments if isinstance(segments, list) else [{}]):
            where = f"{path}, {system}, segment {item}"
            value = segment.get("COMET") if isinstance(segment, dict) else None
            table.add(where, name or system, None, item, "COMET", value)


def _read_records(path: str, name: str, records: Sequence[tuple[str, Any]], table: ScoreTable) -> None:
    """Read objects, or rows of a table: HELM's, long, with a column a metric, or with a column a system."""
    stem = name or Path(path).stem
    rows: list[Record] = []
    for where, record in records:
        if not isinstance(record, dict):
            table.problems.append(f"{where}: {str(record)[:60]!r}; write an object of names and values")
        elif "stats" in record and "instance_id" in record:
            changed = (record.get("perturbation") or {}).get("name")
            item = f"{record['instance_id']}{f'/{changed}' if changed else ''}"
            for stat in record["stats"]:
                # HELM leaves a mean out where it counted nothing.
                if "mean" in stat:
                    seed = record.get("train_trial_index")
                    table.add(where, stem, seed, item, stat["name"]["name"], stat["mean"])
        else:
            rows.append((where, record))
    if not rows:
        return
    columns = dict.fromkeys(column for _, row in rows for column in row)
    roles = {
        role: column
        for role, synonyms in _SYNONYMS.items()
        for synonym in reversed(synonyms)
        for column in columns
        if column.lower() == synonym
    }
    named = {synonym for synonyms in _SYNONYMS.values() for synonym in synonyms}
    values = [
        column
        for column in columns
        if column and column.lower() not in named and any(_is_number(row.get(column)) for _, row in rows)
    ]
    if "value" in roles:
        values = [roles["value"]]
    if left_out := [column for column in columns if column not in (*values, *roles.values())]:
        table.notes.append(f"{path}: not read: {', '.join(map(repr, left_out))}")
    if not values:
        table.problems.append(
            f"{path}: no column of scores among {', '.join(columns)}; columns are system, seed, item, metric "
            "and value, or one a system, or system and one a metric"
        )
    has_system = "system" in roles or bool(name)
    for where, row in rows:
        system, seed, item, metric = (row.get(roles.get(role, ""), "") for role in list(_SYNONYMS)[:4])
        for column in values:
            # What is not there is missing; the pairing says so.
            if (value := row.get(column)) in (None, ""):
                continue
            if "value" in roles:
                table.add(where, system or stem, seed, item, metric, value)
            elif has_system:
                table.add(where, system or name, seed, item, column, value)
            else:
                table.add(where, column, seed, item, metric, value)


def _is_number(value: Any) -> bool:
    try:
        return float(value) is not None
    except (TypeError, ValueError):
        return False


def _read_samples(directory: Path, name: str, table: ScoreTable) -> None:
    """Read the samples of lm-evaluation-harness below a directory: metrics ``TASK/METRIC``."""
    files = [file for file in sorted(directory.rglob("*")) if _SAMPLES.fullmatch(file.name)]
    if not files:
        table.problems.append(f"{directory}: no samples_TASK_DATE.jsonl of lm_eval --log_samples")
    for file in files:
        task = _SAMPLES.sub(r"\1", file.name)
        for results in sorted(file.parent.glob("results_*.json")):
            directions = (read_json(results).get("higher_is_better") or {}).get(task) or {}
            table.is_up |= {f"{task}/{metric}": is_up for metric, is_up in directions.items()}
        for number, line in enumerate(read_lines(str(file), _MAX_CHARS).lines, 1):
            where = f"{file}, line {number}"
            sample = _parsed(line, where, table)
            if not {"doc_id", "filter", "metrics"} <= {*sample}:
                table.problems.append(f"{where}: no doc_id, filter or metrics, as lm_eval writes since 0.4.8")
                continue
            for metric in sample["metrics"]:
                if _is_number(value := sample.get(metric)):
                    # As lm_eval calls it in its results, but for the filter that does nothing.
                    full_name = f"{task}/{metric},{sample['filter']}".removesuffix(",none")
                    item = f"{task}/{sample['doc_id']}"
                    table.add(where, name or file.parent.name, None, item, full_name, value)
                else:
                    note = f"{file.name}: {metric} is no number for each document, and is not read"
                    table.notes += [note] if note not in table.notes else []
