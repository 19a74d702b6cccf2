"""Shared parts of commands on a study: arguments, JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nlgraft.basics.errors import user_errors

if TYPE_CHECKING:
    from nlgraft.commands.progress import Progress
    from nlgraft.study.public import Study


has_json = click.option("--json", "is_json", is_flag=True, help="Print JSON, as the last line of stdout.")
has_storage = click.option("--storage", help="Artifact store: directory or URI.")
has_tracking = click.option(
    "--tracking-uri", help="MLflow tracking URI. Default: a SQLite file beside the store."
)


FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
_SIGNALS = 128
"""Exit codes above it are those of signals."""
_ADDRESS = re.compile(r"auto|local|\w+://\S+|(\[\S+\]|[^\s:]+):\d{1,5}")


def has_address(meaning: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the address of a cluster or job server."""

    def check(
        _context: click.Context,
        _parameter: click.Parameter,
        value: str | None,
    ) -> str | None:
        if value is not None and not _ADDRESS.fullmatch(value):
            raise click.BadParameter(
                f"{value[:80]!r}; give auto, HOST:PORT, ray://HOST:PORT or http://HOST:PORT"
            )
        return value

    return click.option("--address", callback=check, help=meaning)


def reads_studies(function: Callable[..., None]) -> Callable[..., None]:
    """Declare a command that reads studies, whose systems may lie in the working directory."""

    @wraps(function)
    def command(**options: Any) -> None:
        # Appended last, so that no file there shadows an installed package.
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        function(**options)

    return user_errors(command)


def study_arguments(metavar: str = "STUDY.yaml") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the arguments of a command that takes a study and overrides."""

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        command = click.argument("overrides", nargs=-1)(reads_studies(function))
        return click.argument("study_file", metavar=metavar)(command)

    return declare


def with_study(
    metavar: str = "STUDY", *, has_results: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a study, its overrides and its store; the command is called with the `Study` that they name.

    Args:
        metavar: ``STUDY`` may also be the name of a study that was run, ``STUDY.yaml`` is a file.
        has_results: True for commands that show what was run; of a store without it they say so.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(
            study_file: str,
            overrides: tuple[str, ...],
            storage: str | None,
            **options: Any,
        ) -> None:
            # Commands that start something take a file; those that look take a name as well.
            read = find_study if metavar == "STUDY" else read_study
            study = read(study_file, overrides, storage)
            if has_results:
                say_if_never_run(study, study_file)
            function(study, **options)

        return study_arguments(metavar)(has_storage(command))

    return declare


def duration_of(text: str) -> float:
    """Read a duration as study files have it; the error is one of the command line."""
    from nlgraft.study.data.part import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def read_study(
    study_file: str,
    overrides: Sequence[str],
    storage: str | None = None,
) -> Study:
    """Read a study file, with another store if one is given."""
    from nlgraft.study.public import Study

    # As JSON, so that YAML reads any path as text.
    extra = [] if storage is None else [f"storage.path={json.dumps(storage)}"]
    return Study.from_yaml(study_file, overrides=[*overrides, *extra])


def find_study(
    study: str,
    overrides: Sequence[str],
    storage: str | None,
) -> Study:
    """Read a study file, or a study that was run on the store by its name."""
    from nlgraft import api

    # A recorded study has its overrides written in, so that only a file takes some.
    if overrides:
        return read_study(study, overrides, storage)
    folder = str(Path.cwd())
    # Never import code from a store, which others may write: see `reads_studies`.
    is_in_store = storage is not None and Path(folder).is_relative_to(os.path.realpath(storage))
    if is_in_store and sys.path[-1] == folder:
        del sys.path[-1]
    return api.find_study(study, storage)


def say_if_never_run(study: Study, study_file: str) -> None:
    """Name the store that holds nothing of a study, and one beside the study's file that does, on stderr."""
    from nlgraft import api
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.study.reading.reader import recorded_names

    store = api.open_store(study)
    if study.variant in recorded_names(store):
        return
    beside = Path(study_file).parent / type(study.storage)().path
    has_run = beside.is_dir() and study.variant in recorded_names(ArtifactStore.open(beside))
    advice = f"; it was beside its file: --storage {beside}" if has_run else "; for another: --storage"
    click.echo(f"{study.variant} was never run on {store.name}{advice}", err=True)


def print_json(document: Any) -> None:
    """Print a document as one line."""
    click.echo(json.dumps(document, ensure_ascii=False))


@contextmanager
def calling_at_end(command: str | None, study: str) -> Iterator[None]:
    """Run a shell command with the state of a run once it has ended; its failure is only told."""
    state = "failed"
    try:
        yield
        state = "finished"
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > _SIGNALS:
            state = "interrupted"
        raise
    finally:
        if command is not None:
            # To stderr, since stdout is for the result.
            code = subprocess.call(["sh", "-c", command, "sh", state, study], stdout=2)
            if code:
                click.echo(f"--on-end: `{command}` ended with {code}; the run stays {state}", err=True)


@contextmanager
def progress_of(metrics: Sequence[str]) -> Iterator[Progress]:
    """Show the progress of a run on stderr; one that is interrupted exits with 128 + the signal.

    stdout is for the result alone: output of libraries goes to stderr.
    """
    from nlgraft.commands.progress import Progress
    from nlgraft.execution.interruption import Interrupted

    try:
        with redirect_stdout(sys.stderr), Progress(sys.stderr, metrics) as progress:
            yield progress
    except Interrupted as interrupted:
        with suppress(OSError):  # SIGHUP: the terminal is gone
            click.echo(f"{interrupted}; run the same command again to resume", err=True)
        raise SystemExit(_SIGNALS + interrupted.signum) from None
