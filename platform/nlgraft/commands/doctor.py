"""The command that examines a machine or a cluster."""

from __future__ import annotations

from dataclasses import asdict

import click

from nlgraft.basics.errors import EXIT_FAILED, user_errors
from nlgraft.commands.study_command import has_address, has_json, has_tracking, print_json


@click.command("doctor")
@click.option(
    "--storage", default="nlgraft_store", show_default=True, help="Artifact store: directory or URI."
)
@has_tracking
@has_address("A Ray cluster: auto on one of its nodes, or its job server, http://HEAD:8265.")
@has_json
@user_errors
def doctor(storage: str, tracking_uri: str | None, address: str | None, is_json: bool) -> None:
    """Examine this machine, or a cluster: what is wrong for a run, and what to do.

    Devices, versions, precision, store, clocks, disks, MLflow, ports; a small trial of each system, on an
    accelerator as on the CPU; the speed of training and decoding; with --address every node, and a group of
    workers over them. Takes minutes; ends with exit code 1 if something is wrong.
    """
    if address is not None and address.startswith("http"):
        from nlgraft.commands.jobs import follow_job
        from nlgraft.execution.job import submit_doctor

        options = ["--json"] if is_json else []
        options += [] if tracking_uri is None else ["--tracking-uri", tracking_uri]
        follow_job(submit_doctor(options, storage, address), address)
        return
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
