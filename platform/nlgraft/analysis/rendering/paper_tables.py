"""The tables of a report that a paper shows, as LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering import tables
from nlgraft.analysis.rendering.paper_numbers import numbers_of_seeds, slug
from nlgraft.analysis.rendering.search_tables import space_table
from nlgraft.analysis.rendering.tables import scopes
from nlgraft.analysis.rendering.typesetting import LINE, Table, to_latex


def latex_tables(result: RecordedResults, facts: Mapping[str, Any]) -> str:
    """Typeset the tables among the facts of a report, after comments that say what they are of."""
    study = result.study
    lines = [f"{study.variant}, study {study.fingerprint[:12]}. Needs \\usepackage{{booktabs}}."]
    lines += [f"override {text}" for text in study.overrides]
    head = [f"% {' '.join(line.split())}" for line in lines]
    chosen = _tables(result, facts).items()
    parts = (_typeset(result, name, table, caption) for name, (table, caption) in chosen if table is not None)
    return "\n".join([*head, *parts])


def _tables(result: RecordedResults, facts: Mapping[str, Any]) -> dict[str, tuple[Table | None, str]]:
    """Choose tables, by name and with their captions."""
    main, study = result.main_metric, result.study
    objective = study.objective.metric
    beside = [objective] if objective != main and objective in result.metrics else []
    first = tables.comparison_table(result, main, beside)
    if facts["registration"]:
        first = replace(first, notes=(*first.notes, facts["registration"]))
    what = f"{f'{objective} beside ' if beside else ''}{main} against the baseline"
    spread, coverage = f"Mean ± standard deviation of {seeds(result)}", covered(result)
    return {
        "comparison": (first, f"{what}. {spread}. {coverage}"),
        "deviations": (facts["deviations"], "Deviations from the registration"),
        "effects": (facts["effects"], f"Effects on {main}. {coverage}"),
        "gains": (facts["gains"], f"Gains over {study.analysis.gains_over} on {main}. {coverage}"),
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


def _typeset(result: RecordedResults, name: str, table: Table, sentences: str) -> str:
    """Typeset a table, in several parts if it is too wide."""
    # Columns of text become paragraphs, which share the width; numbers do not wrap.
    parts = [table] if table.num_text == len(table.header) else table.parts(LINE)
    texts = []
    for index, part in enumerate(parts, start=1):
        label = f"tab:{slug(result.study.variant)}-{name}{f'-{index}' if index > 1 else ''}"
        more = f" (part {index} of {len(parts)})" if len(parts) > 1 else ""
        texts.append(to_latex(part, caption(result, f"{sentences.rstrip('. ')}{more}."), label))
    return "\n".join(texts)


def caption(result: RecordedResults, text: str) -> str:
    """Begin a caption with the study's name, since a paper may show several, and end it with its data."""
    return f"{result.study.variant}: {text}{' The data is constructed.' if result.is_constructed else ''}"


def _budget_table(result: RecordedResults) -> Table | None:
    """Tabulate size, steps and time of the trainings; None where the system reports none of them."""
    names = [
        name
        for name, metric in result.metrics.items()
        if metric.split is None and (name.startswith(("parameters/", "train_")))
    ]
    return tables.metrics_table(result, names) if names else None


def seeds(result: RecordedResults) -> str:
    """Say of how many seeds the means are."""
    numbers = numbers_of_seeds(result)
    return f"n = {numbers} {'seed' if numbers == '1' else 'seeds'}"


def covered(result: RecordedResults) -> str:
    """Say in one or more sentences what the intervals on the main metric cover."""
    main = result.main_metric
    if main not in result.metrics:
        return ""
    compared = [
        (cell.cell.label, comparison)
        for cell in result.cells[1:]
        if (comparison := result.compare(cell.cell, metric=main)).ci is not None
    ]
    texts = [f"Intervals have {100 * (1 - result.study.analysis.alpha):g} % confidence.", *scopes(compared)]
    if one_seed := [label for label, comparison in compared if comparison.scope == "segments"]:
        subject = "Intervals cover" if len(one_seed) == len(compared) else f"{', '.join(one_seed)}: it covers"
        texts.append(f"{subject} the test segments alone, not training.")
    return " ".join(texts) if compared else ""
