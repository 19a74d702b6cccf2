"""The sentences of a report."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.power import FUTILE, PROBABILITY, decided_by
from nlgraft.analysis.estimates.trivial import NEAR
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.rendering.tables import comparison_table, confidence, effects_table
from nlgraft.analysis.rendering.typesetting import num_decimals, number, template
from nlgraft.basics.wording import count, duration, name_some
from nlgraft.study.data.design import idle_note

EXAMPLES = "train_examples"
"""Metric that counts the examples of the training whose model is the trial's result."""
_NUM_NAMED = 12
_SAME = 1.01
"""Ratio up to which numbers of examples count as the same."""

_STANDINGS = {
    "better": "better than the baseline",
    "worse": "worse than the baseline",
    "equal": "equal to the baseline within the margin",
    "open": "undecided",
    "exploratory": "exploratory, without verdict",
}


def headline(result: RecordedResults) -> str:
    """Summarise the comparison with the baseline and the claims in a few sentences.

    Cells that the study's family leaves out are not counted: nothing was to be decided about them.
    """
    main = result.main_metric
    compared = result.against_baseline()
    measured = [comparison for comparison in compared if comparison.difference is not None]
    if not measured:
        return f"No cell can be compared with the baseline on {main} yet."
    words = dict(_STANDINGS)
    if (margin := result.margin(main)) is not None:
        amount = f"{margin:g} {result.system.metrics[main].unit}"
        words["equal"] += f" of {amount}"
        words["open"] = f"not known yet, neither different nor within {amount} of the baseline for certain"
    # In the order in which a reader wants them: what is decided comes first.
    by_kind: dict[str, list[str]] = {kind: [] for kind in _STANDINGS}
    for comparison in measured:
        if comparison.p is None or comparison.family[0]:
            kind = "exploratory" if comparison.basis == "exploratory" else comparison.standing or "open"
            by_kind[kind].append(comparison.a)
    parts = [
        f"{count(len(labels), 'cell')} {words[kind]} ({name_some(labels, _NUM_NAMED, '; ')})"
        for kind, labels in by_kind.items()
        if labels
    ]
    # Verdicts hold for the pretrainings that all seeds share, whatever the seeds.
    once = sorted({stage for comparison in measured for stage in comparison.trained_once})
    condition = f", for this one pretraining ({', '.join(once)})" if once else ""
    text = f"On {main}{condition}: {', '.join(parts) or 'no cell has a verdict of its own'}."
    if max(comparison.num_seeds for comparison in measured) < 2:
        text += " One seed says nothing about training noise, so nothing is decided."
    if unknown := [comparison.a for comparison in compared if comparison.difference is None]:
        text += f" Without results so far: {name_some(unknown, _NUM_NAMED, '; ')}."
    unstable = [
        f"{len(seeds)} of {count(cell.num_seeds, 'seed')} of {cell.label} {word}"
        for cell in result.stabilities
        for seeds, word in ((cell.diverged, "diverged"), (cell.lost, "failed"))
        if seeds
    ]
    warnings = _unlearned(result) + (f"Unstable: {'; '.join(unstable)}. " if unstable else "")
    verdicts = Counter(claim.word for claim in result.claims).most_common()
    claims = ", ".join(f"{number} {verdict}" for verdict, number in verdicts)
    return warnings + text + _effects_headline(result) + (f" Claims: {claims}." if claims else "")


def _unlearned(result: RecordedResults) -> str:
    """Name the cells that have learned no more than a trivial output shows, or say that none has."""
    trivial, main = result.trivial, result.main_metric
    scored = [cell for cell in result.cells if cell.measured(main)]
    blind = [cell.label for cell in scored if result.unlearned(cell)]
    if trivial is None or not blind:
        return ""
    subject = "No cell has learned" if len(blind) == len(scored) else f"Nothing learned in {'; '.join(blind)}"
    value = number(trivial.value, num_decimals([trivial.value]))
    return (
        f"{subject}: not more than {NEAR:g} better on {main} than a trivial output ({trivial.output}), which "
        f"scores {value}. "
    )


def _effects_headline(result: RecordedResults) -> str:
    effects = result.effects()
    if all(effect.comparison.difference is None for effect in effects):
        return " Effects are not known yet." if effects else ""
    shown = [effect for effect in effects if effect.comparison.standing in ("better", "worse")]
    parts = []
    for title, is_interaction in {"main effects": False, "interactions": True}.items():
        labels = [effect.contrast.label for effect in shown if effect.is_interaction == is_interaction]
        parts.append(f"{title}: {'; '.join(labels) or 'none'}")
    return f" Significant {', '.join(parts)}."


def short_note(result: RecordedResults) -> str:
    """Write headline, comparison table and claims as Markdown, short enough for MLflow's note."""
    main = result.main_metric
    compared, effects = comparison_table(result, main), effects_table(result, main)
    facts = {"result": result, "headline": headline(result), "comparison": compared, "effects": effects}
    return template("note.txt.j2").render(facts).rstrip() + "\n"


def fairness(result: RecordedResults) -> str:
    """State that every cell had the same budget and examples, or name those that had less."""
    return _trials(result) + _examples(result)


def _trials(result: RecordedResults) -> str:
    num_seeds = result.study.first_seeds
    budget = [count(num_seeds, "seed")]
    short = [
        f"{cell.label} finished {num} of {budget[0]}"
        for cell in result.cells
        if (num := len(cell.finished)) < num_seeds
    ]
    if result.study.search is not None:
        trials = result.study.search.trials
        budget.append(count(trials, "search trial"))
        short += [
            f"{cell.label} ended {num} of {budget[1]}"
            for cell in result.cells
            if (num := len([trial for trial in cell.search if trial.record])) < trials
        ]
        short += [
            f"{cell.label} has only {cell.num_distinct} distinct of {budget[1]}, since the searched "
            "values change little or nothing there"
            for cell in result.cells
            if cell.num_distinct < len(cell.search)
        ]
    if short:
        return f"Planned for every cell: {' and '.join(budget)}. Less so far: {'; '.join(short)}."
    is_further = any(len(cell.finished) > num_seeds for cell in result.cells)
    until = " up to the first look" if is_further or result.study.sequential is not None else ""
    return f"Every cell had the same budget{until}: {' and '.join(budget)}."


def _examples(result: RecordedResults) -> str:
    """Count the examples that a training saw; empty for systems that do not."""
    means = {cell.label: cell.mean(EXAMPLES) for cell in result.cells}
    seen = {label: value for label, value in means.items() if value is not None}
    if not seen:
        return ""
    least, most = min(seen, key=seen.__getitem__), max(seen, key=seen.__getitem__)
    if seen[most] <= _SAME * seen[least]:
        return f" Every training saw {seen[most]:,.0f} examples."
    return (
        f" Trainings saw unlike numbers of examples, from {seen[least]:,.0f} ({least}) to {seen[most]:,.0f} "
        f"({most}): a budget in characters or sentences (batch_characters, batch_sentences) makes them equal."
    )


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
    return template("method.txt.j2").render(facts).strip("\n").split("\n")


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


def explain(result: RecordedResults, cell: str, baseline: str, metric: str | None, study: str) -> list[str]:
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
    lines += _noise(result, comparison)
    if comparison.standing in ("better", "worse", "equal"):
        return lines
    return lines + _decision(result, comparison, study)


def _noise(result: RecordedResults, comparison: Comparison) -> list[str]:
    """Tell the differences of the seeds, and how much of the noise is between them."""
    first, second = (result.cell(label).values(comparison.metric) for label in (comparison.a, comparison.b))
    differences = (f"{seed}: {first[seed] - second[seed]:+.3g}" for seed in comparison.seeds)
    lines = [f"difference by seed: {', '.join(differences)}"]
    if (estimate := comparison.estimate) is not None:
        of_seeds = estimate.variance / estimate.num_seeds
        total = of_seeds + estimate.segment_variance
        share = of_seeds / total if total else 0.0
        text = f"noise of the mean: {total**0.5:.3g}, {share:.0%} of its square between seeds"
        if comparison.num_segments is not None:
            text += f", the rest from the choice of {comparison.num_segments} test segments"
        lines.append(text)
    lines.append(comparison.noise or "noise: no earlier study tells it")
    if comparison.smallest_detectable is not None:
        detectable = f"{comparison.smallest_detectable:.3g} {comparison.unit}".strip()
        lines.append(f"so many seeds find a true difference of {detectable} in four of five studies")
    return lines


def _decision(result: RecordedResults, comparison: Comparison, study: str) -> list[str]:
    """Tell what would decide a question, what that costs, and the command."""
    if comparison.open_because:
        return [f"more seeds decide nothing: {comparison.open_because}"]
    if comparison.basis == "exploratory":
        return ["the rules: docs/validity.md"]
    lines = []
    if comparison.looks and comparison.p_holm is not None:
        lines.append(
            f"decided where the corrected p is {result.alpha:g} or less; it is {comparison.p_holm:.3g}"
        )
    needed = comparison.seeds_needed
    levels = comparison.later_levels
    look = min(levels, default=None) if needed is None else needed
    if look is None:
        return [*lines, "no look is left: a new study with more seeds on new test lines may decide it"]
    if comparison.estimate is not None and comparison.looks:
        last = max(levels) if needed is None else look
        chance = decided_by(comparison.estimate, last, levels[last], comparison.margin)
        word = "decides" if needed is not None else "hardly decides"
        lines.append(f"a look at {last} seeds {word} it: with a probability of {chance:.2f}")
        if needed is None:
            return [*lines, f"a number of seeds is named from {PROBABILITY:g}"]
    # Each trial as long as those of the two cells so far.
    cells = [result.cell(label) for label in (comparison.a, comparison.b)]
    records = [trial.record for cell in cells for trial in cell.trials if trial.record is not None]
    num_more = sum(look - len(cell.measured(comparison.metric)) for cell in cells)
    seconds = fmean(record.ended_at - record.started_at for record in records) * num_more
    lines.append(f"cost: {count(num_more, 'trial')}, some {duration(seconds)} of a worker's time")
    num_looks = sum(1 for number in levels if number <= look)
    times = "" if num_looks <= 1 else f"   # {num_looks} times, until it is decided"
    return [*lines, f"nlgraft run {study} --next-look{times}"]
