"""Running a command and reading the files of metrics that it writes."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.basics.errors import NlgraftError, did_you_mean
from nlgraft.basics.wording import duration
from nlgraft.evaluation.artifact import write_segments
from nlgraft.pipeline.execute import CURVES, METRICS, Curve
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.integrity import remove_tree
from nlgraft.pipeline.stage import StageContext, TrialStopped
from nlgraft.text.files import expand, read_json, write_json
from trainables.command import guard
from trainables.command.config import ITEM, PLACEHOLDER
from trainables.command.graph import COMMAND, SELECT, CommandSettings, copy_code, digest

logger = logging.getLogger(__name__)

LOG, SECONDS = "log.txt", "seconds.json"
_CHECKPOINT = "checkpoint"
WRITTEN, KEPT = "metrics", "kept.tar"
"""Of a command's artifact: folder of its files of metrics; archive of those that it keeps, of any kind, which
nlgraft packs and unpacks and never reads."""
_POLL_S, _PATIENCE_S = 0.2, 15.0
"""How often a command is looked at; the time that it gets to end after a signal."""
_TAIL_LINES, _TAIL_BYTES = 60, 8000
_ERROR_OF_PROCESS = re.compile(r"^\[rank\d+\]: (?!Traceback)\S.*", re.MULTILINE)
_COLUMNS = ("item", "metric", "value")
_OUT_OF_MEMORY = 128 + 9
_MOST_PROBLEMS = 5


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
    directory, patterns = context.locations["directory"], context.locations["patterns"]
    copy_code(directory, patterns, work)
    if digest(str(work), patterns) != settings.code:
        raise CommandFailed(f"{directory}: changed since the study was planned; run the study again")
    texts = {name: str(value) for name, value in settings.values.items()}
    texts |= {f"data.{name}": str(expand(path)) for name, path in context.locations["data"].items()}
    texts |= {f"needs.{name}": str((needs / name).absolute()) for name in inputs.needs}
    texts["seed"] = str(context.seed)
    # Beside the script's files, which may have a folder of that name.
    state = context.directory / _CHECKPOINT
    texts[_CHECKPOINT] = str(state.absolute())
    saved_step, saved = context.checkpoints.latest() or (-1, None)
    spent_s = 0.0
    if saved is not None:
        shutil.copytree(saved / _CHECKPOINT, state)
        shutil.copytree(saved / WRITTEN, work, dirs_exist_ok=True)
        if (saved / LOG).exists():  # older checkpoints have neither
            shutil.copy(saved / LOG, context.directory / LOG)
            spent_s = read_json(saved / SECONDS)["command_s"]
    state.mkdir(exist_ok=True)
    for name, directory in inputs.needs.items():
        if (directory / KEPT).exists():
            with tarfile.open(directory / KEPT) as archive:
                archive.extractall(needs / name, filter="data")
    progress = _Progress(context, work, settings.metrics, saved_step, spent_s)
    _execute(context, settings, work, texts, progress)
    write_json(context.directory / CURVES, progress.curves)
    progress.write_seconds(context.directory)
    problems: list[str] = []
    read_scores(work, settings.metrics, problems)
    kept = _matching(work, settings.keep, problems)
    _refuse(problems)
    for name in settings.metrics:
        (context.directory / WRITTEN / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / name, context.directory / WRITTEN / name)
    if settings.keep:
        with tarfile.open(context.directory / KEPT, "w", dereference=True) as archive:
            for name in kept:
                archive.add(work / name, name)
    for folder in (work, needs, state):
        remove_tree(folder)


def _words(settings: CommandSettings, texts: Mapping[str, str]) -> list[str]:
    """Fill in a command; words with a setting that has no value are left out."""
    words: list[str | None] = []
    for word in shlex.split(settings.command):
        if word != "{settings}":
            words.append(_filled(word, texts))
            continue
        for name in settings.listed:
            parts = settings.setting.split()
            words += [part.replace("{name}", name).replace("{value}", texts[name]) for part in parts]
    return [word for word in words if word is not None]


def _filled(text: str, texts: Mapping[str, str]) -> str | None:
    """Put in what names in braces stand for; None if one of them has no value."""
    if any(match[1] not in (None, *texts) for match in PLACEHOLDER.finditer(text)):
        return None
    return PLACEHOLDER.sub(lambda match: match[0][0] if match[1] is None else texts[match[1]], text)


def _execute(
    context: StageContext,
    settings: CommandSettings,
    work: Path,
    texts: Mapping[str, str],
    progress: _Progress,
) -> None:
    """Run a command to its end and report its progress."""
    # Python of the environment that runs nlgraft, and a log that shows what is written at once.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
    for name, text in settings.environment.items():
        if (value := _filled(text, texts)) is not None:
            environment[name] = value
    command = [sys.executable, "-I", guard.__file__, str(_PATIENCE_S), *_words(settings, texts)]
    started = time.monotonic()
    limit_s, log = context.locations["limit_s"], context.directory / LOG
    with (
        log.open("ab") as output,
        subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        # Leaving this block closes the pipe and waits: the guard then ends the command, as it does if this
        # process is killed.
        while process.poll() is None:
            time.sleep(_POLL_S)
            progress.report()
            if (reason := context.should_stop()) is not None:
                raise TrialStopped(reason)
            if limit_s is not None and time.monotonic() - started > limit_s:
                raise _failure(f"took longer than its limit of {duration(limit_s)}", log)
    if process.returncode:
        hint = " (SIGKILL, perhaps for lack of memory)" * (process.returncode == _OUT_OF_MEMORY)
        raise _failure(f"ended with status {process.returncode}{hint}", log)
    progress.report()


def _failure(what: str, log: Path) -> CommandFailed:
    """Make an error of a command: the last line of its log in its first line, and below the last lines."""
    text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").rstrip()
    lines = text.splitlines()[-_TAIL_LINES:]
    last = f"wrote last: {lines[-1].strip()}" if lines else "wrote nothing"
    # After it come errors of the processes that wait for this one, and torchrun's own.
    if (error := _ERROR_OF_PROCESS.search(text)) is not None:
        last = f"wrote: {error[0]}"
    # For the worker's log and `nlgraft trial`; records of trials have it in the traceback.
    logger.warning("\n".join(lines))
    return CommandFailed("\n".join([f"{what}; it {last}", *lines]))


class _StateChanged(Exception):
    """A script wrote to its checkpoint while it was copied; errors of the store stay errors."""


class _Progress:
    """Reports what a command adds to its files of JSON lines, and saves its checkpoints.

    Args:
        context: Stage of the command.
        work: Directory in which it runs.
        files: Its files of metrics.
        saved_step: Step of the checkpoint from which it goes on; -1 without one.
        spent_s: Seconds that it had taken up to there.
    """

    def __init__(
        self, context: StageContext, work: Path, files: Sequence[str], saved_step: int, spent_s: float
    ) -> None:
        self.curves: dict[str, Curve] = {}
        self._context = context
        self._work = work
        self._saved_step = saved_step
        self._started = time.perf_counter() - spent_s
        self._lengths = {work / name: 0 for name in files if name.endswith(".jsonl")}

    def write_seconds(self, directory: Path) -> None:
        """Write how long the command has taken, before it was killed as well."""
        write_json(directory / SECONDS, {"command_s": time.perf_counter() - self._started})

    def report(self) -> None:
        complete_step = self._saved_step
        for path, num_lines in self._lengths.items():
            # The last line may be half written.
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            self._lengths[path] = len(lines)
            for line in lines[num_lines:]:
                complete_step = max(complete_step, self._report_line(line))
        if complete_step > self._saved_step:
            self._saved_step = complete_step
            try:
                self._context.checkpoints.save(complete_step, self._copy_state)
            except _StateChanged as error:
                logger.warning(
                    "the checkpoint of step %d changed while it was copied and is left out: let its files "
                    "lie still until the next one, and save more rarely (%s)",
                    complete_step,
                    error,
                )

    def _report_line(self, line: bytes) -> int:
        """Report a line; return its step if the script's checkpoint is complete then, else -1."""
        try:
            document = json.loads(line)
        except ValueError:
            return -1  # told when the command has ended
        fields = document if isinstance(document, dict) else {}
        if type(fields.get("step")) is not int:
            return -1
        reported: Mapping[str, str] = self._context.locations["reported"]
        values = {name: fields[key] for key, name in reported.items() if _is_finite(fields.get(key))}
        if values:
            for name, value in values.items():
                point = [fields["step"], value, int(time.time() * 1000)]
                self.curves.setdefault(name, []).append(point)
            self._context.report(fields["step"], values)
        return fields["step"] if fields.get(_CHECKPOINT) is True else -1

    def _copy_state(self, directory: Path) -> None:
        """Copy the script's checkpoint, its log and its progress, to which it appends when it goes on."""
        state = self._context.directory / _CHECKPOINT
        try:
            before = _versions(state)
            shutil.copytree(state, directory / _CHECKPOINT)
            is_same = _versions(state) == before
        except (shutil.Error, FileNotFoundError) as error:
            raise _StateChanged(str(error)) from error
        if not is_same:
            raise _StateChanged("files were written again")
        shutil.copy(self._context.directory / LOG, directory / LOG)
        self.write_seconds(directory)
        for path in filter(Path.exists, self._lengths):
            copied = directory / WRITTEN / path.relative_to(self._work)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)


def _versions(directory: Path) -> dict[Path, tuple[int, int, int]]:
    """Tell files apart that were written again: inode, size and time of change, by path."""
    files = {path: path.stat() for path in directory.rglob("*")}
    return {path: (file.st_ino, file.st_size, file.st_mtime_ns) for path, file in files.items()}


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# Files of metrics.


def read_scores(directory: Path, files: Sequence[str], problems: list[str]) -> dict[str, tuple[Any, str]]:
    """Read files of metrics: by name the last value, or those by item of a CSV file, and where it stands.

    What is missing or malformed is left out and added to ``problems``.
    """
    scores: dict[str, tuple[Any, str]] = {}
    for name in files:
        try:
            text = (directory / name).read_text("utf-8")
        except FileNotFoundError:
            problems.append(f"wrote no {name}. {_written(name, _names(directory))}")
            continue
        except UnicodeDecodeError as error:
            problems.append(f"{name}: not UTF-8 ({error.reason})")
            continue
        if name.endswith(".csv"):
            parts = [(name, _read_items(name, text, problems))]
        elif name.endswith(".json"):
            parts = [(name, _object(name, text, problems))]
        else:
            lines = ((f"{name}, line {number}", line) for number, line in enumerate(text.splitlines(), 1))
            parts = [(where, _object(where, line, problems)) for where, line in lines]
        for where, values in parts:
            scores |= {key: (value, where) for key, value in values.items()}
    return scores


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = [f"and {len(problems) - _MOST_PROBLEMS:,} more"] * (len(problems) > _MOST_PROBLEMS)
        # The reason of a failed trial is one line.
        raise CommandFailed("; ".join([*problems[:_MOST_PROBLEMS], *more]))


def _object(where: str, text: str, problems: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        document = f"not JSON: {error}"
    if isinstance(document, dict):
        return document
    example = '{"step": 100, "dev/loss": 2.31}'
    problems.append(f"{where}: {str(document)[:120]}; write a JSON object, such as {example}")
    return {}


def _read_items(name: str, text: str, problems: list[str]) -> dict[str, dict[str, float]]:
    items: dict[str, dict[str, float]] = {}
    rows = csv.DictReader(text.splitlines())
    if missing := {*_COLUMNS} - {*(rows.fieldnames or ())}:
        problems.append(f"{name}, line 1: no column {', '.join(missing)}; write {','.join(_COLUMNS)}")
        return items
    for row in rows:
        item, metric, value = (row[column] for column in _COLUMNS)
        values = items.setdefault(metric, {})
        if item in values:
            problems.append(f"{name}, line {rows.line_num}: a second value of {metric} for item {item!r}")
        try:
            values[item] = float(value)
        except (TypeError, ValueError):
            problems.append(f"{name}, line {rows.line_num}: {value!r} is not a number")
    return items


def _names(directory: Path) -> list[str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.relative_to(directory).as_posix() for path in paths]


def _written(name: str, names: Sequence[str]) -> str:
    """List the files of a command, and suggest the nearest."""
    return f"{did_you_mean(name, names)} There are: {', '.join(names)}".lstrip()


def _matching(work: Path, patterns: Sequence[str], problems: list[str]) -> list[str]:
    """List files by patterns; one that matches none is added to ``problems``."""
    names = _names(work)
    problems += [
        f"wrote no file that matches {pattern} of keep. {_written(pattern, names)}"
        for pattern in patterns
        if not any(fnmatch(name, pattern) for name in names)
    ]
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def select(context: StageContext) -> None:
    """Select the metrics that the study declares, of the splits that the trial is scored on.

    Raises:
        CommandFailed: No command wrote a metric, or it is no number.
        FloatingPointError: A metric is NaN or infinite.
    """
    settings, inputs = SELECT.read(context)
    scores: dict[str, tuple[Any, str]] = {}
    problems: list[str] = []
    not_finite: list[str] = []
    seconds = 0.0
    for stage, files in settings.files:
        scores |= read_scores(inputs.writing[stage] / WRITTEN, files, problems)
        seconds += read_json(inputs.writing[stage] / SECONDS)["command_s"]
    metrics: dict[str, dict[str, Any]] = {"command_s": {"value": seconds}}
    for name, key in settings.keys.items():
        if key not in scores:
            problems.append(f"metric {name}: nobody wrote {key!r}. {_written(key, list(scores))}")
            continue
        (value, where), signature = scores[key], None
        split, _, rest = name.partition("/")
        if rest.startswith(ITEM) and isinstance(value, dict):
            by_item = dict(sorted(value.items()))
            write_segments(context.directory, split, {rest: np.array([[v, 1] for v in by_item.values()])})
            # Trials can be paired item by item where they have the same ones.
            signature = f"items:{len(by_item)}|ids:{fingerprint(list(by_item))[:8]}"
            value = float(np.mean([*by_item.values()]))
            where += next((f", item {item}" for item, v in by_item.items() if not math.isfinite(v)), "")
        if type(value) not in (int, float):
            problems.append(f"metric {name}: {key} is {str(value)[:60]!r} in {where}, not a number")
        elif not math.isfinite(value):
            not_finite.append(f"metric {name} is {value} in {where}")
        metrics[name] = {"value": value, "signature": signature}
    _refuse(problems)
    if not_finite:
        raise FloatingPointError("; ".join(not_finite))
    write_json(context.directory / METRICS, metrics)
