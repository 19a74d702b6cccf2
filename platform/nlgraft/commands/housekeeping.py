"""Commands for archives of studies, the contents of a store, and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from nlgraft.basics.errors import EXIT_FAILED, DataError, StudyError, user_errors
from nlgraft.basics.wording import grouped
from nlgraft.commands.study_command import (
    DIRECTORY,
    FILE,
    find_study,
    has_json,
    has_storage,
    print_json,
    reads_studies,
    study_arguments,
    with_study,
)

if TYPE_CHECKING:
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.runs.housekeeping import Removal
    from nlgraft.study.public import Study


_if_sure = click.option("--yes", "is_sure", is_flag=True, help="Remove; otherwise it is only shown.")


@click.command
@with_study()
@click.option("--out", required=True, type=FILE, help="File to write.")
@click.option("--without-models", is_flag=True, help="Leave weights out: the tables can still be checked.")
def pack(study: Study, out: Path, without_models: bool) -> None:
    """Pack a study with artifacts, ledger and text into one file, which `check` judges again.

    Its text goes with it: share the file only with whom you may share that.
    """
    from nlgraft.runs.archive import pack

    archive = pack(study, _open(study.storage.path), out, has_models=not without_models)
    click.echo(f"{archive.study}: {archive.num_files} files; sha256 {archive.digest}", err=True)
    click.echo(f"next: nlgraft check {out}, anywhere", err=True)
    click.echo(str(out))


@click.command
@click.argument("archive", type=FILE)
@click.option("--out", required=True, type=DIRECTORY, help="New store.")
@user_errors
def unpack(archive: Path, out: Path) -> None:
    """Unpack a study into a store of its own, to report, export or continue it."""
    from nlgraft.runs.archive import unpack

    unpacked = unpack(archive, out)
    click.echo(f"{unpacked.study}; next: nlgraft report {unpacked.study} --storage {out}", err=True)
    click.echo(str(out))


@click.command
@click.argument("archive", type=FILE)
@has_json
@user_errors
def check(archive: Path, is_json: bool) -> None:
    """Judge a packed study again, without training, and compare every table with the packed one.

    An archive of which a byte was changed is refused; exit code 1 if a table comes out otherwise.
    """
    from nlgraft.runs.archive import check

    outcome = check(archive)
    if is_json:
        print_json({"study": outcome.study, "sha256": outcome.digest, "differing": list(outcome.differing)})
    elif not outcome.differing:
        click.echo(f"{outcome.study}: the same tables, to the byte; sha256 {outcome.digest}")
    # On stderr also with --json: stdout is for the document alone.
    if outcome.differing:
        listed = ", ".join(outcome.differing)
        click.echo(f"{outcome.study}: made again from its scores, these differ: {listed}", err=True)
        raise SystemExit(EXIT_FAILED)


@click.command
@has_storage
@has_json
@reads_studies
def ls(storage: str | None, is_json: bool) -> None:
    """List the studies that were run on a store: state, size, last run, registered or not.

    Size is that of all its artifacts; in brackets that of those which no other study uses.
    """
    from datetime import datetime

    from nlgraft.basics.wording import size
    from nlgraft.commands.terminal import plain_table
    from nlgraft.runs.housekeeping import StoreContents

    store = _open(storage)
    rows = StoreContents(store).rows()
    if is_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"no study was run on {store.name}. For another: --storage", err=True)
        return
    shown = [
        (
            row["study"],
            f"{size(row['bytes'])} ({size(row['own_bytes'])})",
            "" if row["last_run"] is None else f"{datetime.fromtimestamp(row['last_run']):%Y-%m-%d %H:%M}",
            "yes" if row["is_registered"] else "no",
            row["state"],
        )
        for row in rows
    ]
    plain_table(("study", "size (alone)", "last run", "registered", "trials"), shown)


@click.command
@study_arguments("STUDY")
@_if_sure
@has_storage
def rm(
    study_file: str,
    overrides: tuple[str, ...],
    is_sure: bool,
    storage: str | None,
) -> None:
    """Remove a study from its store: trials and artifacts that no other study needs. Shown first.

    Its entries in the ledger and its registrations stay, since verdicts rest on them; so do reports and
    runs in MLflow. The study's file is not touched. Of a study that cannot be read any more, only the name
    is removed, and gc finds what nothing needs then.
    """
    from nlgraft.runs.housekeeping import StoreContents
    from nlgraft.study.reading.reader import recorded_names

    try:
        study = find_study(study_file, overrides, storage)
        store, name = _open(study.storage.path), study.variant
    except StudyError:
        # Its system may be gone: then the name on record is all that is known.
        store, name = _open(storage), study_file
        if overrides or name not in recorded_names(store):
            raise
    _carry_out(StoreContents(store).without(name), store, is_sure)


@click.command
@_if_sure
@click.option(
    "--loose-trials",
    "has_loose",
    is_flag=True,
    help="Also trials of no study on record: of `trial`, `try`, and of studies before a change.",
)
@has_storage
@reads_studies
def gc(
    is_sure: bool,
    has_loose: bool,
    storage: str | None,
) -> None:
    """Remove artifacts and checkpoints of a store that nothing needs. Shown first."""
    from nlgraft.runs.housekeeping import StoreContents

    store = _open(storage)
    _carry_out(StoreContents(store).leftovers(has_loose_trials=has_loose), store, is_sure)


@click.command
@with_study()
@click.option("--cell", default="baseline", show_default=True, help="factor=level, or the name of a level.")
@has_json
def config(study: Study, cell: str, is_json: bool) -> None:
    """Print the resolved settings of a cell, with the values that its search chose."""
    from nlgraft.study.data.design import find_cell
    from nlgraft.study.planning.selection import chosen_params
    from nlgraft.study.reading.documents import masked, write_yaml
    from nlgraft.study.reading.resolving import resolve_config

    chosen_cell = find_cell(study, cell)
    params = chosen_params(study, chosen_cell, _open(study.storage.path))
    values = masked(resolve_config(study, chosen_cell, params).model_dump(mode="json"))
    # Not an error: who asks wants to see what the search will start from.
    if params is None:
        click.echo("the search of this cell has not ended: its settings are those before it", err=True)
    if is_json:
        print_json(values)
    else:
        click.echo(write_yaml(values), nl=False)


@click.command
@click.argument("first", metavar="LEFT")
@click.argument("second", metavar="RIGHT")
@has_storage
@has_json
@reads_studies
def diff(
    first: str,
    second: str,
    storage: str | None,
    is_json: bool,
) -> None:
    """Show what differs between two studies, files or names: settings, data, results."""
    from nlgraft.commands.terminal import plain_table
    from nlgraft.runs.housekeeping import differences

    old = find_study(first, (), storage)
    new = find_study(second, (), storage)
    rows_by_part = differences(old, new)
    if is_json:
        print_json(rows_by_part)
        return
    for part, rows in rows_by_part.items():
        plain_table((part, old.variant, new.variant), rows or [("no difference", "", "")])


@click.command
@click.argument("hypotheses", nargs=-1, metavar="[HYP...]")
@click.option("--ref", "reference", help="File of references, a line for each hypothesis.")
@click.option(
    "--sys-name",
    "names",
    multiple=True,
    help="System of each HYP, in order; files of one system are its seeds.",
)
@click.option(
    "--scores",
    "sources",
    multiple=True,
    metavar="[SYSTEM=]FILE",
    help="Scores of others: a table, a directory of lm_eval --log_samples, a file of sacreBLEU, COMET or "
    "HELM; repeatable. Files of one system are its seeds.",
)
@click.option("--mlflow", "uri", metavar="URI", help="Scores from runs that others logged to MLflow.")
@click.option("--experiment", help="Their experiment.")
@click.option("--arm", metavar="KEY", help="Parameter or tag of the runs that names the system.")
@click.option("--seed", metavar="KEY", default="seed", show_default=True, help="That of their seed.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Repeatable, the first decides. Default: bleu, or the only metric of the scores.",
)
@click.option("--baseline", help="System that the others are compared with, of scores; else the first.")
@click.option(
    "--lower-is-better", "is_lower_better", is_flag=True, help="Of scores whose metric does not say it."
)
@click.option(
    "--ledger",
    metavar="STORE",
    help="Store that remembers what was compared on these lines. Default: nlgraft_store here, if there is "
    "one; else nothing remembers it, and there is no verdict.",
)
@click.option("--format", "kind", type=click.Choice(["md", "html"]), help="A table as a report has it.")
@has_json
@user_errors
def compare(
    hypotheses: tuple[str, ...],
    reference: str | None,
    names: tuple[str, ...],
    sources: tuple[str, ...],
    uri: str | None,
    experiment: str | None,
    arm: str | None,
    seed: str,
    metrics: tuple[str, ...],
    baseline: str | None,
    is_lower_better: bool,
    ledger: str | None,
    kind: Literal["md", "html"] | None,
    is_json: bool,
) -> None:
    """Compare systems that were not trained here with the first of them, as the cells of a study.

    By files of hypotheses (HYP and --ref), by scores that others computed (--scores), or by runs in MLflow
    (--mlflow). Paired over items and seeds, with Holm's correction over all comparisons of the call. One run
    of each system decides nothing about them: the interval covers items alone. Verdicts need a ledger: the
    same call with twice or four times the seeds is its next look.
    """
    from nlgraft.analysis.data.score_tables import read_scores
    from nlgraft.analysis.estimates.comparison import rounded_all
    from nlgraft.analysis.policy.hypotheses import compare_scores, compare_systems
    from nlgraft.analysis.rendering.report import render_systems
    from nlgraft.analysis.rendering.tables import systems_table
    from nlgraft.commands.terminal import show_table
    from nlgraft.study.data.study import Storage

    if [bool(hypotheses), bool(sources), uri is not None].count(True) != 1:
        raise DataError("give one of: files of hypotheses with --ref, --scores, --mlflow")
    unread: dict[str, object] = {"--ref": reference, "--sys-name": names}
    if hypotheses:
        unread = {"--baseline": baseline, "--lower-is-better": is_lower_better}
    if uri is None:
        unread |= {"--experiment": experiment, "--arm": arm}
    if ignored := [option for option, value in unread.items() if value]:
        raise DataError(f"{', '.join(ignored)}: has no effect here; `nlgraft compare --help` says where")
    # Without a store nothing remembers the comparison, so that it gets no verdict.
    has_ledger = ledger is not None or Path(Storage().path).is_dir()
    store = _open(ledger) if has_ledger else None
    if hypotheses:
        systems = _hypotheses_by_system(hypotheses, names, reference)
        scores = compare_systems(systems, reference or "", metrics or ("bleu",), store)
        # Systems share signatures: each is shown once.
        notes = list(dict.fromkeys(f"{system.metric}: {system.signature}" for system in scores))
    else:
        table = read_scores(sources, metrics)
        if uri is not None:
            # MLflow takes a second to import.
            from nlgraft.tracking.logged_runs import logged_runs

            if experiment is None or arm is None:
                raise DataError("--mlflow needs --experiment NAME and --arm KEY, a parameter or tag")
            runs, table.notes = logged_runs(uri, experiment, arm, seed)
            table.add(experiment, "", runs)
        name = f"scores of {experiment or Path(sources[0].rpartition('=')[2]).name}"
        scores, notes = compare_scores(table, name, baseline, store, is_lower_better=is_lower_better)
    if store is not None:
        another, place = "" if ledger else "; --ledger STORE takes another", ledger or Storage().path
        notes.append(
            f"kept in the ledger of {place}, which `nlgraft ledger --storage {place}` lists{another}"
        )
    if is_json:
        print_json(rounded_all(scores))
        click.echo("\n".join(notes), err=True)
    elif kind:
        click.echo(render_systems(scores, notes, kind))
    else:
        show_table(systems_table(scores, notes))


def _hypotheses_by_system(
    hypotheses: Sequence[str], names: Sequence[str], reference: str | None
) -> dict[str, list[str]]:
    if reference is None:
        raise DataError("files of hypotheses need --ref, a file of references")
    if not all(name.strip() for name in names):
        raise DataError("--sys-name: empty; name each system")
    if names and len(names) != len(hypotheses):
        raise DataError(
            f"{len(hypotheses)} files and {len(names)} --sys-name: give one for each file, or none"
        )
    return grouped(zip(names or hypotheses, hypotheses, strict=True))


def _open(storage: str | None) -> ArtifactStore:
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.study.data.study import Storage

    return ArtifactStore.open(storage or Storage().path)


def _carry_out(removal: Removal, store: ArtifactStore, is_sure: bool) -> None:
    from nlgraft.basics.wording import size

    # Keys on stdout, for other programs; the summary on stderr.
    for key in removal.keys:
        click.echo(key)
    summary = f"{len(removal.keys)} entries, {size(removal.num_bytes)}"
    if removal.forgotten is not None:
        summary = f"study {removal.forgotten}: its name, {summary}"
    if is_sure:
        removal.carry_out(store)
    click.echo(f"{summary}: {'removed' if is_sure else 'would be removed; --yes removes them'}", err=True)
