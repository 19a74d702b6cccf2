"""The stages of a trial: a command each, and last the selection of its metrics.

A command depends on the settings that it reads, on the files that it names and on the stages that it needs;
on the seed only if it has ``{seed}``. So cells and seeds share what they have in common.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nlgraft.basics.errors import DataError, Problem, nearest
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.study.data.system import Findings
from nlgraft.text.files import expand, file_digest, unreadable, written_at_once
from trainables.command.config import Config, DataConfig, StageConfig, Value, read_entries

_LEFT_OUT = ("__pycache__", "node_modules", "mlruns", "nlgraft_store", "wandb")
_SCRIPT = re.compile(r"[\w.][\w./-]*\.(py|sh|R|jl|pl|rb|lua|js)")
_STUDY = re.compile(rb"^system: *[\"']?trainables\.command\b", re.M)


def stage_graph(
    config: Config,
    *,
    seed: int,
    splits: tuple[str, ...],
) -> StageGraph:
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
    # Search trials never see a test set, whatever the script writes.
    untested = {name: key for name, key in keys.items() if not name.startswith("test/")}
    written = {name: stage.metrics for name, stage in config.stages.items() if stage.metrics}
    stages: dict[str, Stage] = {}
    for name in config.ordered_stages:
        stage = config.stages[name]
        values = config.read_by(stage)
        files = {key: path for key, path in config.data.files.items() if f"data.{key}" in stage.placeholders}
        command = CommandSettings(
            command=stage.command,
            setting=stage.setting,
            values=values,
            listed=tuple(key for key in values if key not in stage.placeholders),
            environment=stage.environment,
            metrics=stage.metrics,
            keep=stage.keep,
            code=code_digest(config.data.directory, stage.code),
            data={key: digest(path) for key, path in files.items()},
        )
        stages[name] = COMMAND.stage(
            name,
            command,
            CommandInputs(needs={other: stages[other] for other in stage.needs}),
            seed=seed if "seed" in stage.placeholders else None,
            # What is looked for and how long decides no result, so that changing it runs nothing again.
            locations={
                "directory": config.data.directory,
                "patterns": stage.code,
                "data": files,
                "limit_s": stage.limit,
                "reported": untested,
                # Of several commands that write metrics, none alone tells which are missing.
                "alone": keys if [*written] == [name] else {},
            },
        )
    results = ResultSettings(
        keys=keys if "test" in splits else untested,
        files=tuple(written.items()),
    )
    inputs = ResultInputs(writing={name: stages[name] for name in written})
    # A dot, which no name of a study's own stages has.
    return StageGraph(SELECT.stage("command.results", results, inputs))


def file_problems(values: Mapping[str, Any], directory: str | None) -> Iterator[Problem]:
    """Find the files of a config that cannot be used, as far as their paths can be read."""
    places: dict[str, str] = {}

    @contextmanager
    def placed(place: str) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            # What is wrong with the directory is so for every stage.
            places.setdefault(str(error), place)

    with suppress(ValidationError):
        data = DataConfig.model_validate(values.get("data"), context={"directory": directory})
        for name, path in data.files.items():
            with placed(f"data.files.{name}"):
                digest(path)
        with placed("data.directory"):
            code_digest(data.directory, ("*",))
        for name, stage in read_entries(StageConfig, values.get("stages")).items():
            if stage is None:
                continue
            with placed(f"stages.{name}.code"):
                files = files_of(data.directory, stage.code)
                # The script that a command begins with, as in ``python train.py``.
                scripts = [word for word in shlex.split(stage.command)[:2] if _SCRIPT.fullmatch(word)]
                if scripts and os.path.normpath(scripts[0]) not in files:
                    hint = nearest(scripts[0], files)
                    message = f"{data.directory} has no file {scripts[0]}. {hint}"
                    places[message] = f"stages.{name}.command"
    yield from (Problem(place, message) for message, place in places.items())


def digest(path: str) -> str:
    """Return the digest of a file, or of the files of a directory with their names.

    Raises:
        DataError: It is missing, unreadable or empty.
    """
    return code_digest(path, ("*",)) if expand(path).is_dir() else file_digest(path)


def code_digest(directory: str, patterns: Sequence[str]) -> str:
    """Return the digest of the files that `files_of` lists; errors are the same."""
    digests = {name: file_digest(str(Path(directory, name))) for name in files_of(directory, patterns)}
    return fingerprint(digests)


def files_of(directory: str, patterns: Sequence[str]) -> list[str]:
    """List the files of a directory that match a pattern, by their paths in it, as digested and copied.

    Hidden and compiled files, caches and studies of this system are left out: editing them changes no result.

    Raises:
        DataError: The directory is missing or unreadable, or no file matches.
    """
    root, names = expand(directory), list[str]()

    def refuse(error: OSError) -> None:
        raise DataError(unreadable(str(error.filename), error, "directory")) from error

    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _LEFT_OUT]
        for file_name in files:
            file = Path(folder, file_name)
            if file.is_symlink() and not file.exists():
                leads = f"a link to {file.readlink()}, which leads nowhere or in a circle"
                raise DataError(f"{file}: {leads}; remove or mend it")
            if file_name.startswith(".") or file.suffix == ".pyc":
                continue
            if file.suffix in (".yaml", ".yml") and _STUDY.search(file.read_bytes()):
                continue
            name = file.relative_to(root).as_posix()
            if any(fnmatch(name, pattern) for pattern in patterns):
                names.append(name)
    if not names:
        raise DataError(f"{directory}: has no file that matches {', '.join(patterns)}")
    return sorted(names)


def copy_files(
    names: Iterable[str],
    source: Path,
    target: Path,
) -> None:
    """Copy files, given by their paths in a directory, to the same paths in another one."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target / name)


def keep_code(config: Config, root: Path) -> dict[str, str]:
    """Copy the script below a directory, under its digest, so that it may be edited from now on.

    Returns:
        The setting that names the copy.

    Raises:
        DataError: The script is missing.
    """
    directory = config.data.directory
    patterns = sorted({pattern for stage in config.stages.values() for pattern in stage.code})
    kept = root.absolute() / code_digest(directory, patterns)[:12]
    if not kept.exists():
        try:
            with written_at_once(kept) as whole:
                copy_files(files_of(directory, patterns), expand(directory), whole)
        except OSError:
            if not kept.exists():  # or else another process was faster
                raise
    return {"data.directory": str(kept)}


def warn_of_programs(stages: Sequence[Stage], findings: Findings) -> None:
    """Warn of programs that this machine lacks and with which commands begin; other nodes may have them."""
    for stage in stages:
        program, *_ = shlex.split(stage.config["command"])
        path = stage.config["environment"].get("PATH", search_path())
        is_name = not {"{", "/"} & {*program}
        if is_name and shutil.which(program, path=path) is None:
            findings.warn(stage, [f"this machine has no program {program!r}, which its command begins with"])


def search_path() -> str:
    """Return the directories of programs: first that of the Python that runs nlgraft."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


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
    workers="train",
    check="trainables.command.graph:warn_of_programs",
)
SELECT = StageKind[ResultSettings, ResultInputs[Any]](
    "trainables.command.stages:select", ResultSettings, ResultInputs, version=2
)
