"""Reports: Markdown, self-contained HTML, LaTeX, CSV and JSON of one result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
def _latex(_: RecordedResults, described: _Facts) -> str:
    facts = dict(described())
    if facts["registration"]:
        # A paper shows tables alone.
        table = facts["comparison"]
        facts["comparison"] = replace(table, notes=(*table.notes, facts["registration"]))
    return _environment_of(is_html=False).get_template("report.tex.j2").render(facts)


def _html(result: RecordedResults, described: _Facts) -> str:
    environment = _environment_of(is_html=True)
    main = result.main_metric
    facts = dict(described())
    facts["forest"] = figures.forest_plot(result, main) if main in result.metrics else None
    facts["gain_curves"] = figures.gain_curves(result, main) if main in result.metrics else None
    facts["curves"] = figures.learning_curves(result)
    facts["budgets"] = figures.expected_best_curves(result)
    facts["legend"] = [(tables.cell_name(cell), index) for index, cell in enumerate(result.cells)]
    facts["num_series"] = figures.NUM_SERIES
    return environment.get_template("report.html.j2").render(facts)


def _json(result: RecordedResults, _: _Facts) -> str:
    return json.dumps(result_document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _signatures(result: RecordedResults) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in result.metrics:
        seen = {trial.signature for cell in result.cells for trial in cell.measured(name).values()}
        if seen - {None}:
            found[name] = sorted(signature for signature in seen if signature)
    return found


def _counts(result: RecordedResults) -> dict[str, int]:
    states = [trial.state for trial in result.trials]
    return {state: states.count(state) for state in dict.fromkeys(states)}


def _environment(result: RecordedResults) -> list[tuple[str, str]]:
    facts = result.provenance
    rows = [("study fingerprint", result.study.fingerprint)]
    if facts.ended_at is not None:
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.ended_at))
        rows.append(("last trial ended", ended))
    rows += [("hosts", ", ".join(facts.hosts))] if facts.hosts else []
    rows += [("code", ", ".join(facts.commits))] if facts.commits else []
    return rows + [(package, ", ".join(versions)) for package, versions in facts.versions.items()]


_FORMATS: dict[str, tuple[str, Callable[[RecordedResults, _Facts], str]]] = {
    "md": ("report.md", _markdown),
    "html": ("report.html", _html),
    "latex": ("report.tex", _latex),
    "csv": ("comparison.csv", comparison_csv),
    "json": ("result.json", _json),
}
