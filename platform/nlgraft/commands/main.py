"""The command line. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import atexit
import gc
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nlgraft.basics.errors import EXIT_DOES_NOT_FIT, EXIT_FAILED, DataError
from nlgraft.basics.wording import count
from nlgraft.commands.housekeeping import check, compare, config, diff, ls, pack, rm, unpack
from nlgraft.commands.housekeeping import gc as collect
from nlgraft.commands.jobs import job_of, logs, stop, submit
from nlgraft.commands.ledger import ablation_path, agreement, ledger, register, try_proposal, verify
from nlgraft.commands.start import doctor, init, schema, studies, systems
from nlgraft.commands.study_command import (
    DIRECTORY,
    FILE,
    calling_at_end,
    duration_of,
    find_study,
    has_address,
    has_json,
    has_storage,
    has_tracking,
    print_json,
    progress_of,
    read_study,
    reads_studies,
    say_if_never_run,
    study_arguments,
    with_study,
)
from nlgraft.commands.vocab import vocab
from nlgraft.commands.winner import classify, export, translate

if TYPE_CHECKING:
    from nlgraft.study.public import Study


# Commands import what they run when they are called: --help and completion load neither Ray nor torch.


class _Sections(click.Group):
    """A group that lists its commands by what one wants to do."""

    sections: Mapping[str, Sequence[click.Command]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, whose descriptions begin in one column."""
        longest = max(map(len, self.commands))
        width = formatter.width - 6 - longest
        for title, commands in self.sections.items():
            with formatter.section(title):
                names = [str(command.name).ljust(longest) for command in commands]
                texts = [command.get_short_help_str(width) for command in commands]
                formatter.write_dl(list(zip(names, texts, strict=True)))


@click.group(cls=_Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nlgraft")
def main() -> None:
    """Ablations of pretrained language models grafted onto text generation.

    STUDY.yaml is a file, or the name of a study that comes with nlgraft: see studies. It may be followed by
    overrides: key=value, or @scale for a named set of them. They make it a variant with a name of its own,
    which plan and run show and which status and report take instead.
    """
    # Otherwise Python examines every object of Ray, MLflow and pandas before it exits: 1.4 s of CPU.
    atexit.register(gc.freeze)


@click.command
@study_arguments()
def validate(study_file: str, overrides: tuple[str, ...]) -> None:
    """Check a study and its data; print every problem and what is allowed."""
    from nlgraft.execution.cluster import local_memory_bytes
    from nlgraft.study.data.design import cells
    from nlgraft.study.planning.cost import memory_problems
    from nlgraft.study.planning.planner import check_cells

    study = read_study(study_file, overrides)
    findings = check_cells(study, cells(study))
    for warning in [*findings.warnings, *memory_problems(findings.stages, local_memory_bytes())]:
        click.echo(f"warning: {warning}", err=True)
    size = f"{count(len(cells(study)), 'cell')}, {count(len(study.seeds), 'seed')}"
    click.echo(f"{study_file}: valid; {size}", err=True)


@click.command
@with_study("STUDY.yaml")
@has_tracking
@has_json
def plan(
    study: Study,
    tracking_uri: str | None,
    is_json: bool,
) -> None:
    """Show the trials and stages of a run, its time and disk."""
    from nlgraft import api
    from nlgraft.commands.terminal import plan_table
    from nlgraft.tracking.uri import check_uri

    # The run would find out only after its checks of the data.
    if tracking_uri is not None:
        check_uri(tracking_uri)

    planned = api.plan(study)
    if is_json:
        print_json(planned.to_json())
    else:
        plan_table(planned)
    for note in planned.notes:
        click.echo(f"note: {note}", err=True)
    for warning in planned.warnings:
        click.echo(f"warning: {warning}", err=True)
    if planned.problems:
        for problem in planned.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(EXIT_DOES_NOT_FIT)


@click.command
@with_study("STUDY.yaml")
@click.option("--simulations", default=1000, show_default=True, type=click.IntRange(min=100))
@has_json
def validity(study: Study, simulations: int, is_json: bool) -> None:
    """Simulate how often this design errs and what it finds, run as declared."""
    from nlgraft import api
    from nlgraft.commands.terminal import validity_table

    simulated = api.validity(study, simulations)
    if is_json:
        print_json({"study": study.variant, **simulated.to_json()})
    else:
        validity_table(study.variant, simulated.to_json())


@click.command
@with_study("STUDY.yaml")
@has_json
@click.option("--only", multiple=True, metavar="FACTOR=LEVEL", help="Run only these cells and the baseline.")
@click.option(
    "--next-look",
    is_flag=True,
    help="Go on with the undecided questions, up to the seeds of their next look: twice as many, unless the "
    "study says otherwise.",
)
@has_address("A running Ray cluster, e.g. auto. Default: start a local one.")
@has_tracking
@click.option(
    "--on-end",
    metavar="COMMAND",
    help="Run this by the shell at the end, with $1 finished, failed or interrupted and $2 the study's name.",
)
@click.option(
    "--wait-timeout",
    "wait_timeout_s",
    metavar="TIME",
    callback=lambda context, parameter, value: None if value is None else duration_of(value),
    help="Longest wait, e.g. 2h30m, for the study's lock, for places on the cluster and for stages that "
    "other sweeps compute. Default: none for the lock, any for the others.",
)
def run(
    study: Study,
    on_end: str | None,
    **options: Any,
) -> None:
    """Run what the store does not hold yet; end with the comparison."""
    with calling_at_end(on_end, study.variant):
        _run(study, **options)


def _run(
    study: Study,
    is_json: bool,
    address: str | None,
    **options: Any,
) -> None:
    from nlgraft import api
    from nlgraft.commands.terminal import show_result
    from nlgraft.execution.cluster import prepare_process

    prepare_process(address)  # before anything imports ray
    with progress_of(study.main_metrics) as progress:
        result = api.launch(study, address=address, on_event=progress.show, **options)
    document = result.to_json()
    if is_json:
        print_json(document)
    else:
        show_result(result)
    # A sweep that ended early is no success for a script, whatever it has finished.
    stop_reason = None if result.invocation is None else result.invocation.stop_reason
    if stop_reason is not None:
        click.echo(f"ended early: {stop_reason}; run the same command again to resume", err=True)
        raise SystemExit(EXIT_FAILED)
    # Cells that --only left out are still planned; that is no failure of this run.
    if any(cell["state"] not in ("finished", "planned") for cell in document["cells"]):
        raise SystemExit(EXIT_FAILED)


@click.command
@with_study("STUDY.yaml")
@click.option(
    "--cell",
    multiple=True,
    default=["baseline"],
    show_default=True,
    help="factor=level, or the name of a level; once per factor.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Default: the first seed of the study.")
@has_json
def trial(
    study: Study,
    cell: tuple[str, ...],
    seed: int | None,
    is_json: bool,
) -> None:
    """Run one trial in this process, without Ray: for debugging.

    stderr tells why each stage runs or is reused, and what it reports.
    """
    from nlgraft import api
    from nlgraft.commands.progress import LineReporter

    # Only here: in a sweep, worker processes would print the decisions of all stages.
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("nlgraft.pipeline").setLevel(logging.INFO)
    record = api.run_one(study, ", ".join(cell), seed, LineReporter(sys.stderr))
    if is_json:
        print_json(record.to_json())
    else:
        for name, value in sorted(record.metrics.items()):
            click.echo(f"{name}\t{value:g}")
    if record.state != "finished":
        click.echo(f"{record.state}: {record.reason}", err=True)
        raise SystemExit(EXIT_FAILED)


@click.command
@with_study(has_results=True)
@has_json
@has_address("Job server, e.g. http://HEAD:8265: say how its job of the study is.")
def status(
    study: Study,
    is_json: bool,
    address: str | None,
) -> None:
    """Count the trials of each cell by state.

    STUDY is a file or the name of a run, `demo@tiny-1f0c6a2e`.
    """
    from nlgraft import api
    from nlgraft.commands.terminal import status_table

    # First, since a wrong address should not cost the count of all trials.
    job = None if address is None else job_of(study, address)[1]
    if job is not None:
        click.echo(f"{job.job_id}: {job.state}{f', {job.message}' if job.message else ''}", err=True)
    if is_json:
        document = api.status(study)
        print_json(document if job is None else document | {"job": asdict(job)})
    else:
        status_table(api.status(study))


@click.command
@with_study(has_results=True)
@click.option(
    "--out",
    metavar="PAGE.html",
    type=FILE,
    help="Write a page, too, that a browser loads again by itself: running trials, cells, dev curves.",
)
def watch(study: Study, out: Path | None) -> None:
    """Show how far a study is, anew every two seconds, until nothing runs.

    It reads the store, so it may be started in another terminal or on another machine, at any time. Test
    scores are not shown.
    """
    from nlgraft import api
    from nlgraft.commands.terminal import watch_status

    def write_page(document: Mapping[str, Any]) -> None:
        if out is not None:
            with _writing("--out", out):
                api.write_live_page(study, out, document)

    watch_status(lambda: api.status(study), write_page)


@click.command
@with_study(has_results=True)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(["md", "html", "latex", "csv", "json"]),
    help="Repeatable. Default: md.",
)
@click.option(
    "--out",
    type=DIRECTORY,
    help="Directory for files. Default: print.",
)
@click.option(
    "--paper",
    type=DIRECTORY,
    help="Directory for a paper: LaTeX tables, numbers and methods, figures (PDF, SVG), BibTeX, examples, "
    "answers to a checklist.",
)
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="STUDY",
    help="Another study of the same store, in the same text: a file or a name. Repeatable; md or html.",
)
def report(
    study: Study,
    formats: tuple[str, ...],
    out: Path | None,
    paper: Path | None,
    others: tuple[str, ...],
) -> None:
    """Report the results that the store holds of a study.

    In a terminal it is laid out; with --format, or in a pipe, it is Markdown.
    STUDY is a file or the name of a run, `demo@tiny-1f0c6a2e`.
    """
    from nlgraft import api
    from nlgraft.commands.terminal import show_report

    result = api.load(study)
    beside = [api.load(find_study(other, (), study.storage.path)) for other in others]
    if paper is not None:
        _write("--paper", paper, lambda: result.paper(paper))
        if out is None and not formats:  # --paper alone asks for nothing on stdout
            return
    names = list(formats) or ["md"]
    if out is None:
        show = show_report if sys.stdout.isatty() and not formats else click.echo
        for name in names:
            show(result.render(name, beside))
        return
    _write("--out", out, lambda: result.report(out, names, beside))


@click.command
@click.argument("study_name", metavar="STUDY")
@click.argument("cell")
@click.argument("overrides", nargs=-1)
@click.option("--against", default="baseline", show_default=True, help="The cell to compare it with.")
@click.option("--metric", help="Default: the study's main metric.")
@has_storage
@reads_studies
def why(
    study_name: str,
    cell: str,
    overrides: tuple[str, ...],
    against: str,
    metric: str | None,
    storage: str | None,
) -> None:
    """Explain the verdict on a cell: its noise, what would decide it, what that costs, the command.

    CELL is factor=level or the name of a level; several factors are separated by a comma.
    """
    from nlgraft import api
    from nlgraft.analysis.rendering.prose import explain

    place = [] if storage is None else ["--storage", storage]
    named = shlex.join([study_name, *overrides, *place])
    study = find_study(study_name, overrides, storage)
    say_if_never_run(study, study_name)
    result = api.load(study)
    click.echo("\n  ".join(explain(result, cell, against, metric, named)))


@contextmanager
def _writing(option: str, out: Path) -> Iterator[None]:
    """Refuse a place that cannot be written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{option} {out}: cannot be written ({error}); give another place") from error


def _write(
    option: str,
    out: Path,
    write: Callable[[], list[Path]],
) -> None:
    """Write files, and print their paths."""
    with _writing(option, out):
        paths = write()
    for path in paths:
        click.echo(str(path))


main.sections = {
    "Begin a study": (init, studies, systems, schema, validate, plan, validity, register),
    "Run and watch": (run, try_proposal, trial, status, watch, doctor),
    "Run on a cluster": (submit, logs, stop),
    "Read the results": (report, why, ledger, agreement, ablation_path, diff),
    "Use the winner": (export, translate, classify),
    "Judge scores of others": (compare,),
    "Change a vocabulary": (vocab,),
    "Keep house and share": (ls, config, verify, pack, unpack, check, rm, collect),
}
for command in chain.from_iterable(main.sections.values()):
    main.add_command(command)
