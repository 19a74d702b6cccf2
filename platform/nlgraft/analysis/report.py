"""Reports: Markdown, self-contained HTML, LaTeX, CSV and JSON of one result."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from nlgraft.analysis import figures, prose, tables
from nlgraft.analysis.comparison import rounded
from nlgraft.analysis.document import result_document
from nlgraft.analysis.provenance import corpora
from nlgraft.errors import NlgraftError, nearest

if TYPE_CHECKING:
    from nlgraft.analysis.results import StudyResult

_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    "†": r"\textsuperscript{\dag}",
    "α": r"$\alpha$",
}
_COMPARED = ("difference", "ci_low", "ci_high", "p", "p_holm", "p_segments", "smallest_detectable")


def render(result: StudyResult, kind: str) -> str:
    """Write a report as text.

    Args:
        result: The result.
        kind: ``md``, ``html``, ``latex``, ``csv`` or ``json``.

    Returns:
        The text.

    Raises:
        NlgraftError: There is no such format.
    """
    if kind not in _FORMATS:
        raise NlgraftError(f"no report format '{kind}'. {nearest(kind, list(_FORMATS))}")
    return _FORMATS[kind][1](result)


def write_report(result: StudyResult, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write a report to files.

    Args:
        result: The result.
        out: Directory to write into; made when missing.
        formats: Any of ``md``, ``html``, ``latex``, ``csv``, ``json``.

    Returns:
        The files: ``report.md``, ``report.html``, ``report.tex``, ``comparison.csv`` and ``trials.csv``,
        ``result.json``.

    Raises:
        NlgraftError: There is no such format.
    """
    texts = [(kind, render(result, kind)) for kind in formats]
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, text in texts:
        written.append(out / _FORMATS[kind][0])
        written[-1].write_text(text, encoding="utf-8")
        if kind == "csv":
            written.append(out / "trials.csv")
            result.frame().to_csv(written[-1], index=False)
    return written


def describe(result: StudyResult) -> dict[str, Any]:
    """Gather what a report tells, whatever its format.

    Args:
        result: The result.

    Returns:
        Tables, sentences and figures by the names that the templates use.
    """
    main = result.main_metric
    names = list(result.metrics)
    lengths = [name for name in names if name.rpartition("/")[2].startswith("length")]
    quality = [name for name in names if name not in lengths and not result.metrics[name].is_time]
    return {
        "result": result,
        "study": result.study,
        "system": result.system,
        "main_metric": main,
        "headline": prose.headline(result),
        "comparison": tables.comparison_table(result, main),
        "other_comparisons": [
            (name, tables.comparison_table(result, name)) for name in quality if name != main
        ],
        "all_metrics": tables.metrics_table(result, names),
        "lengths": tables.length_table(result, lengths) if lengths else None,
        "claims": tables.claims_table(result) if result.claims else None,
        "search": tables.search_table(result) if result.study.search else None,
        "trials": tables.trials_table(result),
        "fairness": prose.fairness(result),
        "method": prose.method(result),
        "signatures": _signatures(result),
        "corpora": corpora(result.study.data),
        "data": json.dumps(result.study.data, indent=2, ensure_ascii=False),
        "counts": _counts(result),
        "sharing": prose.sharing(result),
        "environment": _environment(result),
    }


def comparison_csv(result: StudyResult) -> str:
    """Write one line per cell and metric.

    Args:
        result: The result.

    Returns:
        CSV with full precision.
    """
    factors = list(result.baseline.cell.levels)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["cell", *factors, "state", "metric", "mean", "std", "n", *_COMPARED, "seeds_needed"])
    for cell in result.cells:
        levels = [cell.cell.levels[factor] for factor in factors]
        for name in result.metrics:
            values = [rounded(cell.mean(name)), rounded(cell.std(name)), len(cell.measured(name))]
            compared: list[Any] = [None] * (len(_COMPARED) + 1)
            if cell is not result.baseline:
                found = result.compare(cell.cell, metric=name).to_json()
                found["ci_low"], found["ci_high"] = found["ci"] or (None, None)
                compared = [found[key] for key in (*_COMPARED, "seeds_needed")]
            writer.writerow([cell.cell.label, *levels, cell.state, name, *values, *compared])
    return buffer.getvalue()


def to_latex(table: tables.Table, caption: str, label: str) -> str:
    """Set a table for a paper; needs the booktabs package.

    Args:
        table: The table.
        caption: Its caption.
        label: Its label.

    Returns:
        A ``table`` environment.
    """
    columns = "l" * table.num_text + "r" * (len(table.header) - table.num_text)
    lines = [" & ".join(escape_latex(part) for part in table.header) + r" \\"]
    rows = [" & ".join(escape_latex(entry.text) for entry in row) + r" \\" for row in table.rows]
    body = "\n".join([*lines, r"\midrule", *rows])
    notes = "\n".join(r"\par\footnotesize " + escape_latex(note) for note in table.notes)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\small\n\\caption{{{escape_latex(caption)}}}\n\\label{{{label}}}\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        f"{notes}\n\\end{{table}}\n"
    )


def escape_latex(text: str) -> str:
    """Make a text safe for LaTeX."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _environment_of(is_html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nlgraft.analysis"),
        autoescape=is_html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["markdown"] = tables.to_markdown
    environment.filters["latex"] = to_latex
    environment.filters["tex"] = escape_latex
    return environment


def _markdown(result: StudyResult) -> str:
    return _environment_of(is_html=False).get_template("report.md.j2").render(describe(result))


def _latex(result: StudyResult) -> str:
    return _environment_of(is_html=False).get_template("report.tex.j2").render(describe(result))


def _html(result: StudyResult) -> str:
    environment = _environment_of(is_html=True)
    main = result.main_metric
    facts = describe(result)
    facts["forest"] = figures.forest_plot(result, main) if main in result.metrics else None
    facts["curves"] = figures.learning_curves(result)
    facts["legend"] = [(tables.cell_name(cell), index) for index, cell in enumerate(result.cells)]
    facts["num_series"] = figures.NUM_SERIES
    return environment.get_template("report.html.j2").render(facts)


def _json(result: StudyResult) -> str:
    return json.dumps(result_document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _signatures(result: StudyResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in result.metrics:
        seen = {trial.signature for cell in result.cells for trial in cell.measured(name).values()}
        if seen - {None}:
            found[name] = sorted(signature for signature in seen if signature)
    return found


def _counts(result: StudyResult) -> dict[str, int]:
    states = [trial.state for trial in result.trials]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _environment(result: StudyResult) -> list[tuple[str, str]]:
    facts = result.provenance
    rows = [("study fingerprint", result.study.fingerprint)]
    if facts.ended_at is not None:
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.ended_at))
        rows.append(("last trial ended", ended))
    rows += [("hosts", ", ".join(facts.hosts))] if facts.hosts else []
    rows += [("code", ", ".join(facts.commits))] if facts.commits else []
    return rows + [(package, ", ".join(versions)) for package, versions in facts.versions.items()]


_FORMATS: dict[str, tuple[str, Callable[[StudyResult], str]]] = {
    "md": ("report.md", _markdown),
    "html": ("report.html", _html),
    "latex": ("report.tex", _latex),
    "csv": ("comparison.csv", comparison_csv),
    "json": ("result.json", _json),
}
