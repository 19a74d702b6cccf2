"""Commands about jobs on a Ray cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from nlgraft.basics.errors import EXIT_FAILED, NlgraftError
from nlgraft.commands.study_command import has_address, read_study, study_arguments, with_study

if TYPE_CHECKING:
    from nlgraft.execution.job import Job, JobServer
    from nlgraft.study.public import Study

_has_server = has_address("Job server, e.g. http://HEAD:8265. Default: RAY_API_SERVER_ADDRESS.")


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _write(text: str) -> None:
    click.echo(text, nl=False, err=True)


@click.command
@study_arguments()
@_has_server
@click.option("--storage", help="Artifact store: directory or URI that the cluster can reach.")
@click.option("--tracking-uri", help="MLflow tracking URI that the cluster can reach.")
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME",
    help="Environment variable of yours that the job gets. Repeatable.",
)
@click.option("--wait", is_flag=True, help="Show the output until the job ends; exit as its run does.")
def submit(
    study_file: str,
    overrides: tuple[str, ...],
    address: str | None,
    storage: str | None,
    tracking_uri: str | None,
    variables: tuple[str, ...],
    wait: bool,
) -> None:
    """Submit a run to a Ray cluster; print the id of the job.

    A study has one job at a time: while it runs, the same command attaches to it and another is refused.
    Of a repository, what git tracks and what the study names is sent. What is sent, and the commands to
    follow and to stop the job, are printed on stderr. Secrets, data, results and large files stay here;
    `excludes` of runtime_env.yaml names more, or with a leading ! what is sent all the same.
    """
    from nlgraft.execution.job import JobRequest, submit_run

    study = read_study(study_file, overrides, storage)
    # The next commands need the store as well, but not where MLflow is.
    place = [] if storage is None else ["--storage", storage]
    options = place if tracking_uri is None else [*place, "--tracking-uri", tracking_uri]
    request = JobRequest(study, study_file, overrides, options, variables)
    job = submit_run(request, address, _tell)
    click.echo(job.job_id)
    for meaning, command in next_commands([study_file, *overrides, *place], address).items():
        _tell(f"{meaning}: {command}")
    if wait:
        _wait(job, address)


def next_commands(study: Sequence[str], address: str | None) -> dict[str, str]:
    """Return the commands that follow a submitted job, by what they do."""
    place = [] if address is None else ["--address", address]
    commands = {"state": ["status"], "output so far and to come": ["logs", "--follow"], "end it": ["stop"]}
    return {
        meaning: shlex.join(["nlgraft", *command, *study, *place]) for meaning, command in commands.items()
    }


def _wait(job: Job, address: str | None) -> None:
    """Show the output of a job until it ends, and exit as it did; a Ctrl-C leaves it running."""
    from nlgraft.execution.job import JobServer

    try:
        ended = JobServer(address).follow(job, _write)
    # The job is the cluster's: a closed laptop must not end it.
    except KeyboardInterrupt:
        _tell(f"{job.job_id} goes on")
        raise
    _tell(f"{ended.job_id}: {ended.state}{f', {ended.message}' if ended.state != 'SUCCEEDED' else ''}")
    if ended.state != "SUCCEEDED":
        raise SystemExit(ended.exit_code or EXIT_FAILED)


def job_of(study: Study, address: str | None) -> tuple[JobServer, Job]:
    """Find the newest job of a study.

    Raises:
        NlgraftError: It has none, or the job server cannot be reached.
    """
    from nlgraft.execution.job import JobServer, job_name

    server = JobServer(address)
    job = server.latest(job_name(study))
    if job is None:
        raise NlgraftError(
            f"{study.variant}: the job server has no job of it that was submitted by `nlgraft submit`; "
            "`ray job list` shows all jobs"
        )
    return server, job


@click.command
@with_study()
@_has_server
@click.option("--follow", is_flag=True, help="Go on until the job ends.")
def logs(
    study: Study,
    address: str | None,
    follow: bool,
) -> None:
    """Print the output of a study's newest job on a Ray cluster.

    STUDY and its overrides are those that were submitted.
    """
    server, job = job_of(study, address)
    if follow and not job.is_over:
        server.follow(job, lambda text: click.echo(text, nl=False))
    else:
        click.echo(server.logs(job), nl=False)


@click.command
@with_study()
@_has_server
def stop(study: Study, address: str | None) -> None:
    """End the job of a study on a Ray cluster.

    Trials that run are recorded as killed; the same study submitted again resumes. STUDY and its overrides
    are those that were submitted.
    """
    server, job = job_of(study, address)
    if job.is_over:
        raise NlgraftError(f"{job.job_id} has ended already: {job.state}")
    ended = server.stop(job)
    _tell(f"{ended.job_id}: {ended.state}; `nlgraft submit` of the same study resumes")
