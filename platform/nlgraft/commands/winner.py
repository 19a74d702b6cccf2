"""Commands that take a study's model away and use it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nlgraft.basics.errors import DataError, user_errors
from nlgraft.commands.study_command import has_json, print_json, with_study

if TYPE_CHECKING:
    from nlgraft.export.exported import ExportedModel
    from nlgraft.study.public import Study


@click.command
@with_study(has_results=True)
@click.option("--cell", help="factor=level, or the name of a level. Default: the best by the objective.")
@click.option("--seed", type=int, help="A finished seed. Default: that of the median score.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--log-model", "is_logged", is_flag=True, help="Log it to the study's experiment in MLflow.")
@click.option("--tracking-uri", help="MLflow tracking URI, with --log-model. Default: as for run.")
@has_json
def export(
    study: Study,
    cell: str | None,
    seed: int | None,
    out: Path,
    is_logged: bool,
    tracking_uri: str | None,
    is_json: bool,
) -> None:
    """Write a study's model: for transformers, CTranslate2 and nlgraft, with tokenizers and a card.

    STUDY is a file, or the name under which a study was run.
    """
    from nlgraft import api
    from nlgraft.export.description import USES

    exported = api.export_model(study, out, cell=cell, seed=seed)
    document = exported.to_json()
    if is_logged:
        document["model_uri"] = api.log_export(study, exported, tracking_uri)
    if is_json:
        print_json(document)
        return
    for reason in document["reasons"]:
        click.echo(reason, err=True)
    for name, how in sorted(exported.forms.items()):
        click.echo(f"{name}: {how}", err=True)
    if is_logged:
        uri, place = document["model_uri"], shlex.quote(api.resolved_tracking_uri(study, tracking_uri))
        serve = f"MLFLOW_TRACKING_URI={place} mlflow models serve -m {uri} --env-manager local"
        click.echo(f"MLflow: {uri}; next: {serve}", err=True)
    use = USES.get(document["task"])
    if use is not None:
        columns = document["columns"]
        several = f", with columns by tabs: {', '.join(columns)}" if len(columns) > 1 else ""
        click.echo(f"next: nlgraft {use} {out} < text{several}", err=True)
    click.echo(str(out))


@click.command
@click.argument("directory", type=click.Path(path_type=Path))
@user_errors
def translate(directory: Path) -> None:
    """Translate standard input with an exported model, line by line.

    Several sources are columns, with a tab between them. All lines are read before the first is translated.
    """
    from nlgraft import api

    model = api.load_model(directory)
    model.check_task("translation")
    _write(model.translate(*_columns(model)))


@click.command
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--probability", "has_probability", is_flag=True, help="Add the label's probability, by a tab.")
@user_errors
def classify(directory: Path, has_probability: bool) -> None:
    """Print the likeliest label of each line of standard input, by an exported model."""
    from nlgraft import api

    model = api.load_model(directory)
    model.check_task("classification")
    [lines] = _columns(model)
    if not has_probability:
        _write(model.classify(lines))
        return
    labels, probabilities_NC = model.probabilities(lines)
    _write([f"{labels[row.argmax()]}\t{row.max():.4f}" for row in probabilities_NC])


def _columns(model: ExportedModel) -> list[list[str]]:
    """Read the columns of a model's input from standard input; a line ends at LF or CRLF alone."""
    try:
        # Some editors on Windows begin a file with a byte order mark.
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: not UTF-8 ({error}); convert it") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    # The end of the last line is no further, empty line.
    if lines[-1] == "":
        lines.pop()
    if len(model.columns) == 1:
        tabbed = next((number for number, line in enumerate(lines, start=1) if "\t" in line), None)
        if tabbed:
            click.echo(
                f"standard input, line {tabbed}: has a tab, but the model reads one source, "
                f"{model.columns[0]}; all of the line is read as that",
                err=True,
            )
        return [lines]
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(model.columns):
            raise DataError(
                f"standard input, line {number}: {len(row)} columns, the model reads {len(model.columns)} "
                f"with a tab between them: {', '.join(model.columns)}"
            )
    return [[row[place] for row in rows] for place in range(len(model.columns))]


def _write(lines: list[str]) -> None:
    # As bytes: neither locale nor system changes the encoding or the ends of lines.
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
    sys.stdout.buffer.flush()
