"""The command line: parse and call. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nlgraft.exits import EXIT_DOES_NOT_FIT, EXIT_FAILED, fails_politely
from nlgraft.vocab_cli import vocab

if TYPE_CHECKING:
    from nlgraft.study.public import Study


def _study_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command that takes a study file and overrides."""

    def declare(function: Callable[..., None]) -> click.Command:
        command = fails_politely(function)
        command = click.argument("overrides", nargs=-1)(command)
        command = click.argument("study_file", metavar="STUDY.yaml")(command)
        return main.command(name)(command)

    return declare


def _read(study_file: str, overrides: tuple[str, ...], storage: str | None = None) -> Study:
    from nlgraft.study.public import Study

    extra = [] if storage is None else [f"storage.path={json.dumps(storage)}"]
    return Study.from_yaml(study_file, overrides=[*overrides, *extra])


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, ensure_ascii=False))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nlgraft")
def main() -> None:
    """Which choice matters when a pretrained language model is grafted onto text generation?

    STUDY.yaml is followed by overrides: key=value, or @scale for a named set of them.
    """
    # a system is named by import path and may lie in the working directory, as uvicorn takes module:app
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


@_study_command("validate")
def validate(study_file: str, overrides: tuple[str, ...]) -> None:
    """Check a study; print every problem with its path and what is allowed."""
    from nlgraft.study.data.design import cells

    study = _read(study_file, overrides)
    count = len(cells(study))
    click.echo(f"{study_file}: good; {count} cells, {len(study.seeds)} seeds", err=True)


@_study_command("plan")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--storage", help="Artifact store: directory or URI.")
def plan(study_file: str, overrides: tuple[str, ...], is_json: bool, storage: str | None) -> None:
    """Say what a run would do: cells, trials, stages shared or done, concurrency, cost and disk."""
    from nlgraft import api
    from nlgraft.terminal import plan_table

    study = _read(study_file, overrides, storage)
    found = api.plan(study)
    if is_json:
        _print_json(found.to_json())
    else:
        plan_table(study, found)
    if found.problems:
        for problem in found.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(EXIT_DOES_NOT_FIT)


@_study_command("run")
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON, as the last line of stdout.")
@click.option("--only", multiple=True, metavar="FACTOR=LEVEL", help="Run these cells only, and the baseline.")
@click.option("--address", help="A running Ray cluster, e.g. auto; a local one is started otherwise.")
@click.option("--storage", help="Artifact store: directory or URI.")
@click.option("--tracking-uri", help="MLflow tracking URI; a SQLite file beside the store otherwise.")
def run(
    study_file: str,
    overrides: tuple[str, ...],
    is_json: bool,
    only: tuple[str, ...],
    address: str | None,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Run what the study plans and the store does not hold; end with the comparison table."""
    from nlgraft import api
    from nlgraft.execution.sweep import Interrupted
    from nlgraft.terminal import Progress, result_table

    study = _read(study_file, overrides, storage)
    try:
        # stdout belongs to the result: whatever a library prints meanwhile goes to stderr
        with redirect_stdout(sys.stderr), Progress(sys.stderr) as progress:
            result = api.launch(
                study, address=address, only=only, tracking_uri=tracking_uri, on_event=progress.show
            )
    except Interrupted as interrupted:
        click.echo(f"{interrupted}; run the same command again to go on", err=True)
        raise SystemExit(128 + interrupted.signum) from None
    document = result.to_json()
    if is_json:
        _print_json(document)
    else:
        result_table(document, result.rows(), result.effect_rows())
    # cells that --only left out are planned, no failure of this run
    if any(cell["state"] not in ("finished", "planned") for cell in document["cells"]):
        raise SystemExit(EXIT_FAILED)


@_study_command("trial")
@click.option("--cell", default="baseline", show_default=True, help="factor=level, or a level's name.")
@click.option("--seed", type=int, help="One of the study's seeds; the first one otherwise.")
@click.option("--storage", help="Artifact store: directory or URI.")
@click.option("--json", "is_json", is_flag=True, help="Print the trial's record as JSON.")
def trial(
    study_file: str,
    overrides: tuple[str, ...],
    cell: str,
    seed: int | None,
    storage: str | None,
    is_json: bool,
) -> None:
    """Run one trial in this process, without Ray: for debugging."""
    from nlgraft import api
    from nlgraft.terminal import LineReporter

    record = api.run_one(_read(study_file, overrides, storage), cell, seed, LineReporter(sys.stderr))
    if is_json:
        _print_json(record.to_json())
    else:
        for name, value in sorted(record.metrics.items()):
            click.echo(f"{name}\t{value:g}")
    if record.state != "finished":
        click.echo(f"{record.state}: {record.reason}", err=True)
        raise SystemExit(EXIT_FAILED)


@_study_command("status")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds until nothing runs.")
@click.option("--storage", help="Artifact store: directory or URI.")
def status(
    study_file: str, overrides: tuple[str, ...], is_json: bool, watch: bool, storage: str | None
) -> None:
    """Count the trials of each cell: planned, waiting, running, finished, stopped, failed."""
    from nlgraft import api
    from nlgraft.terminal import status_table, watch_status

    study = _read(study_file, overrides, storage)
    if watch:
        watch_status(lambda: api.status(study))
    elif is_json:
        _print_json(api.status(study))
    else:
        status_table(api.status(study))


@_study_command("report")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(["md", "html", "latex", "csv", "json"]),
    help="May be given several times; md otherwise.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write files there.")
@click.option("--storage", help="Artifact store: directory or URI.")
def report(
    study_file: str,
    overrides: tuple[str, ...],
    formats: tuple[str, ...],
    out: Path | None,
    storage: str | None,
) -> None:
    """Report what the store holds of a study."""
    from nlgraft import api

    result = api.load(_read(study_file, overrides, storage))
    wanted = list(formats) or ["md"]
    if out is None:
        for name in wanted:
            click.echo(result.render(name))
        return
    for path in result.report(out, formats=wanted):
        click.echo(str(path))


@_study_command("submit")
@click.option("--address", help="Job server, e.g. http://HEAD:8265; RAY_API_SERVER_ADDRESS otherwise.")
@click.option("--storage", help="Artifact store: directory or URI that the cluster can reach.")
@click.option("--tracking-uri", help="MLflow tracking URI that the cluster can reach.")
def submit(
    study_file: str,
    overrides: tuple[str, ...],
    address: str | None,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Submit `nlgraft run` to a Ray cluster; print the job id."""
    from nlgraft.execution.job import submit_run

    _read(study_file, overrides, storage)
    options = [] if storage is None else ["--storage", storage]
    options += [] if tracking_uri is None else ["--tracking-uri", tracking_uri]
    click.echo(submit_run(study_file, overrides, address, options))


@main.command("systems")
@click.argument("name", required=False)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@fails_politely
def systems(name: str | None, is_json: bool) -> None:
    """List the systems, or every knob of one: default, range, unit and paper section."""
    from nlgraft import api
    from nlgraft.terminal import knobs_table, systems_table

    if name is None:
        found = api.systems()
        if is_json:
            _print_json(found)
        else:
            systems_table(found)
        return
    knobs = api.knobs(name)
    if is_json:
        _print_json(knobs)
    else:
        knobs_table(knobs)


@main.command("schema")
def schema() -> None:
    """Print the JSON schema of a study, for editors."""
    from nlgraft.study.public import Study

    click.echo(json.dumps(Study.json_schema(), indent=2))


main.add_command(vocab)
