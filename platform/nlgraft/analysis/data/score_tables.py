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
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nlgraft.basics.errors import DataError, did_you_mean, nearest
from nlgraft.basics.wording import grouped, name_some
from nlgraft.text.files import read_json, read_lines, without_compression

_MAX_CHARS = 10_000_000
_MOST_PROBLEMS = 12
_INFINITE = 1.79e308
"""MLflow's databases hold a little more in the place of infinity."""
_DELIMITERS = "\t;,|"
_ROLES = {
    name: role
    for role, names in {
        "system": ("system", "model", "arm", "method", "sys", "model_name"),
        "seed": ("seed", "random_seed", "run", "replicate"),
        "item": ("item", "segment", "sample", "doc_id", "id", "example", "seg_id", "segment_id", "sample_id"),
        "metric": ("metric", "measure", "metric_name"),
        "value": ("value", "score", "result"),
    }.items()
    for name in names
}
"""What columns hold, by their names in small letters."""
_SAMPLES = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT.*\.jsonl")

Row = tuple[str, dict[str, Any]]
"""File and line, and values by column."""


class Score(NamedTuple):
    """One score.

    Attributes:
        where: File and line, or run.
        system: Name of the system.
        seed: Name of the run of the system.
        item: Name of the item; empty for a score of a whole run.
        metric: Name of the metric.
        value: The score, finite; what stands in its place otherwise.
    """

    where: str
    system: str
    seed: str
    item: str
    metric: str
    value: float | str


Runs = dict[tuple[str, str], dict[str, Score]]
"""Scores by item, by system and seed."""


@dataclass
class ScoreTable:
    """Scores from any number of files or runs.

    Attributes:
        metrics: What is to be compared; the first also names scores whose file names no metric, and ``acc``
            stands for all ``TASK/acc``.
        scores: The scores.
        is_up: Which way is better, by metric, where a file says it.
        notes: What was left out, or read in a way that may surprise.
        problems: What cannot be read.
        misspelt: Columns whose names are nearly those of columns that are not there.
    """

    metrics: Sequence[str] = ()
    scores: list[Score] = field(default_factory=list)
    is_up: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    misspelt: list[str] = field(default_factory=list)
    _sources: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def add(
        self,
        source: str,
        name: str,
        rows: Sequence[Row],
    ) -> None:
        """Take rows that are long, or have a column a metric, or a column a system.

        Sources of one system are its seeds, unless they name seeds.

        Args:
            source: Where they are from.
            name: Their system; empty where the rows name theirs.
            rows: The rows. A score that is empty or None is missing, which is for the pairing to say.
        """
        columns = dict.fromkeys(column for _, row in rows for column in row)
        # Of several columns that hold the same the first counts.
        roles = {_ROLES[column.lower()]: column for column in reversed(columns) if column.lower() in _ROLES}
        # Beside other metrics one may be called score, as a column of values is.
        chosen = set() if "metric" in roles else {*self.metrics}
        others = [column for column in columns if column.lower() not in _ROLES or column in chosen]
        scored = [
            column
            for column in others
            if column and any(_number(row.get(column)) is not None for _, row in rows)
        ]
        is_long = "value" in roles and not chosen.intersection(others)
        if is_long:
            scored = [roles["value"]]
        free = [name for name, role in _ROLES.items() if role not in roles]
        for column in others:
            if hint := did_you_mean(column.lower(), free):
                self.misspelt.append(f"{source}, column {column!r}: {hint}")
        if left_out := [repr(column) for column in others if column not in scored]:
            self.notes.append(f"{source}: not read: {', '.join(left_out)}")
        are_systems = not (is_long or name or "system" in roles)
        if are_systems and scored:
            self.notes.append(f"{source}: no column names systems, so each is one: {', '.join(scored)}")
        num_before = len(self.scores)
        for where, row in rows:
            system, seed, item, metric = (
                _text(row.get(roles[role]) if role in roles else None) for role in Score._fields[1:5]
            )
            system = name or system or Path(source).stem
            metric = metric or next(iter(self.metrics), "score")
            for column in scored:
                value = row.get(column)
                if not _text(value):
                    continue
                if are_systems:
                    system = column
                elif not is_long:
                    metric = column
                sources = self._sources.setdefault((system, metric), {})
                source_number = sources.setdefault(source, len(sources) + 1)
                number = _number(value)
                shown = repr(value) if number is None or not abs(number) < _INFINITE else number
                self.scores.append(Score(where, system, seed or str(source_number), item, metric, shown))
        if len(self.scores) == num_before:
            self.problems.append(
                f"{source}: no scores under {', '.join(columns)}; columns are system, seed, item, metric and "
                "value, or one a system, or system and one a metric"
            )

    def runs(self) -> dict[str, Runs]:
        """Gather the scores by the metrics that are compared; of one metric alone if none was named.

        Raises:
            DataError: All that cannot be read or, of these metrics, comes twice or is no metric.
        """
        names = list(dict.fromkeys(score.metric for score in self.scores))
        problems = [*self.problems]
        if len(names) > 1 and not self.metrics:
            problems.append(f"{len(names)} metrics: choose by --metric. {nearest('', names)}")
            names = []
        runs_of: dict[str, Runs] = {metric: {} for metric in self.metrics or names}
        repeated: list[str] = []
        for score in self.scores:
            for metric in endings(score.metric) & runs_of.keys():
                run = runs_of[metric].setdefault((score.system, score.seed), {})
                earlier = run.setdefault(score.item, score)
                if isinstance(score.value, str):
                    problems.append(f"{score.where}: {score.metric} {score.value}; write a finite number")
                elif earlier.metric != score.metric:
                    several = f"several metrics end in /{metric}; name one of them by --metric"
                    problems.append(f"{score.where}: {several}")
                elif earlier is not score:
                    named = zip(Score._fields[1:5], score[1:5], strict=True)
                    scored = ", ".join(f"{role} {label}" for role, label in named if label)
                    second = f"a second score of {scored}, beside that of {earlier.where}"
                    repeated.append(f"{score.where}: {second}")
        if repeated and self.misspelt:
            # The names of the columns explain them all.
            problems, repeated, self.notes = [*self.misspelt, *problems], repeated[:1], []
        parts = (problem.partition(": ") for problem in [*problems, *repeated])
        places = grouped((what, where) for where, _, what in parts)
        lines = [
            f"{where}: {what}{f' (and {len(more):,} more like it)' if more else ''}"
            for what, (where, *more) in places.items()
        ] or [f"no metric {name!r}. {nearest(name, names)}" for name, runs in runs_of.items() if not runs]
        if lines:
            raise DataError("\n".join([name_some(lines, _MOST_PROBLEMS, "\n"), *self.notes]))
        return runs_of


def endings(metric: str) -> set[str]:
    """Return the names by which a metric is chosen: ``TASK/acc`` by ``acc``, too."""
    return {metric, metric.rpartition("/")[2]}


def read_scores(sources: Sequence[str], metrics: Sequence[str] = ()) -> ScoreTable:
    """Read files and directories of scores, with all problems of all files for `ScoreTable.runs`.

    Args:
        sources: Paths, or ``SYSTEM=PATH``. The files of one system are its seeds, unless they name seeds.
        metrics: What is to be compared, as in `ScoreTable`.
    """
    table = ScoreTable(metrics)
    for source in sources:
        # The name of a file may hold the sign, too.
        name, _, path = ("", "", source) if Path(source).exists() else source.rpartition("=")
        num_problems = len(table.problems)
        try:
            rows = list(_rows(path, table))
            if rows or len(table.problems) == num_problems:
                table.add(path, name, rows)
        except DataError as error:
            table.problems.append(str(error))
        except (AttributeError, KeyError, TypeError) as error:
            # JSON of any other shape ends here.
            table.problems.append(f"{path}: neither rows nor a file of COMET, HELM or lm_eval ({error!r})")
    return table


def _rows(path: str, table: ScoreTable) -> Iterator[Row]:
    if Path(path).is_dir():
        yield from _samples(Path(path), table)
        return
    lines = read_lines(path, _MAX_CHARS).lines
    if without_compression(path).endswith((".json", ".jsonl")):
        rows = _json_rows(path, lines, table)
    elif _number(lines[0]) is None:
        rows = _table(path, lines, table)
    else:
        rows = ((f"{path}, line {n}", {"item": n, "value": line}) for n, line in enumerate(lines, 1))
    for where, row in rows:
        yield from _helm(where, row) if "stats" in row else [(where, row)]


def _json_rows(
    path: str,
    lines: Sequence[str],
    table: ScoreTable,
) -> Iterator[Row]:
    """Read a row a line, or all lines as a list of rows or a file of COMET."""
    has_rows = without_compression(path).endswith(".jsonl")
    for number, text in enumerate(lines if has_rows else ["\n".join(lines)], 1):
        where = f"{path}, line {number}" if has_rows else path
        try:
            document = json.loads(text or "[]")
        except ValueError as error:
            table.problems.append(f"{where}: no JSON ({error})")
            continue
        if has_rows:
            yield from [(where, document)] if document else []
        elif isinstance(document, dict):
            yield from _comet(path, document)
        else:
            yield from ((f"{path}, entry {entry}", row) for entry, row in enumerate(document, 1))


def _comet(path: str, document: dict[str, Any]) -> Iterator[Row]:
    for system, segments in document.items():
        for item, segment in enumerate(segments):
            score = {"system": system, "item": item, "metric": "COMET", "value": segment["COMET"]}
            yield f"{path}, {system}, segment {item}", score


def _helm(where: str, instance: dict[str, Any]) -> Iterator[Row]:
    changed = instance.get("perturbation", {}).get("name")
    item = f"{instance['instance_id']}{f'/{changed}' if changed else ''}"
    for stat in instance["stats"]:
        score = {
            "seed": instance["train_trial_index"],
            "item": item,
            "metric": stat["name"]["name"],
            # Where nothing was counted there is no mean.
            "value": stat.get("mean"),
        }
        yield where, score


def _samples(directory: Path, table: ScoreTable) -> Iterator[Row]:
    """Read the samples of lm-evaluation-harness below a directory: metrics ``TASK/METRIC``."""
    files = [file for file in sorted(directory.rglob("*")) if _SAMPLES.fullmatch(file.name)]
    if not files:
        raise DataError(f"{directory}: no samples_TASK_DATE.jsonl of lm_eval --log_samples")
    for file in files:
        task = _SAMPLES.sub(r"\1", file.name)
        for results in sorted(file.parent.glob("results_*.json")):
            directions = read_json(results).get("higher_is_better", {}).get(task, {})
            table.is_up |= {f"{task}/{metric}": is_up for metric, is_up in directions.items()}
        for where, sample in _json_rows(str(file), read_lines(str(file), _MAX_CHARS).lines, table):
            for metric in sample["metrics"]:
                # As lm_eval calls it in its results, but for the filter that does nothing.
                name = f"{task}/{metric},{sample['filter']}".removesuffix(",none")
                score = {
                    "system": file.parent.name,
                    "item": f"{task}/{sample['doc_id']}",
                    "metric": name,
                    "value": sample[metric],
                }
                # Of perplexities a document has a sum and a length.
                if _number(sample[metric]) is not None:
                    yield where, score


def _table(
    path: str,
    lines: Sequence[str],
    table: ScoreTable,
) -> Iterator[Row]:
    """Read a table with a header, by the separator that gives it the most columns."""
    delimiter = max(_DELIMITERS, key=lambda sign: len(next(csv.reader(lines[:1], delimiter=sign))))
    cells = csv.reader(lines, delimiter=delimiter)
    header = [title.strip() for title in next(cells)]
    if len({*header}) < len(header):
        table.problems.append(f"{path}, line 1: columns of one name")
    # Where no number has a point, commas are the sign of decimals, not of thousands.
    has_commas = delimiter != "," and not any(re.search(r"\d\.\d", line) for line in lines)
    example = ""
    for row in cells:
        where = f"{path}, line {cells.line_num}"
        if not any(map(str.strip, row)):
            continue
        if len(row) != len(header):
            hint = f"; quote a value that holds a {delimiter!r}, and write decimals with a point"
            wrong = f"{where}: {len(row)} columns, where line 1 has {len(header)}"
            table.problems.append(wrong + hint * (len(row) > len(header)))
            continue
        for place, text in enumerate(row):
            if has_commas and re.fullmatch(r"\s*[-+]?\d*,\d+\s*", text):
                row[place], example = text.replace(",", "."), text.strip()
        yield where, dict(zip(header, row, strict=False))
    if example:
        table.notes.append(f"{path}: {example} is read as {example.replace(',', '.')}")


def _text(name: Any) -> str:
    return "" if name is None else str(name).strip()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return {"true": 1.0, "false": 0.0}.get(_text(value).lower())
