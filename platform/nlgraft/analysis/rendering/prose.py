"""The sentences of a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import fmean

from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.power import FUTILE, PROBABILITY, decided_by
from nlgraft.analysis.estimates.trivial import NEAR
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.rendering.tables import comparison_table, confidence, effects_table
from nlgraft.analysis.rendering.typesetting import sentences, template
from nlgraft.basics.wording import count, duration
from nlgraft.study.data.design import idle_note

EXAMPLES = "train_examples"
"""Metric that counts the examples of the training whose model is the trial's result."""
_NUM_NAMED = 12
_SAME = 1.01
"""Ratio up to which numbers of examples count as the same."""


def headline(result: RecordedResults) -> str:
    """Summarise the comparison with the baseline and the claims in a few sentences.

    Cells that the study's family leaves out are not counted: nothing was to be decided about them.
    """
    main, compared = result.main_metric, result.against_baseline()
    measured = [comparison for comparison in compared if comparison.difference is not None]
    by_kind = defaultdict(list)
    for comparison in measured:
        if comparison.p is None or comparison.family[0]:
            kind = "exploratory" if comparison.basis == "exploratory" else comparison.standing or "open"
            by_kind[kind].append(comparison.a)
    scored = [cell for cell in result.cells if cell.measured(main)]
    facts = {
        "result": result,
        "main": main,
        "measured": measured,
        "unknown": [comparison.a for comparison in compared if comparison.difference is None],
        "by_kind": by_kind,
        "most": _NUM_NAMED,
        "num_scored": len(scored),
        "unlearned": [cell.label for cell in scored if result.unlearned(cell)],
        "near": NEAR,
        "unstable": [
            f"{len(seeds)} of {count(cell.num_seeds, 'seed')} of {cell.label} {word}"
            for cell in result.stabilities
            for seeds, word in ((cell.diverged, "diverged"), (cell.lost, "failed"))
            if seeds
        ],
        "trained_once": sorted({stage for comparison in measured for stage in comparison.trained_once}),
        "verdicts": Counter(claim.word for claim in result.claims).most_common(),
    }
    return " ".join(sentences("headline.txt.j2", facts))


def short_note(result: RecordedResults) -> str:
    """Write headline, comparison table and claims as Markdown, short enough for MLflow's note."""
    main = result.main_metric
    compared, effects = comparison_table(result, main), effects_table(result, main)
    facts = {"result": result, "headline": headline(result), "comparison": compared, "effects": effects}
    return template("note.txt.j2").render(facts).rstrip() + "\n"


def fairness(result: RecordedResults) -> str:
    """State that every cell had the same budget and examples, or name those that had less."""
    num_seeds, search = result.study.first_seeds, result.study.search
    budget = [count(num_seeds, "seed")]
    less = [
        f"{cell.label} finished {num} of {budget[0]}"
        for cell in result.cells
        if (num := len(cell.finished)) < num_seeds
    ]
    if search is not None:
        budget.append(count(search.trials, "search trial"))
        less += [
            f"{cell.label} ended {num} of {budget[1]}"
            for cell in result.cells
            if (num := len([trial for trial in cell.search if trial.record])) < search.trials
        ]
        less += [
            f"{cell.label} has only {cell.num_distinct} distinct of {budget[1]}, since the searched "
            "values change little or nothing there"
            for cell in result.cells
            if cell.num_distinct < len(cell.search)
        ]
    means = {cell.label: cell.mean(EXAMPLES) for cell in result.cells}
    examples = {label: mean for label, mean in means.items() if mean is not None}
    facts = {
        "result": result,
        "budget": budget,
        "less": less,
        "examples": examples,
        "fewest": min(examples, key=examples.__getitem__, default=None),
        "most": max(examples, key=examples.__getitem__, default=None),
        "same": _SAME,
    }
    return " ".join(sentences("fairness.txt.j2", facts))


def method(result: RecordedResults) -> list[str]:
    """Describe the statistics, one sentence or more in each text."""
    study, settings = result.study, result.study.analysis
    priors = list(dict.fromkeys(each.prior for each in result.against_baseline() if each.prior))
    margins = {name: result.margin(name) for name in result.metrics if result.margin(name) is not None}
    facts = {
        "result": result,
        "study": study,
        "settings": settings,
        "merged": idle_note(study),
        "confidence": confidence(settings.alpha),
        "priors": priors,
        "margins": margins,
        "num_documents": max((trial.num_documents for trial in result.trials), default=0),
        "levels": look_levels(study.looks, FIRST * settings.alpha, priors[0].df if priors else 0.0),
        "futile": FUTILE,
        "first": FIRST,
    }
    return sentences("method.txt.j2", facts)


def sharing(result: RecordedResults) -> str:
    """State in one sentence what sharing stages between trials saved; empty when nothing has run."""
    facts = result.provenance
    if not facts.num_stages:
        return ""
    saved = f"sharing them saved {duration(facts.saved_s)}" if facts.saved_s > 0 else "sharing saved nothing"
    return (
        f"The trials consist of {count(facts.num_stages, 'stage')}, {facts.num_distinct} of them distinct; "
        f"these took {duration(facts.computed_s)} to compute, and {saved}."
    )


def explain(
    result: RecordedResults,
    cell: str,
    baseline: str,
    metric: str | None,
    study: str,
) -> list[str]:
    """Explain the verdict on a cell in a few lines.

    Args:
        result: The results.
        cell: The cell, as `RecordedResults.compare` takes it.
        baseline: The cell to compare it with.
        metric: A metric of the system; None for the main one.
        study: How commands name the study.

    Raises:
        NlgraftError: There is no such metric.
        StudyError: There is no such cell.
    """
    comparison = result.compare(cell, baseline, metric=metric)
    lines = repr(comparison).split("\n  ")
    if comparison.difference is None:
        return lines
    cells = [result.cell(label) for label in (comparison.a, comparison.b)]
    first, second = (each.values(comparison.metric) for each in cells)
    levels, needed = comparison.later_levels, comparison.seeds_needed
    look, last = needed or min(levels, default=0), needed or max(levels, default=0)
    chance = None
    if look and comparison.looks and comparison.estimate is not None:
        chance = decided_by(comparison.estimate, last, levels[last], comparison.margin)
    # Each trial as long as those of the two cells so far.
    trials = [trial for each in cells for trial in each.trials if trial.record is not None]
    num_more = 2 * look - len(first) - len(second)
    facts = {
        "result": result,
        "study": study,
        "comparison": comparison,
        "differences": {seed: first[seed] - second[seed] for seed in comparison.seeds},
        "needed": needed,
        "look": look,
        "last": last,
        "chance": chance,
        "least": PROBABILITY,
        "num_more": num_more,
        "seconds": num_more * fmean(trial.duration_s for trial in trials),
        "num_looks": sum(number <= look for number in levels),
    }
    return [*lines, *sentences("why.txt.j2", facts)]
