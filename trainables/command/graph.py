"""The stages of a trial: a command each, and last the selection of its metrics.

A command depends on the settings that it reads, on the files that it names and on the stages that it needs;
on the seed only if it has ``{seed}``. So cells and seeds share what they have in common.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from nlgraft.basics.errors import DataError, Problem, nearest
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.files import expand, file_digest, unreadable
from trainables.command.config import Config, DataConfig, StageConfig, Value, read_entries

_LEFT_OUT = ("__pycache__", "node_modules", "mlruns", "nlgraft_store", "wandb")
_SCRIPT = re.compile(r"[\w.][\w./-]*\.(py|sh|R|jl|pl|rb|lua|js)")
_STUDY = re.compile(rb"^system: *[\"']?trainables\.command\b", re.M)


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """Build the stage graph of a trial.

    Args:
        config: Everything the trial depends on.
        seed: Seed of the commands that read it.
        splits: Splits whose metrics the result has.

    Returns:
        The graph; its result holds the metrics.

    Raises:
        DataError: The directory or a file is missing.
    """
    keys = {name: metric.key or name for name, metric in config.metrics.items()}
    tested = {name for name in keys if name.startswith("test/")}
    reported = {key: name for name, key in keys.items() if name not in tested}
    writing = {name: stage for name, stage in config.stages.items() if stage.metrics}
    stages: dict[str, Stage] = {}
    for name in config.ordered_stages:
        # Of several commands that write metrics, none alone tells which are missing.
        locations = {"reported": reported, "alone": keys if [*writing] == [name] else {}}
        stages[name] = _command(config, name, config.stages[name], stages, locations, seed)
    settings = ResultSettings(
        # Search trials never see a test set, whatever the script writes.
        keys={name: key for name, key in keys.items() if "test" in splits or name not in tested},
        files=tuple((name, stage.metrics) for name, stage in writing.items()),
    )
    inputs = ResultInputs(writing={name: stages[name] for name in writing})
    # A dot, which no name of a study's own stages has.
    return StageGraph(SELECT.stage("command.results", settings, inputs))


def _command(
    config: Config,
    name: str,
    stage: StageConfig,
    earlier: Mapping[str, Stage],
    locations: Mapping[str, Mapping[str, str]],
    seed: int,
) -> Stage:
    named = {file: path for file, path in config.data.files.items() if f"data.{file}" in stage.placeholders}
    values = config.read_by(stage)
    settings = CommandSettings(
        command=stage.command,
        setting=stage.setting,
        values=values,
        listed=tuple(name for name in values if name not in stage.placeholders),
        environment=stage.environment,
        metrics=stage.metrics,
        keep=stage.keep,
        code=digest(config.data.directory, stage.code),
        data={file: digest(path) for file, path in named.items()},
    )
    return COMMAND.stage(
        name,
        settings,
        CommandInputs(needs={other: earlier[other] for other in stage.needs}),
        seed=seed if "seed" in stage.placeholders else None,
        # What is looked for and how long decides no result, so that changing it runs nothing again.
        locations={
            "directory": config.data.directory,
            "patterns": [*stage.code],
            "data": named,
            "limit_s": stage.limit,
            **locations,
        },
    )


def file_problems(values: Mapping[str, Any], directory: str | None) -> Iterator[Problem]:
    """Find the files of a config that cannot be used, as far as their paths can be read."""
    with suppress(ValidationError):
        data = DataConfig.model_validate(values.get("data"), context={"directory": directory})
        every: Sequence[str] = ("*",)
        named = {f"data.files.{name}": (path, every) for name, path in data.files.items()}
        try:
            next(expand(data.directory).iterdir(), None)
        except OSError as error:
            yield Problem("data.directory", unreadable(data.directory, error, "directory"))
        else:
            named["data.directory"] = (data.directory, every)
            for name, stage in read_entries(StageConfig, values.get("stages")).items():
                if stage is not None:
                    named[f"stages.{name}.code"] = (data.directory, stage.code)
                    yield from _script_problems(name, stage, data.directory)
        problems: dict[str, str] = {}
        for path, (file, patterns) in named.items():
            try:
                digest(file, patterns)
            except DataError as error:
                problems.setdefault(str(error), path)
        yield from (Problem(path, message) for message, path in problems.items())


def _script_problems(name: str, stage: StageConfig, directory: str) -> Iterator[Problem]:
    """Look for the script that a command begins with, as in ``python train.py``."""
    with suppress(ValueError, DataError):  # a command that cannot be split, no code: reported otherwise
        script = next(filter(_SCRIPT.fullmatch, shlex.split(stage.command)[:2]), None)
        files = files_of(directory, stage.code)
        if script is not None and os.path.normpath(script) not in files:
            yield Problem(
                f"stages.{name}.command", f"{directory} has no file {script}. {nearest(script, files)}"
            )


def digest(path: str, patterns: Sequence[str] = ("*",)) -> str:
    """Return the digest of a file, or of those files of a directory that match a pattern, with their names.

    Raises:
        DataError: It is missing or unreadable, or no file matches.
    """
    if not expand(path).is_dir():
        return file_digest(path)
    return fingerprint({name: file_digest(str(Path(path, name))) for name in files_of(path, patterns)})


def files_of(path: str, patterns: Sequence[str]) -> list[str]:
    """List the files of a directory that match a pattern, by their paths in it, as digested and copied.

    Hidden and compiled files, caches and studies of this system are left out: editing them changes no result.

    Raises:
        DataError: No file matches.
    """
    root, names = expand(path), list[str]()
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _LEFT_OUT]
        for file in (Path(folder, name) for name in files):
            if file.is_symlink() and not file.exists():
                leads = f"a link to {file.readlink()}, which leads nowhere or in a circle"
                raise DataError(f"{file}: {leads}; remove or mend it")
            name = file.relative_to(root).as_posix()
            is_study = file.suffix in (".yaml", ".yml") and _STUDY.search(file.read_bytes())
            is_made = file.name.startswith(".") or file.suffix == ".pyc"
            if not is_study and not is_made and any(fnmatch(name, pattern) for pattern in patterns):
                names.append(name)
    if not names:
        raise DataError(f"{path}: has no file that matches {', '.join(patterns)}")
    return sorted(names)


def copy_code(directory: str, patterns: Sequence[str], target: Path) -> None:
    """Copy the files that `files_of` lists.

    Raises:
        DataError: No file matches.
    """
    for name in files_of(directory, patterns):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(expand(str(Path(directory, name))), target / name)


def keep_code(config: Config, root: Path) -> dict[str, str]:
    """Copy the script below a directory, under its digest, so that it may be edited from now on.

    Returns:
        The setting that names the copy.

    Raises:
        DataError: The script is missing.
    """
    directory = config.data.directory
    patterns = sorted({pattern for stage in config.stages.values() for pattern in stage.code})
    kept = root.absolute() / digest(directory, patterns)[:12]
    if not kept.exists():
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root) as folder:
            copy_code(directory, patterns, whole := Path(folder, "whole"))
            # Another process may have been faster.
            with suppress(OSError):
                whole.rename(kept)
    return {"data.directory": str(kept)}


# Settings and inputs of the stages that only this system has. No torch.


class CommandSettings(Settings):
    """A command with what it reads."""

    command: str
    setting: str
    values: dict[str, Value]
    listed: tuple[str, ...]
    """Settings that the command does not name, which ``{settings}`` stands for."""
    environment: dict[str, str]
    metrics: tuple[str, ...]
    keep: tuple[str, ...]
    code: str
    """Digest of the files that are copied."""
    data: dict[str, str]
    """Digests of the files that are read where they are."""


class CommandInputs(Inputs[T]):
    """The stages before it."""

    needs: Mapping[str, T] = field(default_factory=dict)


class ResultSettings(Settings):
    """Metrics to select."""

    keys: dict[str, str]
    """Name in the script's files by name of the metric."""
    files: tuple[tuple[str, tuple[str, ...]], ...]
    """Stages and their files of metrics; what a later one writes counts."""


class ResultInputs(Inputs[T]):
    """The commands that write metrics."""

    writing: Mapping[str, T]


COMMAND = StageKind[CommandSettings, CommandInputs[Any]](
    # As a training, it is watched for progress and by the rule that stops trials early.
    "trainables.command.stages:run",
    CommandSettings,
    CommandInputs,
    is_distributed=True,
)
SELECT = StageKind[ResultSettings, ResultInputs[Any]](
    "trainables.command.stages:select", ResultSettings, ResultInputs, version=2
)
