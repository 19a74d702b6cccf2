"""Systems, their settings and the studies that come with nlgraft, as text of 80 columns."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from nlgraft.basics.strict_config import Condition
from nlgraft.basics.wording import count, duration
from nlgraft.study.data.design import level_text
from nlgraft.study.data.system import System

if TYPE_CHECKING:
    from nlgraft.commands.new_study import NewStudy

_INDENT = "    "
_MOST_LINES = 2
"""Lines of essential settings in a part's row."""


def show_systems(systems: Iterable[Mapping[str, str]]) -> None:
    """Print name, description and paper of each system."""
    for entry in systems:
        _print_bold(entry["name"])
        _print_wrapped(entry["description"], entry["paper"])


def show_system(system: System, knobs: Sequence[Mapping[str, Any]]) -> None:
    """Print a system's parts on one screen: how many settings each has, and the essential ones."""
    _print_bold(system.name)
    _print_wrapped(system.description)
    click.echo(f"\n{'part':<16}settings  essential")
    for part, part_knobs in groupby(knobs, lambda knob: knob["path"].partition(".")[0]):
        rows = list(part_knobs)
        names = dict.fromkeys(knob["path"].partition(".")[2] for knob in rows if knob["is_essential"])
        text = ", ".join(_merged([*names]))
        lines = textwrap.wrap(text, _width() - 26, max_lines=_MOST_LINES, placeholder=" ...")
        num_settings = len({knob["path"] for knob in rows})
        first = lines[0] if lines else ""
        click.echo(f"{part:<16}{num_settings:>8}  {first}".rstrip())
        for line in lines[1:]:
            click.echo(" " * 26 + line)
    last = knobs[-1]["path"].partition(".")[0]
    click.echo(
        f"\nnlgraft systems {system.name} PART         all settings of a part: data, {last}\n"
        f"nlgraft systems {system.name} --essential  defaults and ranges of the essential ones\n"
        f"nlgraft systems {system.name} --metrics    what its trials report"
    )


def _merged(names: Sequence[str]) -> list[str]:
    """Write ``upstream.corpus`` and ``downstream.corpus`` as ``{upstream, downstream}.corpus``."""
    firsts_by_end: dict[str, list[str]] = {}
    for name in names:
        first, _, end = name.partition(".")
        firsts_by_end.setdefault(end, []).append(first)
    bare = firsts_by_end.pop("", [])
    return [
        *bare,
        *(
            f"{firsts[0]}.{end}" if len(firsts) == 1 else f"{{{', '.join(firsts)}}}.{end}"
            for end, firsts in firsts_by_end.items()
        ),
    ]


def show_settings(knobs: Sequence[Mapping[str, Any]], choices: Mapping[str, Sequence[str]]) -> None:
    """Print settings from the document of ``systems NAME PREFIX --json``, those of each kind of corpus apart.

    Args:
        choices: The choices of every setting of the system, by path.
    """
    for part, part_knobs in groupby(knobs, lambda knob: ".".join(knob["path"].split(".")[:2])):
        rows = list(part_knobs)
        shared = _read_when(rows[0], choices)
        # A condition of all settings of a part is printed once, above them.
        if len(rows) == 1 or any(_read_when(knob, choices) != shared for knob in rows):
            shared = ""
        if shared:
            click.echo(f"\n{part}")
            _print_wrapped(shared)
        for kinds in sorted({_kinds(knob) for knob in rows}):
            if kinds:
                click.echo(f"\n{part}, {kinds}")
            for knob in rows:
                if _kinds(knob) == kinds:
                    _show_setting(knob, "" if shared else _read_when(knob, choices))


def _kinds(knob: Mapping[str, Any]) -> str:
    return ", ".join(knob["kinds"]).replace(", corpus:", ",")


def _show_setting(knob: Mapping[str, Any], condition: str) -> None:
    _print_bold(knob["path"], " required" if knob["is_required"] else f" = {level_text(knob['default'])}")
    kind = knob["type"].replace("one of or null", "null or one of")
    description = " ".join(knob["description"].replace("``", "").split())
    _print_wrapped(f"{kind} {knob['allowed']}".strip(), description, condition)


def _read_when(knob: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> str:
    conditions = ", or ".join(_condition(condition, choices) for condition in knob["read_when"])
    return f"Read when {conditions}." if conditions else ""


def _condition(condition: Condition, choices: Mapping[str, Sequence[str]]) -> str:
    """Write a condition: ``transfer.sides is encoder or both``, or the excluded values if these are fewer."""
    texts = []
    for name, values in condition.items():
        shown = _range(values) or [*map(level_text, values)]
        # "is not a" is shorter than a list of all other choices.
        excluded = [choice for choice in choices.get(name, ()) if choice not in shown]
        is_shorter = 0 < len(excluded) < len(shown)
        texts.append(f"{name} is not {_listed(excluded)}" if is_shorter else f"{name} is {_listed(shown)}")
    return " and ".join(texts)


def _range(values: Sequence[Any]) -> list[str]:
    """Write three or more consecutive integers as one range; empty for other values."""
    first, last = values[0], values[-1]
    # Not by isinstance: a boolean is an int, too.
    if len(values) > 2 and type(first) is int and [*values] == [*range(first, last + 1)]:
        return [f"{first} to {last}"]
    return []


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def show_metrics(system: System, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print metrics from the document of ``systems NAME --metrics --json``."""
    click.echo(f"{system.name}: {count(len(rows), 'metric')}; dev and test figures where their stages run")
    for row in rows:
        better = "higher" if row["direction"] == "maximize" else "lower"
        _print_bold(row["metric"], f" in {row['unit']}, {better} is better")
        _print_wrapped(row["description"])


def show_studies(studies: Sequence[Mapping[str, Any]]) -> None:
    """Print studies by system, from the document of ``studies --json``."""
    for system, system_studies in groupby(studies, lambda study: study["system"]):
        click.echo(f"{system.rpartition('.')[2]}")
        for study in system_studies:
            scales = " ".join(f"@{scale}" for scale in study["scales"])
            needs = "; reads files below NLGRAFT_DATA" if study["needs_data"] else ""
            _print_bold(f"  {study['study']}", f"  {scales}")
            _print_wrapped(f"{study['description']}{needs}")
    click.echo("\nnlgraft plan NAME @tiny shows what a study would do, nlgraft run NAME @tiny runs it.")


def show_new_study(written: NewStudy, *, has_model: bool) -> None:
    """Print what was written, how long each scale takes, and what to run next."""
    examples = ", ".join(f"{number:,} {split}" for split, number in written.num_examples.items())
    click.echo(f"{written.path}: a study; {written.folder}/: its text, {examples}")
    for note in written.notes:
        click.echo(f"  {note}")
    click.echo()
    for scale, plan in written.plans.items():
        time = "unknown" if plan.run_s is None else f"some {duration(plan.run_s)} on this machine"
        if plan.study.resources.gpus_per_worker > 0:  # an estimate for this machine would mislead
            time = "a GPU"
        click.echo(f"@{scale:<9}{count(len(plan.trials), 'trial'):>10}  {time}")
    file = written.path
    click.echo(
        f"\nnlgraft plan {file}                 what it would do\n"
        f"nlgraft run {file}                  runs @minutes; ends with a comparison\n"
        f"nlgraft run {file} @evening         the same question, larger\n"
        f"nlgraft run {file} --storage practice   to try things: the first study on test lines tells most\n"
        f"nlgraft report {file} --format html --out report"
    )
    if has_model:
        click.echo(f"nlgraft export {file} --out winner   the best model, to be used")


def _print_bold(name: str, suffix: str = "") -> None:
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo((click.style(name, bold=True) if has_colour else name) + suffix)


def _print_wrapped(*paragraphs: str) -> None:
    for paragraph in filter(None, paragraphs):
        click.echo(textwrap.fill(paragraph, _width(), initial_indent=_INDENT, subsequent_indent=_INDENT))


def _width() -> int:
    return min(os.get_terminal_size().columns, 100) if sys.stdout.isatty() else 80
