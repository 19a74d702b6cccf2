"""The stages of a trial: a command each, and last the selection of its metrics.

A command depends on the settings that it reads, on the files that it names and on the stages that it needs;
on the seed only if it has ``{seed}``. So cells and seeds share what they have in common.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.files import expand, file_digest, unreadable
from trainables.command.config import RESULTS, Config, StageConfig, Value, split_of

_LEFT_OUT = ("__pycache__", "node_modules", "mlruns", "nlgraft_store", "wandb")
_STUDY = re.compile(rb"^system: *[\"']?trainables\.command\b", re.M)
_MOST_BYTES = 500_000_000
"""Most that is copied for every run of a command."""


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """Build the stage graph of a trial.

    Args:
        config: Everything the trial depends on.
        seed: Seed of the commands that read it.
        splits: Splits whose metrics the result has.

    Returns:
        The graph; its result holds the metrics.

    Raises:
        DataError: The directory or a file is missing, or the directory is too large to be copied.
    """
    keys = {name: metric.key or name for name, metric in config.metrics.items()}
    selected = {name: key for name, key in keys.items() if split_of(name) in (None, *splits)}
    reported = {key: name for name, key in keys.items() if split_of(name) != "test"}
    stages: dict[str, Stage] = {}
    for name, stage in config.stages.items():
        stages[name] = _command(config, name, stage, stages, reported, seed)
    writing = {name: stages[name] for name, stage in config.stages.items() if stage.metrics}
    files = tuple((name, config.stages[name].metrics) for name in writing)
    settings = ResultSettings(keys=selected, files=files)
    return StageGraph(SELECT.stage(RESULTS, settings, ResultInputs(writing=writing)))


def _command(
    config: Config,
    name: str,
    stage: StageConfig,
    earlier: Mapping[str, Stage],
    reported: Mapping[str, str],
    seed: int,
) -> Stage:
    root = expand(config.data.directory)
    num_bytes = sum((root / file).stat().st_size for file in files_of(config.data.directory, stage.code))
    if num_bytes > _MOST_BYTES:
        raise DataError(
            f"{config.data.directory}: stages.{name} would copy {num_bytes // 10**6} MB for every run, and "
            f"at most {_MOST_BYTES // 10**6} are allowed; give data under data.files, which are read in "
            "place, and in code the patterns of the script's own files"
        )
    named = {file: path for file, path in config.data.files.items() if f"data.{file}" in stage.placeholders}
    settings = CommandSettings(
        command=stage.command,
        setting=stage.setting,
        values=config.read_by(stage),
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
            "reported": {**reported},
        },
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

    Raises:
        DataError: It is missing or unreadable, or no file matches.
    """
    root, names = expand(path), list[str]()
    for folder, folders, files in os.walk(root, onerror=_refuse, followlinks=True):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _LEFT_OUT)
        for file in (Path(folder, name) for name in sorted(files)):
            name = file.relative_to(root).as_posix()
            if any(fnmatch(name, pattern) for pattern in patterns) and not _is_left_out(file):
                names.append(name)
    if not names:
        raise DataError(f"{path}: has no file that matches {', '.join(patterns)}")
    return names


def _refuse(error: OSError) -> None:
    raise DataError(unreadable(str(error.filename), error)) from error


def _is_left_out(file: Path) -> bool:
    """Leave out what nobody wrote for the script: hidden and compiled files, and studies of this system."""
    if file.name.startswith(".") or file.suffix in (".pyc", ".pyo"):
        return True
    return file.suffix in (".yaml", ".yml") and _STUDY.search(file.read_bytes()) is not None


# Settings and inputs of the stages that only this system has. No torch.


class CommandSettings(Settings):
    """A command with what it reads."""

    command: str
    setting: str
    values: dict[str, Value]
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
    "trainables.command.stages:select", ResultSettings, ResultInputs
)
