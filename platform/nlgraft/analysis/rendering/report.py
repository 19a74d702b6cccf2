"""Reports: Markdown, self-contained HTML, LaTeX, CSV and JSON of one result."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nlgraft.analysis.data.provenance import corpora
from nlgraft.analysis.data.results import Invocation
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import Comparison, rounded_all
from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.policy.examples import examples_of
from nlgraft.analysis.policy.hypotheses import SystemScores
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering import journals, prose, search_tables, tables, typesetting
from nlgraft.analysis.rendering.typesetting import Table, template
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.basics.wording import hours_of_budget, inert_markdown, without_credentials

if TYPE_CHECKING:
    import pandas as pd


_COMPARED = (
    *("difference", "ci_low", "ci_high", "p", "p_holm", "p_segments", "margin", "p_equal", "p_equal_holm"),
    *("standing", "is_within_margin", "smallest_detectable", "seeds_needed"),
)
_NUM_EXAMPLES, _MOST_CELLS_WITH_TEXT = 5, 12


@dataclass(frozen=True)
class Section:
    """A part of a report, left out where it has neither text nor table nor figures.

    Attributes:
        name: Its name in the labels of LaTeX.
        title: Its heading.
        table: Its table.
        text: Sentences above the table.
        caption: What a paper says below the title of the table; None where a paper goes without.
        figures: Kind of its figures, see `figures.KINDS`.
        depth: Level of its heading: 2, or 3 for a part of the section before it.
        is_folded: True if a page shows it only when a reader opens it.
    """

    name: str
    title: str
    table: Table | None = None
    text: str = ""
    caption: str | None = ""
    figures: str = ""
    depth: int = 2
    is_folded: bool = False


@lru_cache(maxsize=1)  # of 10,000 trials, it takes as long as the writing, and formats ask again
def sections(result: RecordedResults) -> list[Section]:
    """List the sections of a report on one study, in their order."""
    main, study = result.main_metric, result.study
    compared, effects, gains = tables.comparison_table(result, main), None, None
    if main in result.metrics:
        effects, gains = tables.effects_table(result, main), tables.gains_table(result, main)
    coverage, over = tables.covered(result), study.analysis.gains_over
    means = f"Mean ± standard deviation of {tables.seeds(result)}."
    searched = search_tables.space_table(study.search.space) if study.search else None
    best = search_tables.expected_best_table(result)
    trials_text = " ".join(filter(None, (prose.fairness(result), prose.sharing(result))))
    return [
        Section(
            "deviations",
            "Deviations from the registration",
            journals.deviations_table(result),
        ),
        Section(
            "comparison",
            f"{main} against the baseline",
            compared,
            caption=f"{means} {coverage} {result.registration or ''}".strip(),
            figures="forest",
        ),
        Section("effects", f"Effects on {main}", effects, caption=coverage),
        Section("gains", f"Gains over {over} on {main}", gains, caption=coverage, figures="gains"),
        Section("claims", "Claims", tables.claims_table(result)),
        Section("lengths", "Sequence lengths", tables.length_table(result), caption=None),
        Section("curves", "Learning curves: means over seeds, from minimum to maximum", figures="curves"),
        *_metric_sections(result, means),
        Section(
            "stability",
            f"Stability of the training ({main})",
            tables.stability_table(result),
            caption="Seeds that were lost or diverged.",
        ),
        Section("looks", "Planned looks", tables.looks_table(result)),
        Section("search", "Search", search_tables.search_table(result)),
        Section("space", "Searched values", searched, depth=3),
        Section("expected-best", "Expected best by budget", best, figures="budget", depth=3),
        Section(
            "importances",
            "Which setting mattered",
            search_tables.importance_table(result),
            search_tables.which_setting(result),
            caption="p is corrected for the number of settings of a cell.",
        ),
        Section("trials", "Trials", text=trials_text),
        Section(
            "every-trial", "Every trial", tables.trials_table(result), caption=None, depth=3, is_folded=True
        ),
        Section("earlier", "Earlier analyses of the same segments", journals.earlier_analyses(result)),
    ]


def _metric_sections(result: RecordedResults, means_of: str) -> list[Section]:
    """List the sections of the metrics beside the main one: the means by split, then the differences."""
    # On a page only the means on test are open: who looks for the others knows what for.
    means = [
        Section(
            f"metrics-{split or 'without-a-split'}",
            f"Metrics {f'on {split}' if split else 'without a split'}",
            tables.metrics_table(result, names),
            caption=means_of,
            depth=3,
            is_folded=split != "test",
        )
        for split in ("test", "dev", None)
        if (names := [name for name, metric in result.metrics.items() if metric.split == split])
    ]
    differences = {name: tables.comparison_table(result, name) for name in tables.compared_metrics(result)}
    return [
        Section("metrics", "All metrics", text="Mean ± standard deviation over seeds."),
        *means,
        *(
            Section(name, f"{name} against the baseline", table, caption=None, depth=3, is_folded=True)
            for name, table in differences.items()
        ),
    ]


def render(
    result: RecordedResults,
    kind: str,
    beside: Sequence[RecordedResults] = (),
) -> str:
    """Render a report; arguments and errors as in `StudyResult.render`."""
    if kind not in _FORMATS:
        raise NlgraftError(f"no report format '{kind}'. {nearest(kind, list(_FORMATS))}")
    if not beside:
        return _FORMATS[kind][1](result)
    results = [result, *beside]
    if kind == "html":
        return _page(results)
    if kind == "md":
        headlines = [f"- **{each.study.variant}**: {prose.headline(each)}\n" for each in results]
        return "\n".join([inert_markdown("".join(headlines)), *map(_FORMATS["md"][1], results)])
    raise NlgraftError(f"several studies are reported together as md or html; {kind} holds one")


def write_report(
    result: RecordedResults,
    out: Path,
    formats: Sequence[str],
    beside: Sequence[RecordedResults] = (),
) -> list[Path]:
    """Write a report to files; arguments, files and errors as in `StudyResult.report`."""
    texts = {}
    for kind in formats:
        text = render(result, kind, beside)
        texts[_FORMATS[kind][0]] = text
        if kind == "csv":
            texts["trials.csv"] = _csv(result.frame())
            # As rows, which MLflow and spreadsheets show as a table.
            examples = [
                {"cell": chosen.label, "seed": chosen.seed, "segment": example.number}
                | {"source": example.source, "reference": example.reference}
                | dict(zip(("output", "baseline's output"), example.outputs, strict=True))
                | dict(zip(("score", "baseline's score"), rounded_all(example.scores), strict=True))
                for chosen in examples_of(result, _MOST_CELLS_WITH_TEXT)
                for example in chosen.examples
            ]
            if examples:
                import pandas as pd  # half a second to import

                texts["examples.csv"] = _csv(pd.DataFrame(examples, dtype=object))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")
    return [out / name for name in texts]


def _page(results: Sequence[RecordedResults]) -> str:
    return template("report.html.j2").render(
        studies=[_facts(result) for result in results],
        texts=[_study_html(result, f"study-{number}") for number, result in enumerate(results, 1)],
    )


def _study_html(result: RecordedResults, owner: str) -> str:
    from nlgraft.analysis.rendering import figures  # loads matplotlib, which takes .3 s

    drawings = defaultdict(list, {kind: draw(result, figures.PAGE) for kind, draw in figures.KINDS.items()})
    return template("study.html.j2").render(
        _facts(result),
        owner=owner,
        seeds=sorted({trial.seed for cell in result.cells for trial in cell.finished} or result.study.seeds),
        drawings=drawings,
        wide=figures.WIDE,
        legend=[(tables.cell_name(cell), index) for index, cell in enumerate(result.cells)],
        num_series=figures.NUM_SERIES,
        examples=examples_of(result, _MOST_CELLS_WITH_TEXT),
        num_examples=_NUM_EXAMPLES,
    )


def render_systems(
    systems: Sequence[SystemScores],
    notes: Sequence[str],
    kind: Literal["md", "html"],
) -> str:
    """Render the comparison of systems that were not trained here, see `tables.systems_table`."""
    table, title = tables.systems_table(systems, notes), f"{systems[0].system} and others"
    if kind == "md":
        return inert_markdown(typesetting.to_markdown(table))
    return template("report.html.j2").render(
        studies=[{"study": {"variant": title}}], texts=[html_table(table, title)]
    )


def html_table(table: Table, caption: str) -> str:
    """Render one table as HTML, without a page around it."""
    macros: Any = template("table.html.j2").module
    return macros.show(table, caption)


def _facts(result: RecordedResults) -> dict[str, Any]:
    """Gather what a page says around its sections, by the names in the templates."""
    return {
        "result": result,
        "study": result.study,
        "headline": prose.headline(result),
        "ledger": journals.ledger_sentences(result),
        "registration": str(result.registration or ""),
        "sections": sections(result),
        "method": prose.method(result),
        "signatures": tables.signatures(result),
        "corpora": corpora(result.study.data),
        "data": _json(result.study.data),
        "counts": Counter(trial.state for trial in result.trials),
        "environment": _environment(result),
    }


def _environment(result: RecordedResults) -> dict[str, str]:
    facts = result.provenance
    ended = "" if facts.ended_at is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.ended_at))
    hours = result.study.budget_hours(sum(trial.duration_s for trial in result.trials))
    rows = {
        "study fingerprint": result.study.fingerprint,
        "last trial ended": ended,
        "hosts": ", ".join(facts.hosts),
        "code": ", ".join(facts.commits),
        **{package: ", ".join(versions) for package, versions in facts.versions.items()},
        "budget": hours_of_budget(hours) if hours else "",
    }
    return {name: text for name, text in rows.items() if text}


def latex_tables(result: RecordedResults, parts: Sequence[Section]) -> str:
    """Typeset the tables of a report, each in several parts if it is too wide."""
    facts = {
        "result": result,
        "study": result.study,
        "sections": parts,
        "line": typesetting.LINE,
        "caption": tables.caption,
    }
    return template("report.tex.j2").render(facts).rstrip() + "\n"


def _csv(frame: pd.DataFrame) -> str:
    # Not by `frame.map`, which would turn whole numbers beside gaps into floats.
    rows = [list(map(typesetting.inert, row)) for row in frame.itertuples(index=False)]
    return type(frame)(rows, columns=frame.columns, dtype=object).to_csv(index=False, lineterminator="\n")


def comparison_frame(result: RecordedResults) -> pd.DataFrame:
    """Compare every cell on every metric, in full precision: one row for each."""
    import pandas as pd

    factors = list(result.baseline.cell.levels)
    rows = []
    for cell, name in product(result.cells, result.metrics):
        compared = {} if cell is result.baseline else result.compare(cell.cell, metric=name).to_json()
        compared["ci_low"], compared["ci_high"] = compared.get("ci") or (None, None)
        row = [cell.label, *(cell.cell.levels[factor] for factor in factors), cell.state, name]
        row += [*rounded_all((cell.mean(name), cell.std(name))), len(cell.measured(name))]
        rows.append([*row, *map(compared.get, _COMPARED)])
    titles = ["cell", *factors, "state", "metric", "mean", "std", "n", *_COMPARED]
    return pd.DataFrame(rows, columns=titles, dtype=object)


_FORMATS: dict[str, tuple[str, Callable[[RecordedResults], str]]] = {
    "md": ("report.md", lambda result: template("report.md.j2").render(_facts(result))),
    "html": ("report.html", lambda result: _page([result])),
    "latex": ("report.tex", lambda result: latex_tables(result, sections(result))),
    "csv": ("comparison.csv", lambda result: _csv(comparison_frame(result))),
    "json": ("result.json", lambda result: _json(result_document(result), allow_nan=False) + "\n"),
}
_json = partial(json.dumps, indent=2, ensure_ascii=False)


def result_document(result: RecordedResults) -> dict[str, Any]:
    """Return a result as JSON values.

    Returns:
        ``study`` (the variant's name), ``overrides``, ``fingerprint``, ``baseline``, ``cells`` (each with
        ``cell``, ``state``, ``metrics``, ``comparison``), ``effects`` and ``gains`` on the main metric,
        ``claims``, ``report_dir``, ``tracking_uri``, ``experiment``, ``trials`` and more. Without an
        invocation ``trials`` counts finished ones as reused.
    """
    study, states = result.study, [trial.state for trial in result.trials]
    run = result.invocation or Invocation(0, states.count("finished"), states.count("failed"))
    document = {
        "study": study.variant,
        "overrides": study.overrides,
        "fingerprint": study.fingerprint,
        "system": result.system.path,
        "is_constructed": result.is_constructed,
        "main_metric": result.main_metric,
        "baseline": dict(result.baseline.cell.levels),
        "seeds": list(study.seeds),
        "looks": result.stops,
        "ledger": [
            {
                "metric": metric,
                "segments": analysis.entry.segments.num,
                "analysis": len(analysis.earlier) + 1,
                "earlier": [entry.variant for entry in analysis.earlier.values()],
                "why_not_entered": analysis.why_not_entered,
            }
            for metric, analysis in result.analyses.items()
        ],
        "registration": result.registration,
        "analysis": {**study.analysis.model_dump(mode="json"), "samples": result.samples},
        "which_setting": search_tables.which_setting(result),
        "trivial": result.trivial,
        "stability": {stability.label: stability for stability in result.stabilities},
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
        "claims": result.claims,
        "report_dir": run.report_dir,
        "tracking_uri": without_credentials(run.tracking_uri or study.tracking.uri or "") or None,
        "experiment": run.experiment or study.tracking.experiment or study.variant,
        "trials": {"run": run.num_run, "reused": run.num_reused, "failed": run.num_failed},
    }
    return rounded_all(document)


def _compared(comparison: Comparison) -> dict[str, Any]:
    return {"metric": comparison.metric, **comparison.to_json()}


def _cell(result: RecordedResults, cell: CellResult) -> dict[str, Any]:
    metrics = {
        name: {
            "mean": cell.mean(name),
            "std": cell.std(name),
            "n": len(values),
            "values": [*values.values()],
            "seeds": [*values],
        }
        for name in result.metrics
        if (values := cell.values(name))
    }
    document = {
        "cell": dict(cell.cell.levels),
        "label": cell.label,
        "state": cell.state,
        "reasons": cell.reasons,
        "metrics": metrics,
    }
    if result.study.search is not None:
        settings = {searched.label: searched for searched in result.searched_settings}
        document["params"] = dict(cell.params)
        document["search"] = {
            "trials": len(cell.search),
            "distinct": cell.num_distinct,
            "finished": sum(trial.state == "finished" for trial in cell.search),
            "expected_best": expected_best(result, cell),
            "settings": settings.get(cell.label),
        }
    if cell is not result.baseline:
        document["comparison"] = {name: result.compare(cell.cell, metric=name) for name in metrics}
    return document
