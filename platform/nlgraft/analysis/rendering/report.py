"""Reports: Markdown, self-contained HTML, LaTeX, CSV and JSON of one result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlgraft.analysis.data.provenance import corpora
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import Comparison, rounded
from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.policy.examples import examples_of
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.sensitivity import MANY_LINES
from nlgraft.analysis.rendering import (
    journals,
    prose,
    search_tables,
    tables,
    typesetting,
)
from nlgraft.analysis.rendering.journals import ledger_document
from nlgraft.analysis.rendering.paper_tables import latex_tables
from nlgraft.analysis.rendering.search_tables import which_setting
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.basics.wording import hours_of_budget, inert_markdown, without_credentials

if TYPE_CHECKING:
    import jinja2
    import pandas as pd


_COMPARED = (
    *("difference", "ci_low", "ci_high", "p", "p_holm", "p_segments", "margin", "p_equal", "p_equal_holm"),
    *("standing", "is_within_margin", "smallest_detectable", "seeds_needed"),
)
_NUM_EXAMPLES, _MOST_CELLS_WITH_TEXT = 5, 12


def render(result: RecordedResults, kind: str) -> str:
    """Render a report as ``md``, ``html``, ``latex``, ``csv`` or ``json``.

    Raises:
        NlgraftError: There is no such format.
    """
    if kind not in _FORMATS:
        raise NlgraftError(f"no report format '{kind}'. {nearest(kind, list(_FORMATS))}")
    return _FORMATS[kind][1](result)


def write_report(result: RecordedResults, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write a report to files.

    Args:
        result: The result.
        out: Directory to write into; created when missing.
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
            result.frame().map(typesetting.inert).to_csv(written[-1], index=False)
    return written


@lru_cache(maxsize=1)  # of 10,000 trials, it takes as long as the writing, and formats ask again
def describe(result: RecordedResults, max_lines: float = MANY_LINES) -> dict[str, Any]:
    """Gather the tables and sentences of a report by their names in the templates.

    Args:
        result: The result.
        max_lines: Lines of output up to which they are scored again with other tokenizers.
    """
    main = result.main_metric
    metrics = result.metrics
    return {
        **_metrics_beside(result),
        "result": result,
        "study": result.study,
        "system": result.system,
        "main_metric": main,
        "headline": prose.headline(result),
        "ledger": journals.ledger_sentences(result),
        "registration": str(result.registration or ""),
        "deviations": journals.deviations_table(result),
        "earlier": journals.earlier_analyses(result),
        "comparison": tables.comparison_table(result, main),
        "effects": tables.effects_table(result, main) if main in metrics else None,
        "gains": tables.gains_table(result, main) if main in metrics else None,
        "claims": tables.claims_table(result) if result.claims else None,
        "search": search_tables.search_table(result) if result.study.search else None,
        "expected_best": search_tables.expected_best_table(result) if result.study.search else None,
        "which_setting": search_tables.which_setting(result),
        "importances": search_tables.importance_table(result),
        "levels": search_tables.levels_table(result),
        "sensitivity": tables.sensitivity_table(result, max_lines),
        "stability": tables.stability_table(result),
        "looks": tables.looks_table(result) if result.stops else None,
        "trials": tables.trials_table(result),
        "fairness": prose.fairness(result),
        "method": [*prose.method(result), *journals.ledger_method(result)],
        "signatures": _signatures(result),
        "corpora": corpora(result.study.data),
        "data": json.dumps(result.study.data, indent=2, ensure_ascii=False),
        "counts": _counts(result),
        "sharing": prose.sharing(result),
        "environment": _environment(result),
    }


def _metrics_beside(result: RecordedResults) -> dict[str, Any]:
    """Gather the tables of metrics beside the main one."""
    main, metrics = result.main_metric, result.metrics
    lengths = [name for name in metrics if "length" in name.rpartition("/")[2]]
    on_test = [name for name in lengths if metrics[name].split == "test"]
    split = metrics[main].split if main in metrics else "test"
    beside = [
        name
        for name, metric in metrics.items()
        if metric.is_derived or (metric.split == split and not metric.is_time)
    ]
    groups = {
        title: [name for name, metric in metrics.items() if metric.split == split]
        for title, split in (("Test", "test"), ("Dev", "dev"), ("Without a split", None))
    }
    return {
        "other_comparisons": [
            (name, tables.comparison_table(result, name)) for name in beside if name not in (main, *lengths)
        ],
        "metric_tables": [
            (title, tables.metrics_table(result, names)) for title, names in groups.items() if names
        ],
        "lengths": tables.length_table(result, on_test or lengths) if lengths else None,
    }


def html_table(table: typesetting.Table, caption: str) -> str:
    """Render one table as HTML, without a page around it."""
    macros: Any = template("table.html.j2").module
    return macros.show(table, caption)


def comparison_frame(result: RecordedResults) -> pd.DataFrame:
    """Compare every cell on every metric, in full precision: one row for each."""
    import pandas as pd

    factors = list(result.baseline.cell.levels)
    rows: list[list[Any]] = []
    for cell in result.cells:
        levels = [cell.cell.levels[factor] for factor in factors]
        for name in result.metrics:
            values = [rounded(cell.mean(name)), rounded(cell.std(name)), len(cell.measured(name))]
            compared: dict[str, Any] = {}
            if cell is not result.baseline:
                compared = result.compare(cell.cell, metric=name).to_json()
                compared["ci_low"], compared["ci_high"] = compared["ci"] or (None, None)
            row = [cell.cell.label, *levels, cell.state, name, *values]
            rows.append([*row, *(compared.get(key) for key in _COMPARED)])
    titles = ["cell", *factors, "state", "metric", "mean", "std", "n", *_COMPARED]
    return pd.DataFrame(rows, columns=titles, dtype=object)


def template(name: str) -> jinja2.Template:
    """Load a template of this folder; HTML is escaped, of Markdown what is put in is made inert."""
    import jinja2  # which Python's callers need not pay for

    is_html = name.endswith(".html.j2")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nlgraft.analysis.rendering"),
        autoescape=is_html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Markdown: all that a template puts in is escaped, but for what it calls safe.
        finalize=None if is_html else lambda value: inert_markdown(value) if type(value) is str else value,
    )
    environment.filters["markdown"] = typesetting.to_markdown
    return environment.get_template(name)


def _markdown(result: RecordedResults) -> str:
    return template("report.md.j2").render(describe(result))


def _html(result: RecordedResults) -> str:
    from nlgraft.analysis.rendering import drawing, figures  # load matplotlib, which takes .3 s

    facts = dict(describe(result))
    for kind, draw in figures.KINDS.items():
        drawings = draw(result, drawing.PAGE)
        facts[f"{kind}_figures"] = [(figure.caption or figure.title, figure.inline()) for figure in drawings]
    facts["legend"] = [(tables.cell_name(cell), index) for index, cell in enumerate(result.cells)]
    facts["num_series"] = drawing.NUM_SERIES
    facts["examples"] = examples_of(result, _MOST_CELLS_WITH_TEXT)
    facts["num_examples"] = _NUM_EXAMPLES
    return template("report.html.j2").render(facts)


def _comparison_csv(result: RecordedResults) -> str:
    frame = comparison_frame(result)
    return typesetting.to_csv([frame.columns, *frame.itertuples(index=False)])


def _json(result: RecordedResults) -> str:
    return json.dumps(result_document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _signatures(result: RecordedResults) -> dict[str, list[str]]:
    signatures: dict[str, list[str]] = {}
    for name in result.metrics:
        seen = {trial.signature for cell in result.cells for trial in cell.measured(name).values()}
        if seen - {None}:
            signatures[name] = sorted(signature for signature in seen if signature)
    return signatures


def _counts(result: RecordedResults) -> dict[str, int]:
    states = [trial.state for trial in result.trials]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _environment(result: RecordedResults) -> list[tuple[str, str]]:
    facts = result.provenance
    rows = [("study fingerprint", result.study.fingerprint)]
    if facts.ended_at is not None:
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.ended_at))
        rows.append(("last trial ended", ended))
    records = [trial.record for trial in result.trials if trial.record is not None]
    trial_s = sum(record.ended_at - record.started_at for record in records)
    if hours := result.study.budget_hours(trial_s):
        rows.append(("budget", hours_of_budget(hours)))
    rows += [("hosts", ", ".join(facts.hosts))] if facts.hosts else []
    rows += [("code", ", ".join(facts.commits))] if facts.commits else []
    return rows + [(package, ", ".join(versions)) for package, versions in facts.versions.items()]


_FORMATS: dict[str, tuple[str, Callable[[RecordedResults], str]]] = {
    "md": ("report.md", _markdown),
    "html": ("report.html", _html),
    "latex": ("report.tex", lambda result: latex_tables(result, describe(result))),
    "csv": ("comparison.csv", _comparison_csv),
    "json": ("result.json", _json),
}


def result_document(result: RecordedResults) -> dict[str, Any]:
    """Return a result as JSON values.

    Returns:
        ``study`` (the variant's name), ``overrides``, ``fingerprint``, ``baseline``, ``cells`` (each with
        ``cell``, ``state``, ``metrics``, ``comparison``), ``effects`` and ``gains`` on the main metric,
        ``claims``, ``report_dir``, ``tracking_uri``, ``experiment``, ``trials`` and more. Without an
        invocation ``trials`` counts finished ones as reused.
    """
    study, run = result.study, result.invocation
    states = [trial.state for trial in result.trials]
    trials = {"run": 0, "reused": states.count("finished"), "failed": states.count("failed")}
    if run is not None:
        trials = {"run": run.num_run, "reused": run.num_reused, "failed": run.num_failed}
    return {
        "study": study.variant,
        "overrides": study.overrides,
        "fingerprint": study.fingerprint,
        "system": result.system.path,
        "is_constructed": result.is_constructed,
        "main_metric": result.main_metric,
        "baseline": dict(result.baseline.cell.levels),
        "seeds": list(study.seeds),
        "looks": {
            label: {"num_seeds": stop.num_seeds, "stopped_because": stop.reason}
            for label, stop in result.stops.items()
        },
        "ledger": ledger_document(result),
        "registration": result.registration and result.registration.to_json(),
        "analysis": {**study.analysis.model_dump(mode="json"), "samples": result.samples},
        "which_setting": which_setting(result),
        "trivial": None if result.trivial is None else vars(result.trivial),
        "stability": {stability.label: stability.to_json() for stability in result.stabilities},
        "cells": [_cell(result, cell) for cell in result.cells],
        "effects": [
            {
                "effect": effect.contrast.label,
                "levels": dict(effect.contrast.levels),
                "kind": "interaction" if effect.is_interaction else "main",
                **_compared(effect.comparison),
            }
            for effect in result.effects()
        ],
        "gains": [
            {"gain": curve.label, "at": level, **_compared(comparison)}
            for curve in result.gains()
            for level, comparison in curve.gains
        ],
        "claims": [claim.to_json() for claim in result.claims],
        "report_dir": None if run is None else run.report_dir,
        "tracking_uri": without_credentials((run and run.tracking_uri) or study.tracking.uri or "") or None,
        "experiment": (run and run.experiment) or study.tracking.experiment or study.variant,
        "trials": trials,
    }


def _compared(comparison: Comparison) -> dict[str, Any]:
    return {"metric": comparison.metric, **comparison.to_json()}


def _cell(result: RecordedResults, cell: CellResult) -> dict[str, Any]:
    metrics = {name: _metric(cell, name) for name in result.metrics if cell.measured(name)}
    document = {
        "cell": dict(cell.cell.levels),
        "label": cell.cell.label,
        "state": cell.state,
        "reasons": cell.reasons,
        "metrics": metrics,
    }
    if result.study.search is not None:
        expected = expected_best(result, cell)
        settings = {searched.label: searched.to_json() for searched in result.searched_settings}
        document["params"] = dict(cell.params)
        document["search"] = {
            "trials": len(cell.search),
            "distinct": cell.num_distinct,
            "finished": sum(trial.state == "finished" for trial in cell.search),
            "expected_best": None if expected is None else expected.to_json(),
            "settings": settings.get(cell.cell.label),
        }
    if cell is not result.baseline:
        compared = {name: result.compare(cell.cell, metric=name) for name in metrics}
        document["comparison"] = {name: comparison.to_json() for name, comparison in compared.items()}
    return document


def _metric(cell: CellResult, name: str) -> dict[str, Any]:
    measured = cell.measured(name)
    return {
        "mean": rounded(cell.mean(name)),
        "std": rounded(cell.std(name)),
        "n": len(measured),
        "values": [rounded(trial.value) for trial in measured.values()],
        "seeds": list(measured),
    }
