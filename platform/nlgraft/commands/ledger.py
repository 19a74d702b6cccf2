"""Commands about what a store remembers: analyses, registrations, proposals, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nlgraft.basics.errors import EXIT_FAILED
from nlgraft.basics.wording import visible
from nlgraft.commands.study_command import (
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
def ledger(study: str | None, is_json: bool, storage: str | None) -> None:
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
    study: Study, is_json: bool, only: tuple[str, ...], discard: bool, tracking_uri: str | None
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
