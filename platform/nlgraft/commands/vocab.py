"""The commands ``nlgraft vocab ...``: exchange the vocabulary of any Hugging Face checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from nlgraft.basics.errors import EXIT_FAILED, DataError, user_errors
from nlgraft.basics.wording import visible
from nlgraft.commands.study_command import DIRECTORY, FILE, has_json, print_json

_count = partial(click.option, type=click.IntRange(1), show_default=True)
"""An option that takes a number from 1."""


def _file_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Reduce an error about a file to its name and the reason; other errors as for all commands."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # keep stderr for messages
        try:
            command(*args, **kwargs)
        except OSError as error:
            raise DataError(f"{error.filename or 'file'}: {error.strerror or error}") from error

    return user_errors(run)


def _cap(
    _context: click.Context,
    _parameter: click.Parameter,
    value: str,
) -> int | None:
    if value == "all":
        return None
    if not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r}; give a number from 1, or all")
    return int(value)


def _echo(text: str, err: bool = False) -> None:
    """Print text for reading; tokens may hold control characters."""
    click.echo(visible(text), err=err)


def _show(result: Any, is_json: bool) -> None:
    if is_json:
        print_json(result.to_json())
    else:
        _echo(result.to_text())


def _quieten() -> None:
    """Turn off the progress bars of transformers, which would hide the output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@click.group("vocab")
def vocab() -> None:
    """Exchange the vocabulary of a Hugging Face checkpoint.

    It may be an encoder, a decoder or an encoder-decoder. A tokenizer TOK is a directory, a tokenizer.json,
    a SentencePiece model, a WordPiece or subword-nmt vocabulary, or a name on the Hugging Face hub; a MODEL
    is a directory or a name on the hub.
    """


@vocab.command
@click.option("--old", required=True, metavar="TOK", help="The model's tokenizer.")
@click.option("--new", metavar="TOK", help="The new tokenizer.")
@click.option(
    "--like",
    metavar="MODEL",
    help="Transplant this model's tokenizer, as it is: --new and --donor MODEL, --method omp, "
    "--keep-special none, where these are not given.",
)
@click.option("--method", show_default="avg", help="Method for missing rows; see vocab methods.")
@click.option("--donor", metavar="MODEL", help="A model that has the new tokens, for method omp.")
@click.option("--out", type=DIRECTORY, help="Directory for plan and new tokenizer; without it, only report.")
@click.option(
    "--cap",
    default="10",
    show_default=True,
    callback=_cap,
    help="Limit of similar tokens of a token, or all.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of random draws."
)
@click.option(
    "--text",
    type=FILE,
    multiple=True,
    help="Text of the task, plain, gzip or zstd: for lengths in the report, token vectors.",
)
@click.option(
    "--model", help="The checkpoint, for methods that learn from its rows; adds norms to the report."
)
@_count("--epochs", default=5, help="Passes over the text for token vectors.")
@_count("--min-count", default=1, help="Tokens rarer than this have no vector.")
@click.option(
    "--keep-special",
    type=click.Choice(["named", "all", "none"]),
    show_default="named",
    help="Append old special tokens that the new tokenizer lacks: those that a configuration, the chat "
    "template or the old tokenizer's own lists name, or all. The plan lists those that are lost.",
)
@has_json
@_file_errors
def plan(
    old: str,
    out: Path | None,
    text: tuple[Path, ...],
    is_json: bool,
    **options: Any,
) -> None:
    """Plan the origin of every row of a new vocabulary; a dry run without --out."""
    from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer

    # Only then transformers is loaded, which takes seconds.
    if options["model"] is not None:
        _quieten()
    settings = {name: value for name, value in _transplant(options).items() if value is not None}
    settings["cap"] = options["cap"]  # None here means no limit, not the default
    request = PlanRequest(old=old, text=text, **settings)
    planned = plan_transfer(request, out)
    for warning in planned.report.warnings:
        _echo(f"warning: {warning}", err=True)
    if is_json:
        print_json(planned.to_json())
        return
    if out is None:
        _echo(planned.report.to_text())
    else:
        _echo(f"{out}: {planned.report.summary}")


def _transplant(options: dict[str, Any]) -> dict[str, Any]:
    """Replace ``--like`` by the options that it stands for."""
    like = options.pop("like")
    if (like is None) == (options["new"] is None):
        raise DataError("give the new tokenizer by --new TOK, or by --like MODEL, and not by both")
    if like is None:
        return options
    method = options["method"] or "omp"
    options |= {"new": like, "method": method, "keep_special": options["keep_special"] or "none"}
    # A model that has the tokenizer has rows for all of its tokens.
    if method == "omp" and options["donor"] is None:
        options["donor"] = like
    return options


@vocab.command
@click.option(
    "--plan", "plan_directory", required=True, type=DIRECTORY, help="Directory that vocab plan --out wrote."
)
@click.option("--model", required=True, help="The checkpoint; it stays unchanged.")
@click.option("--out", required=True, type=DIRECTORY, help="Directory of the new checkpoint.")
@click.option(
    "--sides",
    type=click.Choice(["both", "decoder", "encoder"]),
    default="both",
    show_default=True,
    help="Side whose vocabulary is exchanged, of an encoder-decoder.",
)
@_count(
    "--pad-to-multiple-of",
    "multiple",
    show_default="the old table's",
    help="Add rows without a token up to a multiple of this number; 1 for none.",
)
@has_json
@_file_errors
def apply(
    plan_directory: Path,
    model: str,
    out: Path,
    sides: Any,
    multiple: int | None,
    is_json: bool,
) -> None:
    """Write a checkpoint with the planned vocabulary; transformers loads it, tokenizer included."""
    _quieten()
    from nlgraft.vocab_tool.apply import apply_plan

    applied = apply_plan(plan_directory, model, out, sides, multiple)
    for note in [*applied.notes, *applied.norms.warnings]:
        _echo(f"note: {note}", err=True)
    _show(applied, is_json)


@vocab.command
@click.argument("model", metavar="MODEL")
@has_json
@_file_errors
def verify(model: str, is_json: bool) -> None:
    """Check a checkpoint: rows, ids, ties, permutation test, generation; exit 1 when a check fails.

    Also fails while a setting that named a token before an exchange has none (vocabulary_exchange.json).
    """
    _quieten()
    from nlgraft.vocab_tool.checks import verify_checkpoint

    _echo_checks(model, verify_checkpoint(model), is_json)


@vocab.command
@click.argument("model", metavar="MODEL")
@has_json
@_file_errors
def doctor(model: str, is_json: bool) -> None:
    """Look for tokens without rows or that no text yields, and for untrained rows; exit 1 if any."""
    _quieten()
    from nlgraft.vocab_tool.checks import examine_checkpoint

    _echo_checks(model, examine_checkpoint(model), is_json)


def _echo_checks(
    model: str,
    checks: Sequence[Any],
    is_json: bool,
) -> None:
    is_good = all(check.is_good for check in checks)
    rows = [{"check": check.name, "is_good": check.is_good, "detail": check.detail} for check in checks]
    if is_json:
        print_json({"model": model, "is_good": is_good, "checks": rows})
    else:
        for check in checks:
            _echo(f"{'ok  ' if check.is_good else 'FAIL'}  {check.name}: {check.detail}")
    if not is_good:
        raise SystemExit(EXIT_FAILED)


@vocab.command("prune")
@click.argument("tokenizer", metavar="TOK")
@click.option("--text", type=FILE, multiple=True, required=True, help="Text in which tokens are counted.")
@click.option("--out", required=True, type=DIRECTORY, help="Directory of the new tokenizer.")
@_count(
    "--min-count",
    default=1,
    help="Drop tokens rarer than this; single characters only where the tokenizer has bytes for them.",
)
@_count("--size", help="Keep at most this many tokens, the most frequent ones.")
@has_json
@_file_errors
def prune_command(
    tokenizer: str,
    text: tuple[Path, ...],
    out: Path,
    is_json: bool,
    **options: Any,
) -> None:
    """Write a tokenizer without rare tokens; vocab plan and apply then give a model its rows."""
    from nlgraft.vocab_tool.changed import prune

    _show(prune(tokenizer, text, out, **options), is_json)


@vocab.command("extend")
@click.argument("tokenizer", metavar="TOK")
@click.option("--text", type=FILE, multiple=True, required=True, help="Text from which tokens are learned.")
@click.option("--out", required=True, type=DIRECTORY, help="Directory of the new tokenizer.")
@_count("--tokens", "num_tokens", required=True, help="Tokens to add at most.")
@_count("--min-count", default=2, help="Occurrences of a new token.")
@has_json
@_file_errors
def extend_command(
    tokenizer: str,
    text: tuple[Path, ...],
    out: Path,
    is_json: bool,
    **options: Any,
) -> None:
    """Write a BPE or Unigram tokenizer with further tokens of a text; its old ids stay.

    BPE goes on merging; a Unigram model gets the pieces that raise the likelihood of the text most.
    """
    from nlgraft.vocab_tool.changed import extend

    _show(extend(tokenizer, text, out, **options), is_json)


@vocab.command
@has_json
@user_errors
def methods(is_json: bool) -> None:
    """List the methods, their inputs and their publications."""
    from nlgraft.commands.terminal import plain_table
    from nlgraft.vocab.methods.registry import METHODS

    rows = [
        {"method": method.name, "needs": ", ".join(method.needs) or "-", "source": method.source}
        for method in METHODS
    ]
    if is_json:
        print_json(rows)
    else:
        plain_table(("method", "needs", "source"), [[*row.values()] for row in rows])
