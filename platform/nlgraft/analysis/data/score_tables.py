"""Scores that others computed: tables, and files of evaluation tools, read as one score a row.

| file | what is read | written by |
|---|---|---|
| .csv, .tsv, other text with a header | long, or a column a system, or a column a metric | anybody |
| text without a header | a number a line | anybody; ``sacrebleu --sentence-level --score-only`` |
| .json | segments by file of hypotheses | ``comet-score --to_json`` |
| .json, .jsonl | instances with their ``stats`` | HELM: ``per_instance_stats.json`` |
| .jsonl | an object a line, as a row of a table | anybody |
| directory | ``samples_*.jsonl``, ``results_*.json`` | ``lm_eval --log_samples`` since 0.4.8 |
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
_SAMPLES = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT.*\.jsonl")

Record = tuple[str, dict[str, Any]]
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
        """Take a score, or note what is wrong with it; names may be None."""
        names = ["" if name is None else str(name).strip() for name in (system, seed, item, metric)]
        system, seed, item, metric = names
        if not math.isfinite(_number(value)):
            self.problems.append(f"{where}: {metric or 'value'} {value!r}; write a finite number")
        elif not system:
            self.problems.append(f"{where}: no name of a system")
        else:
            self.scores.append(Score(where, system, seed, item, metric or self.metric, _number(value)))

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
        if num_more := len(self.problems[_MOST_PROBLEMS:]):
            self.problems[_MOST_PROBLEMS:] = [f"and {num_more} more problems"]
        if self.problems:
            raise DataError("\n".join(self.problems))


def read_scores(sources: Sequence[str], metric: str = "score") -> ScoreTable:
    """Read files and directories of scores.

    Args:
        sources: Paths, or ``SYSTEM=PATH``. The files of one system are its seeds, unless they name seeds.
        metric: Name of scores whose file names no metric.

    Raises:
        DataError: All problems of all files.
    """
    table = ScoreTable(metric)
    num_files: Counter[tuple[str, str]] = Counter()
    for source in sources:
        # The name of a file may hold the sign, too.
        name, _, path = ("", "", source) if Path(source).exists() else source.rpartition("=")
        start = len(table.scores)
        try:
            if Path(path).is_dir():
                _read_samples(Path(path), name, table)
            else:
                _read_records(path, name, list(_records(path, table)), table)
        except DataError as error:
            table.problems.append(str(error))
        except (AttributeError, KeyError, TypeError) as error:
            # JSON of any other shape ends here.
            table.problems.append(f"{path}: neither rows nor a file of COMET, HELM or lm_eval ({error!r})")
        if len(table.scores) == start and not table.problems:
            table.problems.append(f"{path}: no scores")
        num_files.update({(score.system, score.metric) for score in table.scores[start:]})
        table.scores[start:] = [
            score if score.seed else score._replace(seed=str(num_files[score.system, score.metric]))
            for score in table.scores[start:]
        ]
    table.check()
    return table


def _records(path: str, table: ScoreTable) -> Iterator[Record]:
    """Read a file as rows; those of COMET and HELM as those of a long table."""
    lines = read_lines(path, _MAX_CHARS).lines
    if path.endswith(".json"):
        document = _parsed("\n".join(lines), path, table)
        if isinstance(document, dict):
            for system, segments in document.items():
                for item, segment in enumerate(segments):
                    names = {"system": system, "item": item, "metric": "COMET"}
                    yield f"{path}, {system}, segment {item}", {**names, "value": segment.get("COMET")}
            return
        records = [(f"{path}, entry {number}", record) for number, record in enumerate(document, 1)]
    elif path.removesuffix(".gz").endswith(".jsonl"):
        places = [f"{path}, line {number}" for number in range(1, len(lines) + 1)]
        records = [(where, _parsed(line, where, table)) for where, line in zip(places, lines, strict=True)]
    elif not math.isnan(_number(lines[0])):
        for number, line in enumerate(lines, 1):
            yield f"{path}, line {number}", {"item": number, "value": line}
        return
    else:
        yield from _rows(path, lines, table)
        return
    for where, record in records:
        if "stats" not in record:
            yield where, record
            continue
        changed = record.get("perturbation", {}).get("name")
        item = f"{record['instance_id']}{f'/{changed}' if changed else ''}"
        for stat in record["stats"]:
            names = {"seed": record["train_trial_index"], "item": item, "metric": stat["name"]["name"]}
            yield where, {**names, "value": stat.get("mean")}


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
    if len({*header}) < len(header):
        table.problems.append(f"{path}, line 1: columns of one name")
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


def _read_records(path: str, name: str, records: Sequence[Record], table: ScoreTable) -> None:
    """Read the rows of a table that is long, or has a column a metric, or a column a system."""
    columns = dict.fromkeys(column for _, record in records for column in record)
    roles = {
        role: column
        for role, synonyms in _SYNONYMS.items()
        for column in reversed(columns)
        if column.lower() in synonyms
    }
    reserved = list(chain.from_iterable(_SYNONYMS.values()))
    scored = [
        column
        for column in columns
        if column and column.lower() not in reserved
        if not all(math.isnan(_number(record.get(column))) for _, record in records)
    ]
    if "value" in roles:
        scored = [roles["value"]]
    if left_out := [column for column in columns if column not in (*scored, *roles.values())]:
        table.notes.append(f"{path}: not read: {', '.join(map(repr, left_out))}")
    if not scored:
        table.problems.append(
            f"{path}: no column of scores among {', '.join(columns)}; columns are system, seed, item, metric "
            "and value, or one a system, or system and one a metric"
        )
    for where, record in records:
        system, seed, item, metric = (record.get(roles.get(role, "")) for role in list(_SYNONYMS)[:4])
        for column in scored:
            # What is not there is missing; the pairing says so.
            if (value := record.get(column)) in (None, ""):
                continue
            if "value" in roles:
                table.add(where, name or system or Path(path).stem, seed, item, metric, value)
            elif name or "system" in roles:
                table.add(where, name or system, seed, item, column, value)
            else:
                table.add(where, column, seed, item, metric, value)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


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
                if not math.isnan(_number(value := sample.get(metric))):
                    # As lm_eval calls it in its results, but for the filter that does nothing.
                    full_name = f"{task}/{metric},{sample['filter']}".removesuffix(",none")
                    item = f"{task}/{sample['doc_id']}"
                    table.add(where, name or file.parent.name, None, item, full_name, value)
                else:
                    note = f"{file.name}: {metric} is no number for each document, and is not read"
                    table.notes += [note] if note not in table.notes else []
