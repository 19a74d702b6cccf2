"""Commands for archives of studies, the contents of a store, and comparisons."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import click

from nlgraft.basics.errors import EXIT_FAILED, DataError, user_errors
from nlgraft.commands.study_command import (
    find_study,
    has_json,
    has_storage,
    print_json,
    reads_studies,
    study_arguments,
    with_study,
)

if TYPE_CHECKING:
    from nlgraft.analysis.policy.hypotheses import SystemScores
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.runs.housekeeping import Removal
    from nlgraft.study.public import Study

_COMPARED = ("system", "metric", "seeds", "score", "difference", "interval", "p", "Holm", "verdict")


@click.command("pack")
@with_study()
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--without-models", is_flag=True, help="Leave weights out: the tables can still be checked.")
def pack(study: Study, out: Path, without_models: bool) -> None:
    """Pack a study with artifacts, ledger and text into one file, which `check` judges again.

    Its text goes with it: share the file only with whom you may share that.
    """
    from nlgraft.export.archive import pack

    archive = pack(study, _open(study.storage.path), out, has_models=not without_models)
    click.echo(f"{archive.study}: {archive.num_files} files; sha256 {archive.digest}", err=True)
    click.echo(f"next: nlgraft check {out}, anywhere", err=True)
    click.echo(str(out))


@click.command("unpack")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="New store.")
@user_errors
def unpack(archive: Path, out: Path) -> None:
    """Unpack a study into a store of its own, to report, export or continue it."""
    from nlgraft.export.archive import unpack

    unpacked = unpack(archive, out)
    click.echo(f"{unpacked.study}; next: nlgraft report {unpacked.study} --storage {out}", err=True)
    click.echo(str(out))


@click.command("check")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@has_json
@user_errors
def check(archive: Path, is_json: bool) -> None:
    """Judge a packed study again, without training, and compare every table with the packed one.

    An archive of which a byte was changed is refused; exit code 1 if a table comes out otherwise.
    """
    from nlgraft.export.archive import check

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


@click.command("ls")
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


@click.command("rm")
@study_arguments("STUDY")
@click.option("--yes", "is_sure", is_flag=True, help="Remove; otherwise it is only shown.")
@click.option("--forget", "is_forgotten", is_flag=True, help="Only the name: what it computed is left to gc.")
@has_storage
def rm(
    study_file: str, overrides: tuple[str, ...], is_sure: bool, is_forgotten: bool, storage: str | None
) -> None:
    """Remove a study from its store: trials and artifacts that no other study needs. Shown first.

    Its entries in the ledger and its registrations stay, since outcome rest on them; so do reports and
    runs in MLflow. The study's file is not touched.
    """
    from nlgraft.runs.housekeeping import StoreContents

    if is_forgotten:
        # By the name on record: the file may be gone, or not be readable any more.
        store = _open(storage)
        removal = StoreContents(store).only_name(study_file)
    else:
        study = find_study(study_file, overrides, storage)
        store = _open(study.storage.path)
        removal = StoreContents(store).without(study)
    _carry_out(removal, store, is_sure)


@click.command("gc")
@click.option("--yes", "is_sure", is_flag=True, help="Remove; otherwise it is only shown.")
@click.option(
    "--loose-trials",
    "has_loose",
    is_flag=True,
    help="Also trials of no study on record: of `trial`, `try`, and of studies before a change.",
)
@has_storage
@reads_studies
def gc(is_sure: bool, has_loose: bool, storage: str | None) -> None:
    """Remove artifacts and checkpoints of a store that nothing needs. Shown first."""
    from nlgraft.runs.housekeeping import StoreContents

    store = _open(storage)
    _carry_out(StoreContents(store).leftovers(has_loose_trials=has_loose), store, is_sure)


@click.command("config")
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


@click.command("diff")
@click.argument("first", metavar="LEFT")
@click.argument("second", metavar="RIGHT")
@has_storage
@has_json
@reads_studies
def diff(first: str, second: str, storage: str | None, is_json: bool) -> None:
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


@click.command("compare")
@click.argument("hypotheses", nargs=-1, required=True, metavar="HYP...")
@click.option("--ref", "reference", required=True, help="File of references, a line for each hypothesis.")
@click.option(
    "--sys-name",
    "names",
    multiple=True,
    help="System of each HYP, in order; files of one system are its seeds.",
)
@click.option("--metric", "metrics", multiple=True, default=["bleu"], show_default=True, help="Repeatable.")
@click.option(
    "--ledger",
    metavar="STORE",
    help="Store that remembers what was compared on these lines; nlgraft_store here, if there is one.",
)
@has_json
@user_errors
def compare(
    hypotheses: tuple[str, ...],
    reference: str,
    names: tuple[str, ...],
    metrics: tuple[str, ...],
    ledger: str | None,
    is_json: bool,
) -> None:
    """Compare files of hypotheses of any systems with those of the first, as the cells of a study.

    Paired over segments and seeds, with Holm's correction over all comparisons of the call. Without
    --sys-name each file is a system with one seed, which decides nothing: its interval covers segments alone.
    Verdicts need a ledger: the same call with twice or four times the files is its next look.
    """
    from nlgraft.analysis.policy.hypotheses import compare_systems
    from nlgraft.commands.terminal import plain_table
    from nlgraft.study.data.study import Storage

    if not all(name.strip() for name in names):
        raise DataError("--sys-name: empty; name each system")
    if names and len(names) != len(hypotheses):
        raise DataError(
            f"{len(hypotheses)} files and {len(names)} --sys-name: give one for each file, or none"
        )
    systems: dict[str, list[str]] = {}
    for name, path in zip(names or hypotheses, hypotheses, strict=True):
        systems.setdefault(name, []).append(path)
    # Without a store nothing remembers the comparison, so that it gets no verdict.
    has_ledger = ledger is not None or Path(Storage().path).is_dir()
    # Files are compared as cells of a study are, by the same tests and rules.
    scores = compare_systems(systems, reference, metrics, _open(ledger) if has_ledger else None)
    if is_json:
        print_json([system.to_json() for system in scores])
    else:
        plain_table(_COMPARED, [_compared_row(system) for system in scores])
        comparisons = [system.comparison for system in scores if system.comparison is not None]
        notes = [note for comparison in comparisons for note in comparison.notes]
        signatures = [f"{system.metric}: {system.signature}" for system in scores]
        # Systems share notes and signatures: each is printed once.
        click.echo("\n".join(dict.fromkeys([*notes, *signatures])))


def _compared_row(system: SystemScores) -> tuple[str, ...]:
    spread = f" ± {stdev(system.values):.2f}" if len(system.values) > 1 else ""
    score = (system.name, system.metric, str(len(system.values)), f"{fmean(system.values):.2f}{spread}")
    comparison = system.comparison
    if comparison is None:
        return (*score, "", "", "", "", "the others are compared with it")
    ends = "" if comparison.ci is None else f"{comparison.ci[0]:+.2f} to {comparison.ci[1]:+.2f}"
    p_values = ("" if p is None else f"{p:.3g}" for p in (comparison.p, comparison.p_holm))
    return (*score, f"{comparison.difference or 0:+.2f}", ends, *p_values, comparison.verdict)


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
