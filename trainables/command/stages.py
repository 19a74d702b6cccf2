"""Running a command and reading the files of metrics that it writes."""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.basics.wording import duration
from nlgraft.evaluation.artifact import write_segments
from nlgraft.pipeline.execute import CURVES, METRICS, Curve
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import StageContext, TrialStopped
from nlgraft.text.files import expand, read_json, write_json
from trainables.command import guard
from trainables.command.config import ITEM, PLACEHOLDER, split_of
from trainables.command.graph import COMMAND, SELECT, CommandSettings, digest, files_of

LOG, SECONDS = "log.txt", "seconds.json"
WRITTEN, KEPT = "metrics", "kept.tar"
"""Of a command's artifact: folder of its files of metrics; archive of those that it keeps, of any kind, which
nlgraft packs and unpacks and never reads."""
_POLL_S, _PATIENCE_S = 0.2, 15.0
"""How often a command is looked at; the time that it gets to end after a signal."""
_TAIL_LINES, _TAIL_BYTES = 30, 8000
_COLUMNS = ("item", "metric", "value")
_SIGNALLED = 128
_NUM_NAMED = 8


class CommandFailed(NlgraftError):
    """A command ended with an error, or did not write what it should."""


def run(context: StageContext) -> None:
    """Run a command in a copy of the script's directory; keep its log, its metrics and what it should keep.

    Raises:
        CommandFailed: The script's files changed since the study was planned, or the command ended with an
            error or took too long, or a file of metrics or of ``keep`` is missing or malformed.
        TrialStopped: The reporter asked to stop.
    """
    settings, inputs = COMMAND.read(context)
    if context.world_size > 1:
        raise CommandFailed(
            "a command runs on one worker: give it resources.cpus_per_worker or gpus_per_worker, and start "
            "several processes there by torchrun --standalone --nproc-per-node"
        )
    work, needs = context.directory / "work", context.directory / "needs"
    _copy(context.locations["directory"], context.locations["patterns"], work, settings.code)
    texts = {name: str(value) for name, value in settings.values.items()}
    texts |= {f"data.{name}": str(expand(path)) for name, path in context.locations["data"].items()}
    for name, directory in inputs.needs.items():
        if (directory / KEPT).exists():
            with tarfile.open(directory / KEPT) as archive:
                archive.extractall(needs / name, filter="data")
            texts[f"needs.{name}"] = str((needs / name).absolute())
    texts |= {"seed": str(context.seed)}
    environment = {name: _filled(text, texts) for name, text in settings.environment.items()}
    started = time.perf_counter()
    curves = _execute(context, work, _words(settings, texts), environment)
    write_json(context.directory / SECONDS, {"command_s": time.perf_counter() - started})
    write_json(context.directory / CURVES, curves)
    read_scores(work, settings.metrics)
    for name in settings.metrics:
        (context.directory / WRITTEN / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / name, context.directory / WRITTEN / name)
    if settings.keep:
        with tarfile.open(context.directory / KEPT, "w", dereference=True) as archive:
            for name in _matching(work, settings.keep):
                archive.add(work / name, name)
    for scratch in (work, needs):
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(directory: str, patterns: Sequence[str], work: Path, planned: str) -> None:
    for name in files_of(directory, patterns):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(expand(str(Path(directory, name))), work / name)
    if digest(str(work), patterns) != planned:
        raise CommandFailed(f"{directory}: changed since the study was planned; run the study again")


def _words(settings: CommandSettings, texts: Mapping[str, str]) -> list[str]:
    """Fill in a command; words with a setting that has no value are left out."""
    sources = (settings.command, *settings.environment.values())
    named = {match[1] for text in sources for match in PLACEHOLDER.finditer(text)}
    words: list[str | None] = []
    for word in shlex.split(settings.command):
        if word != "{settings}":
            words.append(_filled(word, texts))
            continue
        for name, value in settings.values.items():
            if name not in named:
                parts = settings.setting.split()
                words += [p.replace("{name}", name).replace("{value}", str(value)) for p in parts]
    return [word for word in words if word is not None]


def _filled(text: str, texts: Mapping[str, str]) -> str | None:
    """Put in what names in braces stand for; None if one of them has no value."""
    names = [match[1] for match in PLACEHOLDER.finditer(text) if match[1] is not None]
    if not texts.keys() >= {*names}:
        return None
    return PLACEHOLDER.sub(lambda match: match[0][0] if match[1] is None else texts[match[1]], text)


def _execute(
    context: StageContext, work: Path, words: Sequence[str], environment: Mapping[str, str | None]
) -> dict[str, Curve]:
    """Run a command to its end and report its progress; return its learning curves."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    given = {name: value for name, value in environment.items() if value is not None}
    command = [sys.executable, "-I", guard.__file__, str(_PATIENCE_S), *words]
    limit_s, log = context.locations["limit_s"], context.directory / LOG
    progress = _Progress(context, [work / name for name in context.config["metrics"]])
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=work,
            # Python of the environment that runs nlgraft, and a log that shows what is written at once.
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **given},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                progress.report()
                if (reason := context.should_stop()) is not None:
                    raise TrialStopped(reason)
                if limit_s is not None and time.monotonic() - started > limit_s:
                    raise CommandFailed(f"took longer than its limit of {duration(limit_s)}{_tail(log)}")
        finally:
            # The guard ends the command, as it does if this process is killed.
            process.stdin.close()
            process.wait()
    if process.returncode:
        raise CommandFailed(f"{_status_text(process.returncode)}{_tail(log)}")
    progress.report()
    return progress.curves


def _status_text(status: int) -> str:
    if status <= _SIGNALLED:
        return f"ended with status {status}"
    name = signal.Signals(status - _SIGNALLED).name
    return f"was ended by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")


def _tail(log: Path) -> str:
    """The last line of a log, for messages of one line, and below that the last lines."""
    lines = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").split("\n")
    lines = [line for line in lines if line.strip()][-_TAIL_LINES:]
    return f"; it wrote last: {lines[-1].strip()}\n" + "\n".join(lines) if lines else "; it wrote nothing"


class _Progress:
    """Reports what a command adds to its files of JSON lines."""

    def __init__(self, context: StageContext, files: Sequence[Path]) -> None:
        self.curves: dict[str, Curve] = {}
        self._context = context
        self._names: Mapping[str, str] = context.locations["reported"]
        self._read = {path: 0 for path in files if path.suffix == ".jsonl"}

    def report(self) -> None:
        for path in self._read:
            for line in self._new_lines(path):
                step = line.get("step")
                values = {name: line[key] for key, name in self._names.items() if _is_finite(line.get(key))}
                if type(step) is int and values:
                    unix_ms = int(time.time() * 1000)
                    for name, value in values.items():
                        self.curves.setdefault(name, []).append([step, value, unix_ms])
                    self._context.report(step, values)

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read[path])
            # The last line may be half written.
            for line in iter(file.readline, b""):
                if not line.endswith(b"\n"):
                    return
                self._read[path] = file.tell()
                try:
                    values = json.loads(line)
                except ValueError:
                    continue  # told when the command has ended
                if isinstance(values, dict):
                    yield values


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# Files of metrics.


@dataclass
class Scores:
    """What the files of a command hold.

    Attributes:
        values: Last value by name.
        items: Value by item, by name.
    """

    values: dict[str, Any] = field(default_factory=dict)
    items: dict[str, dict[str, float]] = field(default_factory=dict)


def read_scores(directory: Path, files: Sequence[str]) -> Scores:
    """Read files of metrics.

    Raises:
        CommandFailed: One is missing or malformed.
    """
    scores = Scores()
    for name in files:
        path = directory / name
        if not path.is_file():
            there = [
                str(file.relative_to(directory)) for file in sorted(directory.rglob("*")) if file.is_file()
            ]
            raise CommandFailed(f"wrote no {name}, which metrics names. {nearest(name, there[:_NUM_NAMED])}")
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise CommandFailed(f"{name}: not UTF-8 ({error.reason})") from error
        if path.suffix == ".csv":
            _read_items(name, text, scores.items)
            continue
        is_lines = path.suffix == ".jsonl"
        documents = text.splitlines() if is_lines else [text]
        for number, document in enumerate(documents, 1):
            where = f"{name}, line {number}" if is_lines else name
            scores.values |= _object(where, document) if document.strip() or not is_lines else {}
    return scores


def _object(where: str, document: str) -> dict[str, Any]:
    allowed = 'write one JSON object, such as {"step": 100, "dev/loss": 2.31}'
    try:
        values = json.loads(document)
    except ValueError as error:
        raise CommandFailed(f"{where}: not JSON ({error}); {allowed}") from error
    if not isinstance(values, dict):
        raise CommandFailed(f"{where}: {document.strip()[:40]!r} is no object; {allowed}")
    return values


def _read_items(name: str, text: str, items: dict[str, dict[str, float]]) -> None:
    rows = csv.DictReader(text.splitlines())
    if missing := [column for column in _COLUMNS if column not in (rows.fieldnames or ())]:
        raise CommandFailed(f"{name}, line 1: no column {', '.join(missing)}; write {','.join(_COLUMNS)}")
    for row in rows:
        where, (item, metric, value) = f"{name}, line {rows.line_num}", (row[column] for column in _COLUMNS)
        values = items.setdefault(metric, {})
        if item in values:
            raise CommandFailed(f"{where}: item {item!r} has a value of {metric} already; write one for each")
        try:
            values[item] = float(value)
        except (TypeError, ValueError) as error:
            raise CommandFailed(f"{where}: value {value!r} is not a number") from error


def _matching(work: Path, patterns: Sequence[str]) -> list[str]:
    """List the files that a command wrote, or read, by patterns of which each matches one."""
    names = [path.relative_to(work).as_posix() for path in _files(work)]
    matching: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in names if fnmatch(name, pattern)]
        if not found:
            there = ", ".join(names[:_NUM_NAMED])
            raise CommandFailed(f"keep: no file matches {pattern!r}; its directory holds {there}")
        matching |= dict.fromkeys(found)
    return list(matching)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def select(context: StageContext) -> None:
    """Select the metrics that the study declares, of the splits that the trial is scored on.

    Raises:
        CommandFailed: No command wrote a metric, or it is no number.
        FloatingPointError: A metric is NaN or infinite.
    """
    settings, inputs = SELECT.read(context)
    found, seconds = Scores(), 0.0
    for stage, files in settings.files:
        directory = inputs.writing[stage]
        seconds += read_json(directory / SECONDS)["command_s"]
        scores = read_scores(directory / WRITTEN, files)
        found.values |= scores.values
        found.items |= scores.items
    metrics: dict[str, dict[str, Any]] = {"command_s": {"value": seconds}}
    for name, key in settings.keys.items():
        split, rest = split_of(name), name.partition("/")[2]
        is_per_item = rest.startswith(ITEM)
        there: Mapping[str, Any] = found.items if is_per_item else found.values
        if key not in there:
            kind = "CSV file" if is_per_item else "JSON file"
            raise CommandFailed(f"metric {name}: no {kind} has {key!r}. {nearest(key, list(there))}")
        if is_per_item and split is not None:
            by_item = dict(sorted(found.items[key].items()))
            rows = np.array([[value, 1.0] for value in by_item.values()])
            write_segments(context.directory, split, {rest: rows})
            # Trials can be paired item by item where they have the same ones.
            signature = f"items:{len(by_item)}|ids:{fingerprint(list(by_item))[:8]}"
            metrics[name] = {"value": float(rows[:, 0].mean()), "signature": signature}
        else:
            metrics[name] = {"value": found.values[key]}
        value = metrics[name]["value"]
        if type(value) not in (int, float):
            raise CommandFailed(f"metric {name}: {key} is {value!r}, not a number")
        if not math.isfinite(value):
            raise FloatingPointError(f"metric {name} is {value}")
    write_json(context.directory / METRICS, metrics)
