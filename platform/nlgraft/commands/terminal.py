"""Tables of the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nlgraft.analysis.rendering import validity_tables
from nlgraft.analysis.rendering.typesetting import NO_BREAK, column_groups
from nlgraft.analysis.rendering.typesetting import Table as ReportTable
from nlgraft.basics.pacing import Pacer
from nlgraft.basics.wording import count, hours_of_budget, visible
from nlgraft.commands.progress import step_text
from nlgraft.study.data.plan import Plan

if TYPE_CHECKING:
    from nlgraft.analysis.data.ledger import Entry
    from nlgraft.analysis.data.registration import Registration
    from nlgraft.analysis.data.results import Invocation
    from nlgraft.analysis.data.stream import Stream
    from nlgraft.analysis.study_result import StudyResult

_WATCH_PAUSE_S = 2.0
_NUM_REASONS = 8
_FILE_WIDTH = 160
_WIDEST = 60
_GAP = 2
"""Characters between two columns of a table."""


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str | None = None,
    widest: int | None = None,
    *,
    is_text: bool = False,
) -> Table:
    """Build a table whose first column holds names, others figures or text; what exceeds ``widest`` wraps."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        if index == 0 or is_text:
            most = widest if index == 0 else None
            table.add_column(column, max_width=most, no_wrap=most is None and not is_text, overflow="fold")
        elif widest is not None and any(cell_len(str(row[index])) > widest for row in rows):
            table.add_column(column)
        else:
            table.add_column(column, justify="right", no_wrap=widest is not None)
    for row in rows:
        # As text: names and settings may hold brackets, which rich would read as its markup.
        texts = [value if isinstance(value, Text) else Text(visible(str(value))) for value in row]
        table.add_row(*texts)
    return table


def _console() -> Console:
    console = Console(file=sys.stdout, highlight=False)
    # In a file or a pipe, rich would wrap tables at 80 columns.
    if console.is_terminal:
        return console
    return Console(file=sys.stdout, highlight=False, width=_FILE_WIDTH)


def _print(*renderables: Any) -> None:
    console = _console()
    for renderable in renderables:
        console.print(renderable)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of texts."""
    _print(_table(columns, rows, widest=_WIDEST, is_text=True), "")


def plan_table(plan: Plan) -> None:
    """Print a plan."""
    _print(_table(("plan", plan.study.variant), plan.facts()))
    corpora = _corpus_rows(plan.corpora)
    if corpora:
        _print(
            "",
            _table(("corpus", "split", "examples", "words", "empty lines", "in train"), corpora),
            *_shared_text(plan.corpora),
        )


def validity_table(name: str, document: Mapping[str, Any]) -> None:
    """Print the error rates of a simulated design, from the document of ``validity --json``."""
    title = (name, f"{document['simulations']:,} simulated studies")
    _print(_table(title, validity_tables.fact_rows(document)), "")
    _print(Text(validity_tables.explanation(document)))


def _corpus_rows(corpora: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            name,
            split,
            report["num_examples"],
            _words(report["num_words"]),
            report["num_empty_lines"],
            "–" if split == "train" else report["num_in_train"],
        )
        for name, splits in corpora.items()
        for split, report in splits.items()
    ]


def _shared_text(corpora: Mapping[str, Any]) -> list[Text]:
    """Report overlaps: how many examples of a split are in the training text of other corpora."""
    return [
        Text(
            f"{name}, {split}, is also in train of "
            + ", ".join(f"{corpus} ({number})" for corpus, number in overlaps.items())
        )
        for name, splits in corpora.items()
        for split, report in splits.items()
        if (overlaps := report["num_in_other_train"])
    ]


def _words(counts: Mapping[str, int]) -> str:
    """Write the words of an example's sides: those of its sources, and of its target behind an arrow."""
    sources = " + ".join(f"{number}" for role, number in counts.items() if role != "target")
    return f"{sources} → {counts['target']}" if "target" in counts else sources


def show_result(result: StudyResult) -> None:
    """Print headline, comparison table, effects, test metrics, claims, and the places of report and runs."""
    document = result.to_json()
    console = _console()
    tables = (result.comparison(), result.effects_on_main_metric(), result.test_metrics())
    console.print(Text(f"{document['study']}: {document['main_metric']}", style="bold"))
    console.print(Text(result.headline()))
    if document["which_setting"]:
        console.print(Text(document["which_setting"]))
    if result.registration is not None:
        console.print(Text(str(result.registration)))
        for deviation in result.registration.deviations:
            console.print(Text(f"  {deviation.text}"), soft_wrap=True)
    for table in filter(None, tables):
        show_table(table)
    if document["claims"]:
        claims = [(claim["text"], claim["answer"], claim["source"]) for claim in document["claims"]]
        console.print(_table(("claim", "verdict", "source"), claims, is_text=True), "")
    trials = document["trials"]
    # Wrapped softly: paths and URIs must be fit for copying.
    for line in (
        f"trials: {trials['run']} run, {trials['reused']} reused, {trials['failed']} failed",
        f"report: {document['report_dir']}/report.html",
        f"MLflow: {_cells_in_mlflow(document, result.invocation)}",
    ):
        console.print(Text(line), soft_wrap=True)


def _cells_in_mlflow(document: Mapping[str, Any], invocation: Invocation | None) -> str:
    uri, experiment = document["tracking_uri"], f"experiment {document['experiment']}"
    page = None if invocation is None else invocation.cells_page
    if page is None:
        return f"{experiment}, mlflow ui --backend-store-uri {uri}"
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/{page}"
    return f"mlflow ui --backend-store-uri {uri} shows {experiment} at http://127.0.0.1:5000/{page}"


def ledger_list(entries: Mapping[int, Entry], streams: Mapping[str, Stream]) -> None:
    """Print analyses by number, then the proposals of each stream."""
    # Loads scipy.
    from nlgraft.analysis.rendering.journals import ledger_table, stream_table

    show_table(ledger_table(entries))
    for stream in streams.values():
        show_table(stream_table(stream))


def registrations_list(registrations: Iterable[Registration]) -> None:
    """Print what registrations freeze, one after the other."""
    from nlgraft.analysis.rendering.journals import registered_table  # loads scipy

    for registration in registrations:
        header, *rows = registered_table(registration).plain()
        _print(_table(header, rows, is_text=True), "")


def show_report(markdown: str) -> None:
    """Lay out the Markdown of a report, its tables in parts that fit."""
    from rich.markdown import Markdown, TableElement  # loads a parser

    class FittingTable(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            header, body = self.header and self.header.row, self.body
            if not header or not body or all(cell.justify != "right" for cell in header.cells):
                yield from super().__rich_console__(console, options)  # words may wrap, numbers must not
                return
            lines = [[cell.content.plain for cell in row.cells] for row in (header, *body.rows)]
            plain = [[text.replace(NO_BREAK, " ") for text in line] for line in lines]
            yield from _fitted(plain, options.max_width)

    class Report(Markdown):
        elements: ClassVar = Markdown.elements | {"table_open": FittingTable}

    _print(Report(markdown))


def show_table(table: ReportTable) -> None:
    """Print a table, in several parts where its columns do not fit side by side, and its notes."""
    console = _console()
    for part in _fitted(table.plain(), console.width):
        console.print(part)
    for note in table.notes:
        console.print(Text(visible(note)))
    console.print()


def _fitted(lines: Sequence[Sequence[str]], width: int) -> Iterator[Table | str]:
    """Divide a table, its header first, into parts that fit, with blank lines between them."""
    columns = list(zip(*lines, strict=True))
    parts = _parts(width, columns) if columns else []
    if len(parts) > 1:  # narrower columns may need fewer parts
        parts = _parts(width, [columns[0], *map(_with_narrow_title, columns[1:])])
    for number, part in enumerate(parts):
        if number:
            yield ""
        header, *rows = zip(*part, strict=True)
        yield _table(header, rows, widest=width // 2)


def _with_narrow_title(column: Sequence[str]) -> tuple[str, ...]:
    """Break the title of a column at its spaces if it is wider than the entries."""
    title, *entries = column
    widest = max(map(cell_len, entries), default=0)
    return (title.replace(" ", "\n") if cell_len(title) > widest else title, *entries)


def _parts(width: int, columns: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Distribute columns over parts that fit a width; each part begins with the first column."""
    # Longer names wrap, or they would leave no room for figures.
    first = min(_width_of(columns[0]), width // 2)
    widths = [first, *(_GAP + _width_of(column) for column in columns[1:])]
    return [[columns[index] for index in group] for group in column_groups(widths, width)]


def _width_of(column: Sequence[str]) -> int:
    return max(cell_len(line) for text in column for line in text.split("\n"))


def status_table(document: Mapping[str, Any]) -> None:
    """Print the status of a study, from the document of ``status --json``."""
    _print(_status(document))


def _status(document: Mapping[str, Any]) -> Group:
    """Lay out the counts, why trials failed, and whether anything runs."""
    lines = [f"{cell['label']}: {reason}" for cell in document["cells"] for reason in cell["reasons"]]
    # Trials of one cell tend to fail for one reason.
    lines = list(dict.fromkeys(lines))
    if len(lines) > _NUM_REASONS:
        lines[_NUM_REASONS:] = [f"and {len(lines) - _NUM_REASONS} other reasons: see the report"]
    for trial in document["running"]:
        stage, step, num_steps = (trial.get(key) for key in ("stage", "step", "num_steps"))
        lines.append(f"{trial['name']}: {step_text(stage, step, num_steps, {}) if stage else 'starting'}")
    least, most = document["workers"]
    if least < most:
        lines.append(f"each trial has {least} to {most} workers")
    if document["preemptions"]:
        lines.append(f"{count(document['preemptions'], 'node')} lost under its trials, which went on")
    if document["hours"]:
        lines.append(f"its trials held {hours_of_budget(document['hours'])}")
    if document["is_running"]:
        lines.append("a driver runs this study")
    elif document["counts"]["waiting"]:
        lines.append("no driver runs this study: nlgraft run continues it")
    return Group(_counts(document), *map(Text, lines))


def _counts(document: Mapping[str, Any]) -> Table:
    names = list(document["counts"])
    rows = [[cell["label"], *map(cell["counts"].get, names)] for cell in document["cells"]]
    rows.append(["all", *document["counts"].values()])
    return _table(["cell", *names], rows, title=str(document["study"]))


def watch_status(
    read: Callable[[], Mapping[str, Any]], write_page: Callable[[Mapping[str, Any]], None]
) -> None:
    """Show the status, read anew every two seconds, until no live driver runs the study.

    Args:
        write_page: Writes a page of the status; of a large study at most a fifth of the time.
    """
    pages = Pacer(_WATCH_PAUSE_S, share=0.2)
    # Drawn when the status is read, not in between.
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            document = read()
            live.update(_status(document), refresh=True)
            if pages.is_due or not document["is_running"]:
                with pages.turn():
                    write_page(document)
            if not document["is_running"]:
                return
            time.sleep(_WATCH_PAUSE_S)
