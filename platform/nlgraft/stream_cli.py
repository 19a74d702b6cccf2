"""The command `nlgraft try`: one proposal of a stream."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout, suppress

import click

from nlgraft.exits import EXIT_FAILED, fails_politely


@click.command("try")
@click.argument("study_file", metavar="STUDY.yaml")
@click.argument("overrides", nargs=-1)
@click.option("--against", metavar="KEPT", help="A kept proposal's number, or baseline. Default: kept last.")
@click.option(
    "--max-seeds",
    type=click.IntRange(min=3, max=24),
    default=24,
    show_default=True,
    help="Answer MORE if so many have not decided; the same command goes on.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the answer as JSON, as the last line of stdout.")
@click.option("--address", help="A running Ray cluster, e.g. auto. Default: start a local one.")
@click.option("--storage", help="Artifact store: directory or URI.")
@click.option("--tracking-uri", help="MLflow tracking URI. Default: a SQLite file beside the store.")
@fails_politely
def try_proposal(
    study_file: str,
    overrides: tuple[str, ...],
    against: str | None,
    max_seeds: int,
    is_json: bool,
    address: str | None,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Try a change of the study's baseline, or of what was kept of it: KEEP, DISCARD or MORE.

    key=value are put on top of what is kept; @scale chooses the study. Seeds are added until the evidence
    decides, on dev. What is kept is measured again on fresh seeds. Of all that is kept, at most the study's
    alpha (5 %) is expected to be no gain. The same command again repeats its answer, or goes on.
    """
    from nlgraft import api
    from nlgraft.execution.cluster import prepare_process
    from nlgraft.execution.interruption import Interrupted
    from nlgraft.progress import Progress
    from nlgraft.study.planning.proposed import split_overrides
    from nlgraft.study.public import Study

    prepare_process(address)
    chosen, changes = split_overrides(overrides)
    place = [] if storage is None else [f"storage.path={json.dumps(storage)}"]
    study = Study.from_yaml(study_file, overrides=[*chosen, *place])
    try:
        # stdout is for the answer alone: whatever libraries print goes to stderr
        with redirect_stdout(sys.stderr), Progress(sys.stderr, [study.objectives[0].metric]) as progress:
            answer = api.propose(
                study,
                changes,
                against=against,
                max_seeds=max_seeds,
                address=address,
                tracking_uri=tracking_uri,
                on_event=progress.show,
            )
    except Interrupted as interrupted:
        with suppress(OSError):  # SIGHUP: the terminal is gone
            click.echo(f"{interrupted}; run the same command again to go on", err=True)
        raise SystemExit(128 + interrupted.signum) from None
    if is_json:
        click.echo(json.dumps(answer.to_json(), ensure_ascii=False))
    else:
        click.echo("\n".join(answer.lines()))
    if answer.has_failed:
        raise SystemExit(EXIT_FAILED)
