"""Commands about what a store remembers and shows: analyses, registrations, proposals, gains."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nlgraft.basics.errors import EXIT_FAILED
from nlgraft.basics.wording import visible
from nlgraft.commands.study_command import (
    FILE,
    find_study,
    has_address,
    has_json,
    has_storage,
    has_tracking,
    print_json,
    progress_of,
    read_study,
    reads_studies,
    study_arguments,
    with_study,
)

if TYPE_CHECKING:
    from nlgraft.study.public import Study


@click.command
@click.argument("study", required=False)
@has_json
@has_storage
@reads_studies
def ledger(
    study: str | None,
    is_json: bool,
    storage: str | None,
) -> None:
    """List the analyses shown from a store, and the proposals tried.

    Of one study, or of all. Verdicts are corrected over the analyses of the same test segments.
    """
    from dataclasses import asdict

    from nlgraft import api
    from nlgraft.commands.terminal import ledger_list

    entries, streams = api.ledger(study, storage), api.streams(study, storage)
    if is_json:
        from nlgraft.analysis.rendering.journals import streams_document

        analyses = [{"number": number, **asdict(entry)} for number, entry in entries.items()]
        print_json({"analyses": analyses, "streams": streams_document(streams)})
    elif entries or streams:
        ledger_list(entries, streams)
    else:
        click.echo(f"nothing was shown from {storage or 'this store'} yet. For another: --storage", err=True)


@click.command
@with_study()
@click.option("--show", "is_shown", is_flag=True, help="Register nothing; print what is registered.")
@has_json
def register(study: Study, is_shown: bool, is_json: bool) -> None:
    """Freeze what a study asks, with a date and a digest to quote.

    Frozen are claims, cells, seeds, looks, metrics, analysis and data. Reports then say that the study
    ran as registered, or list every deviation. What is registered already keeps its date.
    """
    from dataclasses import asdict

    from nlgraft import api
    from nlgraft.commands.terminal import registrations_list

    registrations = api.registrations(study) if is_shown else [api.register(study)]
    if is_json:
        documents = [asdict(registration) for registration in registrations]
        print_json(documents if is_shown else documents[0])
    elif registrations:
        registrations_list(registrations)
    else:
        click.echo(f"{study.name} is not registered in {study.storage.path}", err=True)


@click.command("try")
@study_arguments()
@click.option("--against", metavar="KEPT", help="A kept proposal's number, or baseline. Default: kept last.")
@click.option(
    "--max-seeds",
    type=click.IntRange(min=3, max=24),
    default=24,
    show_default=True,
    help="Answer MORE if so many have not decided; the same command then continues.",
)
@has_json
@has_address("A running Ray cluster, e.g. auto. Default: start a local one.")
@has_storage
@has_tracking
def try_proposal(
    study_file: str,
    overrides: tuple[str, ...],
    is_json: bool,
    address: str | None,
    storage: str | None,
    **options: Any,
) -> None:
    """Try one change against what is kept: KEEP, DISCARD or MORE.

    key=value are put on top of what is kept, at first the study's baseline; @scale chooses the study.
    It is decided on dev, at 3, 6, 12 or 24 seeds. What is kept is measured again on fresh seeds. Of all
    that is kept, at most twice the study's alpha (10 %) is expected to be no gain. The same command
    again repeats its answer, or continues.
    """
    from nlgraft import api
    from nlgraft.execution.cluster import prepare_process
    from nlgraft.runs.proposing import split_overrides

    prepare_process(address)
    # A scale or a store says which study is meant; everything else is the proposal.
    chosen, changes = split_overrides(overrides)
    study = read_study(study_file, chosen, storage)
    with progress_of([study.objective.metric]) as progress:
        answer = api.propose(study, changes, address=address, on_event=progress.show, **options)
    if is_json:
        print_json(answer.to_json())
    else:
        click.echo("\n".join(answer.lines()))
    # The answer is printed all the same: what was learned so far is in it.
    if answer.has_failed:
        raise SystemExit(EXIT_FAILED)


@click.command
@with_study()
@has_json
@click.option("--only", multiple=True, metavar="FACTOR=LEVEL", help="Only these cells and the baseline.")
@click.option("--discard", is_flag=True, help="Remove artifacts that cannot be used; `run` makes them again.")
@has_tracking
def verify(
    study: Study,
    is_json: bool,
    only: tuple[str, ...],
    discard: bool,
    tracking_uri: str | None,
) -> None:
    """Check that store, Optuna and MLflow hold every trial once and whole.

    Every byte of every artifact is read. What is wrong is listed with what to do; the exit code is then 1.
    STUDY is a file or the name of a run, `demo@tiny-1f0c6a2e`.
    """
    from nlgraft import api

    verification = api.verify(study, only=only, tracking_uri=tracking_uri, is_discarding=discard)
    if is_json:
        print_json(verification.to_json())
    else:
        click.echo(visible("\n".join(verification.lines())))
    if not verification.is_clean:
        raise SystemExit(EXIT_FAILED)


@click.command
@click.argument("study_file", metavar="STUDY")
@click.argument("scales", nargs=-1, required=True, metavar="SCALE...")
@click.option("--target", metavar="METRIC", help="Metric of the largest scale. Default: the objective.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="By which smaller scales order; repeatable. Default: the target.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Share of pairs of arms that is good enough.",
)
@has_storage
@has_json
@reads_studies
def agreement(
    study_file: str,
    scales: tuple[str, ...],
    target: str | None,
    metrics: tuple[str, ...],
    threshold: float,
    storage: str | None,
    is_json: bool,
) -> None:
    """Tell how far small scales order the arms as the largest one does: decision accuracy.

    SCALE is @scale, or overrides in one word, 'model.d_model=64 model.ffn_dim=256', or another study, with
    overrides or without; the largest is the last. Where all are studies, STUDY is the first scale. Only
    finished trials are read. Scores on dev cost no verdict; those of test enter the ledger.
    """
    from nlgraft import api
    from nlgraft.analysis.rendering.tables import agreement_table
    from nlgraft.commands.terminal import show_table

    groups = [shlex.split(scale) for scale in scales]
    of_studies = [words for words in groups if words and not words[0].startswith("@") and "=" not in words[0]]
    if of_studies == groups:
        groups.insert(0, [study_file])
    else:
        groups = [words if words in of_studies else [study_file, *words] for words in groups]
    studies = [find_study(words[0], words[1:], storage) for words in groups]
    outcome = api.agreement(studies, target=target, metrics=metrics, threshold=threshold)
    if is_json:
        print_json(outcome.to_json())
    else:
        show_table(agreement_table(outcome))
    storage_words = [] if storage is None else ["--storage", storage]
    for study, words in zip(studies, groups, strict=True):
        if labels := outcome.missing[study.variant]:
            command = shlex.join(["nlgraft", "run", *words, *storage_words])
            click.echo(f"{study.variant} lacks trials of {', '.join(labels)}: {command}", err=True)


@click.command("path")
@with_study()
@click.option("--cell", default="baseline", show_default=True, help="The cell whose search it is.")
@click.option("--run", "is_running", is_flag=True, help="Run the trials that are missing, scored on dev.")
@click.option(
    "--out",
    type=FILE,
    help="Write a study of the finished path, on fresh seeds, whose `run` gives verdicts.",
)
@has_json
@has_address("A running Ray cluster, e.g. auto. Default: start a local one.")
@has_tracking
def ablation_path(
    study: Study,
    out: Path | None,
    is_running: bool,
    is_json: bool,
    **options: Any,
) -> None:
    """Tell which changes of a search's winner made its gain: a path from default to winner.

    At each step the change that gains most on dev is taken, paired over the study's seeds. Without --run it
    is shown as far as its trials have finished.
    """
    from nlgraft import api
    from nlgraft.commands.terminal import show_table
    from nlgraft.execution.cluster import prepare_process

    prepare_process(options["address"])
    with progress_of([study.objective.metric]) as progress:
        outcome = api.ablation_path(study, is_running=is_running, on_event=progress.show, **options)
    if is_json:
        print_json(asdict(outcome))
    else:
        show_table(outcome.table())
    if outcome.num_waiting:
        click.echo("next: the same command with --run", err=True)
    elif out is None:
        click.echo("next: --out PATH.yaml, then nlgraft run PATH.yaml, for verdicts on fresh seeds", err=True)
    else:
        out.write_text(outcome.declared, "utf-8")
