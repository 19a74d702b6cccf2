"""What a paper takes from a study: tables, figures, numbers, methods, checklist, examples, BibTeX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nlgraft.analysis.data.cost import cost_of, split_sizes
from nlgraft.analysis.rendering import figures, settings_figures, tables
from nlgraft.analysis.rendering.bibliography import bibliography
from nlgraft.analysis.rendering.comparison_notes import scopes
from nlgraft.analysis.rendering.drawing import Drawing, paper_style
from nlgraft.analysis.rendering.paper_examples import examples_appendix
from nlgraft.analysis.rendering.paper_numbers import Numbers, slug
from nlgraft.analysis.rendering.paper_prose import checklist, methods_paragraph, space_table
from nlgraft.analysis.rendering.report import describe
from nlgraft.analysis.rendering.typesetting import Table, escape_latex, to_latex
from nlgraft.analysis.statistics.recorded import RecordedResults
from nlgraft.wording import count

_LINE = 120
"""Characters of a table's row that fit into two columns in small type."""
_DOCUMENT = r"""% Compiles by itself; a paper of your own inputs the files that it wants, after
%   \usepackage{booktabs,graphicx}  and, where they lie in another folder,  \newcommand{\nlgraftdir}{FOLDER}
\documentclass[10pt,twocolumn]{article}
\usepackage{iftex}
\ifpdftex\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\else\usepackage{fontspec}\fi
% Examples in other than Latin scripts need LuaLaTeX or XeLaTeX, and a font that has them.
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\usepackage[hidelinks]{hyperref}
\emergencystretch=2em
\input{numbers}
\title{TITLE}
\author{}
\date{}
\begin{document}
\maketitle
\section{Method}
\input{methods}
\section{Results}
\input{tables}
\clearpage
\input{figures}
\clearpage
\bibliographystyle{plain}
\bibliography{references}
\appendix
\section{Examples}
\input{examples}
\end{document}
"""


@dataclass(frozen=True)
class _Figure:
    """A figure, what its caption says, and whether it spans two columns."""

    name: str
    drawing: Drawing
    caption: str
    is_wide: bool = False


def write_paper(result: RecordedResults, out: Path) -> list[Path]:
    """Write the files of a paper.

    Args:
        result: The result.
        out: Directory to write into; created when missing. Files of an earlier call are replaced.

    Returns:
        ``paper.tex``, ``numbers.tex``, ``methods.tex``, ``tables.tex``, ``figures.tex``, ``examples.tex``,
        ``references.bib``, ``checklist.md``, and every figure as PDF and as SVG.
    """
    facts = describe(result)
    cost, sizes = cost_of(result), split_sizes(result)
    compared = [name for name, _ in facts["other_comparisons"]]
    compared += [result.main_metric] if result.main_metric in result.metrics else []
    numbers = Numbers(result, compared, cost, sizes)
    drawn = list(_figures(result))
    texts = {
        "paper.tex": _DOCUMENT.replace("TITLE", escape_latex(result.study.variant)),
        "numbers.tex": numbers.render(),
        "methods.tex": methods_paragraph(result, numbers, facts["signatures"], sizes),
        "tables.tex": "\n".join(_tables(result, facts)),
        "figures.tex": "\n".join(_include(result, one) for one in drawn),
        "examples.tex": examples_appendix(result),
        "references.bib": bibliography(result.system),
        "checklist.md": checklist(result, facts, cost, sizes),
    }
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    paths = [out / name for name in texts]
    for one in drawn:
        for suffix in (".pdf", ".svg"):
            paths.append(out / "figures" / (one.name + suffix))
            one.drawing.save(paths[-1])
    return paths


def _tables(result: RecordedResults, facts: dict[str, Any]) -> Iterator[str]:
    """Typeset the tables of a report that a paper shows."""
    main, study = result.main_metric, result.study
    objective = study.objectives[0].metric
    beside = [objective] if objective != main and objective in result.metrics else []
    first = tables.comparison_table(result, main, beside)
    if facts["registration"]:
        first = replace(first, notes=(*first.notes, facts["registration"]))
    spread = f"Mean ± standard deviation of {_seeds(result)}"
    what = f"{f'{objective} beside ' if beside else ''}{main} against the baseline"
    yield from _typeset(result, "comparison", first, f"{what}. {spread}. {covered(result)}")
    known: dict[str, tuple[Table | None, str]] = {
        "deviations": (facts["deviations"], "Deviations from the registration"),
        "effects": (facts["effects"], f"Effects on {main}. {covered(result)}"),
        "gains": (facts["gains"], f"Gains over {study.analysis.gains_over} on {main}. {covered(result)}"),
        "claims": (facts["claims"], "Published claims and what this study says of them"),
        **{
            f"metrics-{title.lower().replace(' ', '-')}": (table, f"All metrics ({title.lower()}). {spread}")
            for title, table in facts["metric_tables"]
        },
        "budget": (_budget_table(result), f"What each cell consumed. {spread}. {facts['fairness']}"),
        "space": (space_table(study.search.space) if study.search else None, "Searched values"),
        "search": (facts["search"], f"Search in each cell on {objective}, and the values that it chose"),
        "expected-best": (facts["expected_best"], f"Expected best {objective} by number of search trials"),
        "importances": (facts["importances"], "Which setting mattered: a description, not a test"),
        "stability": (facts["stability"], f"Seeds that were lost or diverged ({main})"),
        "looks": (facts["looks"], "Seeds by the planned looks"),
        "sensitivity": (facts["sensitivity"], f"Verdicts on {main} under other choices of the analysis"),
        "earlier": (facts["earlier"], "Earlier analyses of the same segments"),
    }
    for name, (table, caption) in known.items():
        if table is not None:
            yield from _typeset(result, name, table, caption)


def _typeset(result: RecordedResults, name: str, table: Table, caption: str) -> Iterator[str]:
    """Typeset a table, in several parts if it is too wide."""
    parts = [table] if table.num_text == len(table.header) else table.parts(_LINE)
    study = result.study.variant
    data = " The data is constructed." if result.is_constructed else ""
    for index, part in enumerate(parts, start=1):
        label = f"tab:{slug(study)}-{name}{f'-{index}' if index > 1 else ''}"
        more = f" (part {index} of {len(parts)})" if len(parts) > 1 else ""
        yield to_latex(part, f"{study}: {caption.rstrip('. ')}{more}.{data}", label, is_wide=True)


def _budget_table(result: RecordedResults) -> Table | None:
    """Tabulate size, steps and time of the trainings; None where the system reports none of them."""
    names = [
        name
        for name, metric in result.metrics.items()
        if metric.split is None and (name.startswith(("parameters/", "train_")))
    ]
    return tables.metrics_table(result, names) if names else None


def _seeds(result: RecordedResults) -> str:
    """Say of how many seeds the means are."""
    numbers = {len(cell.measured(result.main_metric)) for cell in result.cells}
    if len(numbers) == 1:
        return f"n = {count(numbers.pop(), 'seed')}"
    return f"n = {min(numbers)} to {max(numbers)} seeds"


def covered(result: RecordedResults) -> str:
    """Say in one or more sentences what the intervals on the main metric cover."""
    main = result.main_metric
    if main not in result.metrics:
        return ""
    compared = [
        (cell.cell.label, found)
        for cell in result.cells[1:]
        if (found := result.compare(cell.cell, metric=main)).ci is not None
    ]
    confidence = f"{100 * (1 - result.study.analysis.alpha):g} %"
    said = scopes(compared) or ["Intervals cover the test segments alone, not training."]
    return " ".join([f"Intervals have {confidence} confidence.", *said]) if compared else ""


def _figures(result: RecordedResults) -> Iterator[_Figure]:
    style, main = paper_style(), result.main_metric
    n = _seeds(result)
    if main in result.metrics:
        forest = figures.forest_plot(result, main, style)
        if forest is not None:
            caption = f"Difference from the baseline on {main}, mean of {n}. {covered(result)}"
            yield _Figure("forest", forest, caption, is_wide=True)
        gains = figures.gain_curves(result, main, style)
        if gains is not None:
            caption = f"{gains.title}, mean of {n}; bands are intervals. {covered(result)}"
            yield _Figure("gains", gains, caption, is_wide=True)
    for title, drawing in figures.learning_curves(result, style):
        caption = f"{title} by step: mean of the seeds; bands span their minimum and maximum."
        yield _Figure(f"curve-{slug(title)}", drawing, caption)
    for title, drawing in figures.expected_best_curves(result, style):
        caption = f"Expected best {title}. Bands describe the trials that ran; they test nothing."
        yield _Figure(f"best-{slug(title)}", drawing, caption)
    for title, drawing in settings_figures.setting_plots(result, style):
        yield _Figure(f"setting-{slug(drawing.title)}", drawing, f"{title}: search trials on dev.")


def _include(result: RecordedResults, one: _Figure) -> str:
    environment = "figure*" if one.is_wide else "figure"
    study = result.study.variant
    data = " The data is constructed." if result.is_constructed else ""
    return "\n".join(
        [
            r"\providecommand{\nlgraftdir}{.}",
            rf"\begin{{{environment}}}[t]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{\nlgraftdir/figures/{one.name}.pdf}}",
            rf"\caption{{{escape_latex(f'{study}: {one.caption}{data}')}}}",
            rf"\label{{fig:{slug(study)}-{one.name}}}",
            rf"\end{{{environment}}}",
            "",
        ]
    )
