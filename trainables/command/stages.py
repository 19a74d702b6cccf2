"""Running a command and reading the files of metrics that it writes."""

from __future__ import annotations

import csv
import fnmatch
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

import numpy as np

from nlgraft.basics.errors import NlgraftError, did_you_mean
from nlgraft.basics.pacing import Pacer
from nlgraft.basics.wording import duration, grouped, name_some
from nlgraft.evaluation.artifact import write_lines, write_segments
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.integrity import remove_tree
from nlgraft.pipeline.stage import StageContext, TrialStopped
from nlgraft.pipeline.trial import CURVES, METRICS, Curve
from nlgraft.text.corpora import stream_file
from nlgraft.text.files import expand, read_json, write_json
from trainables.command import guard
from trainables.command.config import ITEM, PLACEHOLDER, names_in
from trainables.command.graph import (
    COMMAND,
    SELECT,
    CommandSettings,
    code_digest,
    copy_files,
    files_of,
    search_path,
)

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
_MOST_PROBLEMS = 3
"""That are told of a file, since the reason of a failed trial is one line."""
_NAMED = 10
_SAVE_SHARE = 0.2
"""Share of the time that may go into copying checkpoints."""
_TRIES, _TRY_PAUSE_S = 12, 0.003
"""How often a checkpoint is tried to be copied, with a pause that grows by as much each time."""


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
    place = context.directory.absolute()
    # The state lies beside the script's files, which may have a folder of that name.
    work, needs, state = place / "work", place / "needs", place / _CHECKPOINT
    directory, patterns = context.locations["directory"], context.locations["patterns"]
    copy_files(files_of(directory, patterns), expand(directory), work)
    if code_digest(str(work), patterns) != settings.code:
        raise CommandFailed(f"{directory}: changed since the study was planned; run the study again")
    values: dict[str, Any] = {**settings.values, "seed": context.stage.seed, _CHECKPOINT: state}
    for name, path in context.locations["data"].items():
        values[f"data.{name}"] = expand(path)
    for name, kept in inputs.needs.items():
        values[f"needs.{name}"] = needs / name
        if (kept / KEPT).exists():
            with tarfile.open(kept / KEPT) as archive:
                archive.extractall(needs / name, filter="data")
    texts = {name: str(value) for name, value in values.items()}
    progress = _Progress(context, work, settings.metrics)
    _execute(context, settings, work, texts, progress)
    write_json(context.directory / CURVES, progress.curves)
    progress.write_seconds(context.directory)
    names = _names(work)
    scores, problems = read_scores((work, name) for name in settings.metrics)
    kept_names: set[str] = set()
    for pattern in settings.keep:
        matching = fnmatch.filter(names, pattern)
        kept_names.update(matching)
        if not matching:
            problems.append(f"wrote no file that matches {pattern} of keep. {_among(pattern, names)}")
    if problems:
        # Alone they are told by the selection, so that another key in the study runs no command again.
        _refuse(problems, context.locations["alone"], scores)
    copy_files(settings.metrics, work, context.directory / WRITTEN)
    if settings.keep:
        with tarfile.open(context.directory / KEPT, "w", dereference=True) as archive:
            for name in sorted(kept_names):
                archive.add(work / name, name)
    for folder in (work, needs, state):
        remove_tree(folder)


def _words(settings: CommandSettings, texts: Mapping[str, str]) -> list[str]:
    """Fill in a command; words with a setting that has no value are left out."""
    words: list[str] = []
    for word in shlex.split(settings.command):
        if word == "{settings}":
            for name in settings.listed:
                parts = settings.setting.split()
                words += [part.replace("{name}", name).replace("{value}", texts[name]) for part in parts]
        elif (filled := _filled(word, texts)) is not None:
            words.append(filled)
    return words


def _filled(text: str, texts: Mapping[str, str]) -> str | None:
    """Put in what names in braces stand for; None if one of them has no value."""
    if names_in(text) - texts.keys():
        return None
    return PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0][0]), text)


def _execute(
    context: StageContext,
    settings: CommandSettings,
    work: Path,
    texts: Mapping[str, str],
    progress: _Progress,
) -> None:
    """Run a command to its end and report its progress."""
    # A log that shows what is written at once.
    environment = {**os.environ, "PATH": search_path(), "PYTHONUNBUFFERED": "1"}
    for name, text in settings.environment.items():
        if (value := _filled(text, texts)) is not None:
            environment[name] = value
    guarded = [sys.executable, "-I", guard.__file__, str(_PATIENCE_S)]
    started = time.monotonic()
    limit_s, log = context.locations["limit_s"], context.directory / LOG
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [*guarded, *_words(settings, texts)],
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
            if reason := context.should_stop():
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
    if error := _ERROR_OF_PROCESS.search(text):
        last = f"wrote: {error[0]}"
    # For the worker's log and `nlgraft trial`; records of trials have it in the traceback.
    logger.warning("\n".join(lines))
    return CommandFailed("\n".join([f"{what}; it {last}", *lines]))


class _StateChanged(Exception):
    """A script changed its checkpoint during each try to copy it; errors of the store stay errors."""


class _Progress:
    """Reports what a command adds to its files of JSON lines, saves its checkpoints and goes on from one.

    Args:
        context: Stage of the command.
        work: Directory in which it runs.
        files: Its files of metrics.
    """

    def __init__(
        self,
        context: StageContext,
        work: Path,
        files: Sequence[str],
    ) -> None:
        self.curves: dict[str, Curve] = {}
        self._context = context
        self._work = work
        self._saves = Pacer(0.0, _SAVE_SHARE)
        self._num_lines = {name: 0 for name in files if name.endswith(".jsonl")}
        self._saved_step, saved = context.checkpoints.latest() or (-1, None)
        self._complete_step = self._saved_step
        self._started = time.perf_counter()
        (context.directory / _CHECKPOINT).mkdir()
        if saved is not None:
            shutil.copytree(saved / _CHECKPOINT, context.directory / _CHECKPOINT, dirs_exist_ok=True)
            shutil.copytree(saved / WRITTEN, work, dirs_exist_ok=True)
            shutil.copy(saved / LOG, context.directory)
            self._started -= read_json(saved / SECONDS)["command_s"]

    def write_seconds(self, directory: Path) -> None:
        """Write how long the command has taken, before it was killed as well."""
        write_json(directory / SECONDS, {"command_s": time.perf_counter() - self._started})

    def report(self) -> None:
        for name, num_lines in self._num_lines.items():
            path = self._work / name
            if not path.exists():
                continue
            # The last line may be half written.
            lines = path.read_bytes().split(b"\n")[:-1]
            self._num_lines[name] = len(lines)
            for line in lines[num_lines:]:
                self._report_line(line)
        if self._complete_step > self._saved_step and self._saves.is_due:
            self._saved_step = self._complete_step
            try:
                with self._saves.turn():
                    self._context.checkpoints.save(self._saved_step, self._copy_state)
            except _StateChanged as error:
                logger.warning(
                    "the checkpoint of step %d changed in each of %d tries to copy it and is left out: write "
                    "its files under other names, and rename them when they are whole (%s)",
                    self._saved_step,
                    _TRIES,
                    error,
                )

    def _report_line(self, line: bytes) -> None:
        """Report a line that has a step, and note if the script's checkpoint is complete then."""
        try:
            fields = json.loads(line)
        except ValueError:
            return  # told when the command has ended
        step = fields.get("step") if isinstance(fields, dict) else None
        if type(step) is not int:
            return
        keys: Mapping[str, str] = self._context.locations["reported"]
        values: dict[str, float] = {}
        unix_ms = int(time.time() * 1000)
        for name, key in keys.items():
            value = fields.get(key)
            if _is_finite(value):
                values[name] = value
                self.curves.setdefault(name, []).append([step, value, unix_ms])
        if values:
            self._context.report(step, values)
        if fields.get(_CHECKPOINT) is True:
            self._complete_step = max(self._complete_step, step)

    def _copy_state(self, directory: Path) -> None:
        """Copy the script's checkpoint, its log and its progress, to which it appends when it goes on."""
        _copy_of_one_moment(self._context.directory / _CHECKPOINT, directory / _CHECKPOINT)
        shutil.copy(self._context.directory / LOG, directory)
        self.write_seconds(directory)
        names = [name for name in self._num_lines if (self._work / name).exists()]
        copy_files(names, self._work, directory / WRITTEN)


def _copy_of_one_moment(state: Path, target: Path) -> None:
    """Copy files that a script may replace at any time, as they are at one moment.

    Raises:
        _StateChanged: They were changed in each of several tries.
    """
    reason = ""
    for number in range(_TRIES):
        # Not in step with the script.
        time.sleep(number * _TRY_PAUSE_S)
        with TemporaryDirectory(dir=state.parent) as folder:
            held = Path(folder, "held")
            try:
                before = _versions(state)
                shutil.copytree(state, held, copy_function=_hold)
                linked = _versions(held)
                if _versions(state) == before:
                    shutil.copytree(held, target)
                    if _versions(held) == linked:
                        return
                reason = "files were written again"
            except (shutil.Error, FileNotFoundError) as error:
                reason = str(error)
        shutil.rmtree(target, ignore_errors=True)
    raise _StateChanged(reason)


def _hold(source: str, target: str) -> None:
    """Link a file, which takes no time and keeps it when the script renames another over it."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or the file is gone
        shutil.copy2(source, target)


def _versions(directory: Path) -> dict[Path, tuple[int, int, int]]:
    """Tell files apart that were written again: inode, size and time of change, by path."""
    versions = {}
    for path in directory.rglob("*"):
        if path.is_file():
            file = path.stat()
            versions[path] = file.st_ino, file.st_size, file.st_mtime_ns
    return versions


# Files of metrics.


Scores = dict[str, dict[str | None, tuple[Any, str]]]
"""Values and where they stand, by name and item; the item is None where a value stands for all."""


def read_scores(files: Iterable[tuple[Path, str]]) -> tuple[Scores, list[str]]:
    """Read files of metrics, given by their directories and names; say what is missing or malformed.

    What a later file or line holds under a name takes the place of what was before, but for the lines of a
    table of items.
    """
    scores: Scores = {}
    problems: list[str] = []
    for directory, name in files:
        try:
            text = (directory / name).read_text("utf-8")
        except FileNotFoundError:
            problems.append(f"wrote no {name}. {_among(name, _names(directory))}")
            continue
        except UnicodeDecodeError as error:
            problems.append(f"{name}: not UTF-8 ({error.reason})")
            continue
        faults: list[str] = []
        if name.endswith(".csv"):
            scores |= _read_items(name, text, faults)
        elif name.endswith(".json"):
            scores |= _read_object(name, text, faults)
        else:
            for number, line in enumerate(text.splitlines(), 1):
                scores |= _read_object(f"{name}, line {number}", line, faults)
        if faults:
            problems.append(name_some(faults, _MOST_PROBLEMS, "; "))
            if not name.endswith(".csv"):
                problems.append('write a JSON object, such as {"step": 100, "dev/loss": 2.31}')
    return scores, problems


def _read_object(
    where: str,
    text: str,
    faults: list[str],
) -> Scores:
    try:
        document = json.loads(text)
    except ValueError as error:
        document = f"not JSON: {error}"
    if isinstance(document, dict):
        return {key: {None: (value, where)} for key, value in document.items()}
    faults.append(f"{where}: {str(document)[:120]}")
    return {}


def _read_items(
    name: str,
    text: str,
    faults: list[str],
) -> Scores:
    scores: Scores = {}
    rows = csv.DictReader(text.splitlines())
    if missing := sorted({*_COLUMNS} - {*(rows.fieldnames or ())}):
        faults.append(f"{name}, line 1: no column {', '.join(missing)}; write {','.join(_COLUMNS)}")
        return {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        item, metric, value = (row[column] for column in _COLUMNS)
        try:
            number = float(value)
        except (TypeError, ValueError):
            faults.append(f"{where}: {value!r} is not a number")
            continue
        values = scores.setdefault(metric, {})
        if item in values:
            faults.append(f"{where}: a second value of {metric} for item {item!r}")
        values[item] = number, where
    return scores


def _metric_problems(keys: Mapping[str, str], scores: Scores) -> Iterator[str]:
    """Say which metrics, given their names in the files, are missing or no finite number."""
    places = {key: next(iter(values.values()))[1] for key, values in scores.items()}
    keys_of = grouped((where.partition(",")[0], key) for key, where in places.items())
    read = "; ".join(f"{file} with {', '.join(held)}" for file, held in keys_of.items()) or "nothing"
    for name, key in keys.items():
        if key not in scores:
            hint = f"{did_you_mean(key, [*scores])} Read: {read}".lstrip()
            yield f"metric {name}: {key!r} is in no file. {hint}"
            read = "the same"
        elif None not in scores[key] and not name.partition("/")[2].startswith(ITEM):
            yield f"metric {name}: {key!r} has values of items; name it with {ITEM} behind the split"
        else:
            for value, where in scores[key].values():
                if not _is_finite(value):
                    yield f"metric {name} is {repr(value)[:60]} in {where}, not a finite number"
                    break


def _is_finite(value: Any) -> TypeGuard[float]:
    # Not a truth value, which is a number to Python.
    return type(value) in (int, float) and math.isfinite(value)


def _refuse(
    problems: Sequence[str],
    keys: Mapping[str, str],
    scores: Scores,
) -> None:
    parts = [*problems]
    # Where no file could be read, that no metric was follows from it.
    if scores or not problems:
        unmet = [*_metric_problems(keys, scores)]
        parts += [name_some(unmet, _MOST_PROBLEMS, "; ")] if unmet else []
    if parts:
        raise CommandFailed("; ".join(parts))


def _names(directory: Path) -> list[str]:
    files = filter(Path.is_file, directory.rglob("*"))
    return sorted(file.relative_to(directory).as_posix() for file in files)


def _among(name: str, names: Sequence[str]) -> str:
    """List the files of a command, and suggest the nearest."""
    return f"{did_you_mean(name, names)} There are: {name_some(names, _NAMED)}".lstrip()


def select(context: StageContext) -> None:
    """Select the metrics that the study declares, of the splits that the trial is scored on.

    Raises:
        CommandFailed: No command wrote a metric, or it is no finite number.
    """
    settings, inputs = SELECT.read(context)
    files: list[tuple[Path, str]] = []
    seconds = 0.0
    for stage, names in settings.files:
        directory = inputs.writing[stage]
        files += [(directory / WRITTEN, name) for name in names]
        seconds += read_json(directory / SECONDS)["command_s"]
    scores, problems = read_scores(files)
    _refuse(problems, settings.keys, scores)
    metrics: dict[str, dict[str, Any]] = {"command_s": {"value": seconds}}
    items: dict[str, set[str]] = {}
    for name, key in settings.keys.items():
        values = {item: value for item, (value, _) in scores[key].items()}
        metrics[name] = {"value": float(np.mean([*values.values()]))}
        if ids := sorted(item for item in values if item is not None):
            split, _, rest = name.partition("/")
            rows = np.array([[values[item], 1] for item in ids])
            write_segments(context.directory, split, {rest: rows})
            # Trials can be paired item by item where they have the same ones.
            metrics[name]["signature"] = f"items:{len(ids)}|ids:{fingerprint(ids)[:8]}"
            items.setdefault(split, set()).update(ids)
    for split, scored in items.items():
        (context.directory / split).mkdir()
        write_lines(context.directory / split / stream_file("item"), sorted(scored))
    write_json(context.directory / METRICS, metrics)
