"""The sections of a report: one list, which Markdown, HTML and LaTeX each show in their own way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering import journals, prose, search_tables, tables
from nlgraft.analysis.rendering.typesetting import Table


@dataclass(frozen=True)
class Section:
    """A part of a report, left out where it has neither text nor table nor figures.

    Attributes:
        name: Its name in the labels of LaTeX.
        title: Its heading.
        table: Its table.
        text: Sentences above the table.
        caption: What a paper says below the title of the table; None where a paper goes without.
        figures: Kind of its figures, see `nlgraft.analysis.rendering.figures.KINDS`.
        depth: Level of its heading: 2, or 3 for a part of the section before it.
        is_folded: True if a page shows it only when a reader opens it.
    """

    name: str
    title: str
    table: Table | None = None
    text: str = ""
    caption: str | None = None
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
            caption="",
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
        Section("claims", "Claims", tables.claims_table(result), caption=""),
        Section("lengths", "Sequence lengths", tables.length_table(result)),
        Section("curves", "Learning curves: means over seeds, from minimum to maximum", figures="curves"),
        *_metric_sections(result, means),
        Section(
            "stability",
            f"Stability of the training ({main})",
            tables.stability_table(result),
            caption="Seeds that were lost or diverged.",
        ),
        Section("looks", "Planned looks", tables.looks_table(result), caption=""),
        Section("search", "Search", search_tables.search_table(result), caption=""),
        Section("space", "Searched values", searched, caption="", depth=3),
        Section("expected-best", "Expected best by budget", best, caption="", figures="budget", depth=3),
        Section(
            "importances",
            "Which setting mattered",
            search_tables.importance_table(result),
            search_tables.which_setting(result),
            caption="p is corrected for the number of settings of a cell.",
        ),
        Section("trials", "Trials", text=trials_text),
        Section("every-trial", "Every trial", tables.trials_table(result), depth=3, is_folded=True),
        Section(
            "earlier", "Earlier analyses of the same segments", journals.earlier_analyses(result), caption=""
        ),
    ]


def _metric_sections(result: RecordedResults, means_of: str) -> list[Section]:
    """List the sections of the metrics beside the main one: the means by split, then the differences."""
    by_split: dict[str, list[str]] = {"on test": [], "on dev": [], "without a split": []}
    for name, metric in result.metrics.items():
        by_split[f"on {metric.split}" if metric.split else "without a split"].append(name)
    # On a page only the means on test are open: who looks for the others knows what for.
    means = [
        Section(
            f"metrics-{split.removeprefix('on ').replace(' ', '-')}",
            f"Metrics {split}",
            tables.metrics_table(result, names),
            caption=means_of,
            depth=3,
            is_folded=split != "on test",
        )
        for split, names in by_split.items()
        if names
    ]
    differences = {name: tables.comparison_table(result, name) for name in tables.compared_metrics(result)}
    return [
        Section("metrics", "All metrics", text="Mean ± standard deviation over seeds."),
        *means,
        *(
            Section(name, f"{name} against the baseline", table, depth=3, is_folded=True)
            for name, table in differences.items()
        ),
    ]
