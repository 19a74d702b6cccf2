"""Commands about jobs on a Ray cluster."""

from __future__ import annotations

import click

from nlgraft.study_command import read_study, takes_study


@click.command("submit")
@takes_study()
@click.option("--address", help="Job server, e.g. http://HEAD:8265. Default: RAY_API_SERVER_ADDRESS.")
@click.option("--storage", help="Artifact store: directory or URI that the cluster can reach.")
@click.option("--tracking-uri", help="MLflow tracking URI that the cluster can reach.")
def submit(
    study_file: str,
    overrides: tuple[str, ...],
    address: str | None,
    storage: str | None,
    tracking_uri: str | None,
) -> None:
    """Submit a run to a Ray cluster; print the id of the job.

    What is sent of the working directory, and the commands to follow and to stop the job, are printed on
    stderr. Secrets, data, results and large files stay here; `excludes` of runtime_env.yaml names more, or
    with a leading ! what is sent all the same.
    """
    from nlgraft.execution.job import next_commands, submit_run

    study = read_study(study_file, overrides, storage)
    options = [] if storage is None else ["--storage", storage]
    options += [] if tracking_uri is None else ["--tracking-uri", tracking_uri]

    def tell(line: str) -> None:
        click.echo(line, err=True)

    job_id = submit_run(study_file, overrides, address, options, tell, study.storage.path)
    click.echo(job_id)
    for meaning, command in next_commands(job_id, address).items():
        click.echo(f"{meaning}: {command}", err=True)
