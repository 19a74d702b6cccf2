"""Commands to start with: systems, their settings, studies, and whether this machine can run them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nlgraft.basics.errors import EXIT_FAILED, DataError, user_errors
from nlgraft.commands.study_command import (
    DIRECTORY,
    FILE,
    has_address,
    has_json,
    has_tracking,
    print_json,
    reads_studies,
)


@click.command
@click.argument("name", required=False)
@click.argument("prefix", default="")
@click.option("--essential", "is_essential", is_flag=True, help="Only settings that many studies set.")
@click.option("--metrics", "has_metrics", is_flag=True, help="What its trials report.")
@has_json
@reads_studies
def systems(
    name: str | None,
    prefix: str,
    is_essential: bool,
    has_metrics: bool,
    is_json: bool,
) -> None:
    """List the systems, or the settings of one.

    Without PREFIX a system's parts are shown; with PREFIX (data.upstream, transfer) every setting below it.
    """
    from nlgraft.commands import settings_screen
    from nlgraft.study.reading.catalogue import find_system, metrics_of, settings_of, shipped_systems

    if name is None:
        shipped = shipped_systems()
        if is_json:
            print_json(shipped)
        else:
            settings_screen.show_systems(shipped)
        return
    system = find_system(name)
    if has_metrics:
        rows = [row for row in metrics_of(system) if row["metric"].startswith(prefix)]
        if is_json:
            print_json(rows)
        else:
            settings_screen.show_metrics(system, rows)
        return
    knobs = settings_of(system, prefix, is_essential=is_essential)
    if is_json:
        print_json(knobs)
    elif prefix or is_essential:
        # Of all settings, since a condition may name one of another part.
        choices = {
            knob["path"]: knob["allowed"].split(", ")
            for knob in settings_of(system)
            if "one of" in knob["type"]
        }
        settings_screen.show_settings(knobs, choices)
    else:
        settings_screen.show_system(system, knobs)


@click.command
@has_json
@user_errors
def studies(is_json: bool) -> None:
    """List the studies that come with nlgraft; run takes their names."""
    from nlgraft.commands import settings_screen
    from nlgraft.study.reading.catalogue import shipped_studies

    shipped = shipped_studies()
    if is_json:
        print_json(shipped)
    else:
        settings_screen.show_studies(shipped)


@click.command
@click.argument("system")
@click.option(
    "--source", "sources", multiple=True, required=True, help="Text, a line per example; once per source."
)
@click.option("--target", help="Its targets: line n belongs to line n of the source.")
@click.option("--label", help="Its classes, instead of targets.")
@click.option("--table", help="A CSV, TSV or JSON-lines file: the options above then name its columns.")
@click.option("--dev-source", multiple=True, help="Text of dev, once per source. Default: held out.")
@click.option("--dev-target", help="Its targets.")
@click.option("--dev-label", help="Its classes.")
@click.option("--dev-table", help="Its table, with the columns of --table.")
@click.option("--test-source", multiple=True, help="Text of test, once per source. Default: held out.")
@click.option("--test-target", help="Its targets.")
@click.option("--test-label", help="Its classes.")
@click.option("--test-table", help="Its table, with the columns of --table.")
@click.option("--held-out", type=click.IntRange(10), help="Examples of dev, and of test, that are held out.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of seeds.")
@click.option("--upstream-source", help="Text to pretrain on. Default: text of the task.")
@click.option("--upstream-target", help="Its targets.")
@click.option(
    "--checkpoint",
    type=DIRECTORY,
    help="A released model in this directory instead of a pretraining.",
)
@click.option(
    "--language", "languages", multiple=True, help="Of each source, then of the target: multi_source."
)
@click.option("--out", type=FILE, help="Default: SYSTEM.yaml.")
@reads_studies
def init(
    system: str,
    sources: tuple[str, ...],
    upstream_source: str | None,
    upstream_target: str | None,
    checkpoint: Path | None,
    languages: tuple[str, ...],
    out: Path | None,
    held_out: int | None,
    seeds: int,
    **text: Any,
) -> None:
    """Write a first study of your own text, and the text in splits.

    Its sizes fit the text and this machine, in three scales: some minutes, an evening, a GPU.
    """
    from nlgraft.commands import settings_screen
    from nlgraft.commands.new_study import Text, write_study
    from nlgraft.study.reading.catalogue import find_system

    # The targets alone would silently be left out.
    if upstream_target is not None and upstream_source is None:
        raise DataError("--upstream-target is given without --upstream-source; give both, or neither")
    chosen_system = find_system(system)
    upstream = None if upstream_source is None else Text([upstream_source], upstream_target)
    held = {split: _held(split, sources, text) for split in ("dev", "test")}
    held_text = {split: Text(*files) for split, files in held.items() if files is not None}
    written = write_study(
        chosen_system,
        Text(sources, **text),
        out or Path(f"{chosen_system.name}.yaml"),
        upstream=upstream,
        checkpoint=checkpoint,
        languages=languages,
        held=held_text,
        num_held_out=held_out,
        num_seeds=seeds,
    )
    settings_screen.show_new_study(written, has_model=not chosen_system.no_model)


def _held(
    split: str,
    sources: tuple[str, ...],
    text: dict[str, Any],
) -> tuple[Any, ...] | None:
    """Take sources, target, label and table of a split from the options; None where none is given."""
    main = {"source": sources, "target": text["target"], "label": text["label"]}
    files = {role: text.pop(f"{split}_{role}") for role in main}
    table = text.pop(f"{split}_table")
    if table:
        return (*(files[role] or column for role, column in main.items()), table)
    if not any(files.values()):
        return None
    # Of the sources also the number; a target or a label is there or not.
    missing = [
        f"--{split}-{role}"
        for role, value in main.items()
        if bool(value) != bool(files[role]) or (role == "source" and len(value) != len(files[role]))
    ]
    if missing:
        raise DataError(f"{', '.join(missing)}: give {split} the options that the text itself has")
    return tuple(files.values())


@click.command
@click.argument("system", required=False)
@reads_studies
def schema(system: str | None) -> None:
    """Print the JSON schema of a study, for editors.

    With SYSTEM, the schema covers that system's settings and metrics as well.
    """
    from nlgraft.study.public import Study
    from nlgraft.study.reading.catalogue import find_system

    path = None if system is None else find_system(system).path
    click.echo(json.dumps(Study.json_schema(path), indent=2))


@click.command
@click.option(
    "--storage", default="nlgraft_store", show_default=True, help="Artifact store: directory or URI."
)
@has_tracking
@has_address("A Ray cluster that this machine belongs to, e.g. auto: examine its nodes.")
@has_json
@user_errors
def doctor(
    storage: str,
    tracking_uri: str | None,
    address: str | None,
    is_json: bool,
) -> None:
    """Examine this machine, or a cluster: what is wrong for a run, and what to do.

    Devices, versions, precision, store, clocks, disks, MLflow, ports; a small trial of each system, on an
    accelerator as on the CPU; the speed of training and decoding; with --address every node, and a group of
    workers over them. Takes minutes; ends with exit code 1 if something is wrong.
    """
    from nlgraft.commands.terminal import plain_table
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.runs.doctor import examine
    from nlgraft.runs.run import default_tracking_uri

    uri = tracking_uri or default_tracking_uri(ArtifactStore.open(storage))
    checks = []
    for check in examine(storage, uri, address):
        click.echo(f"{check.state:5} {check.name}", err=True)
        checks.append(check)
    if is_json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.name, check.state, check.what, check.remedy) for check in checks]
        plain_table(("check", "state", "found", "what to do"), rows)
    if any(check.state == "wrong" for check in checks):
        raise SystemExit(EXIT_FAILED)
