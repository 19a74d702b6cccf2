"""Commands that learn more from studies: does a small one foretell a large one, what made a gain."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nlgraft.commands.study_command import (
    FILE,
    find_study,
    has_address,
    has_json,
    has_storage,
    has_tracking,
    print_json,
    progress_of,
    reads_studies,
    with_study,
)

if TYPE_CHECKING:
    from nlgraft.study.public import Study


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
    from nlgraft.analysis.rendering.findings import agreement_table
    from nlgraft.commands.terminal import show_table

    groups = [shlex.split(scale) for scale in scales]
    are_named = [bool(words) and not words[0].startswith("@") and "=" not in words[0] for words in groups]
    groups = [
        words if is_named else [study_file, *words] for words, is_named in zip(groups, are_named, strict=True)
    ]
    if all(are_named):
        groups.insert(0, [study_file])
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
def ablation_path(study: Study, out: Path | None, is_running: bool, is_json: bool, **options: Any) -> None:
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
        out.write_text(outcome.declared, encoding="utf-8")
