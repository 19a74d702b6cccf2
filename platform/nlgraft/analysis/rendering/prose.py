"""The sentences of a report."""

from __future__ import annotations

from nlgraft.analysis.statistics.compared import ComparedResults


def headline(result: ComparedResults) -> str:
    """Say in one or two sentences what the comparison with the baseline shows.

    Args:
        result: The result.

    Returns:
        Sentences.
    """
    main = result.main_metric
    compared = [result.compare(cell.cell, metric=main) for cell in result.cells[1:]]
    known = [found for found in compared if found.difference is not None]
    if not known:
        return f"No cell can be compared with the baseline on {main} yet."
    by_kind: dict[str, list[str]] = {"better": [], "worse": [], "open": []}
    for found in known:
        by_kind[result.standing(found)].append(found.a)
    words = {"better": "better than the baseline", "worse": "worse than the baseline", "open": "undecided"}
    parts = [
        f"{len(labels)} {words[kind]} ({'; '.join(labels)})" for kind, labels in by_kind.items() if labels
    ]
    text = f"On {main}: {', '.join(parts)}."
    if max(found.num_seeds for found in known) < 2:
        text += " One seed tells nothing about training noise, so nothing can be decided."
    return text + _effects_headline(result)


def _effects_headline(result: ComparedResults) -> str:
    effects = result.effects()
    if not effects:
        return ""
    shown = [effect for effect in effects if result.standing(effect.comparison) != "open"]
    kinds = {"averaged over the other factors": False, "together beyond their sum": True}
    parts = []
    for words, is_interaction in kinds.items():
        labels = [one.contrast.label for one in shown if one.is_interaction == is_interaction]
        parts.append(f"{'; '.join(labels) or 'nothing'} {words}")
    return f" Effects that show: {', '.join(parts)}."


def fairness(result: ComparedResults) -> str:
    """Say whether every cell had the same budget, and name those that had less.

    Args:
        result: The result.

    Returns:
        One sentence.
    """
    finished = {
        cell.cell.label: len([t for t in cell.trials if t.state == "finished"]) for cell in result.cells
    }
    searched = {cell.cell.label: len([t for t in cell.search if t.record]) for cell in result.cells}
    budget = [f"{len(result.study.seeds)} seeds"]
    short = [
        f"{name} finished {n} of {budget[0]}" for name, n in finished.items() if n < len(result.study.seeds)
    ]
    if result.study.search is not None:
        trials = result.study.search.trials
        budget.append(f"{trials} search trials")
        short += [f"{name} ended {n} of {trials} search trials" for name, n in searched.items() if n < trials]
    if short:
        return f"Planned for every cell: {' and '.join(budget)}. Less so far: {'; '.join(short)}."
    return f"Every cell had the same budget: {' and '.join(budget)}."


def method(result: ComparedResults) -> list[str]:
    """Say how the figures were computed.

    Args:
        result: The result.

    Returns:
        Sentences.
    """
    settings = result.study.analysis
    family = "every cell against the baseline and the claims' pairs, metric by metric"
    if settings.family == "claims":
        family = "the claims' pairs"
    correction = f"Holm's correction over {family}" if result.is_corrected else "no correction"
    test = settings.test.replace("_", " ")
    return [
        "A difference is the mean over seeds of cell minus baseline, paired by seed and by test segment.",
        f"Intervals cover {100 * (1 - settings.alpha):g} %: segments are resampled {settings.samples} times, "
        "the same for all cells and seeds; the seed level is Student's t on the paired differences, because "
        "resampling a handful of seeds gives intervals that are far too narrow.",
        f"p is two-sided, from the {test} test with both levels of noise, and never below 1 / (samples + 1); "
        f"{correction}; an asterisk marks what is significant at {settings.alpha:g}.",
        *_effects_method(result),
        "† marks one seed: the figure covers other test segments, not another training run.",
        "Detectable is the true difference that this many seeds find with probability 0.8 at the uncorrected "
        "level; seeds needed is how many would find one as large as the observed.",
        "Search and selection use dev only; test scores come from the replicates of the chosen config.",
    ]


def sharing(result: ComparedResults) -> str:
    """Say what sharing stages between trials saved.

    Args:
        result: The result.

    Returns:
        One sentence; empty when nothing has run.
    """
    facts = result.provenance
    if not facts.num_stages:
        return ""
    saved = (
        f"{_duration(facts.saved_s)} of computing were saved" if facts.saved_s > 0 else "nothing was saved"
    )
    return (
        f"The trials consist of {facts.num_stages} stages, {facts.num_distinct} of them different; these "
        f"took {_duration(facts.computed_s)}, and by sharing them {saved}."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _effects_method(result: ComparedResults) -> list[str]:
    if not result.effects():
        return []
    correction = "; Holm's correction is over all effects" if result.is_corrected else ""
    return [
        "Effects of crossed factors are averaged over the levels of the others with equal weights. An "
        "interaction is what two levels do together beyond the sum of what each does. Their p is the paired "
        f"bootstrap's{correction}."
    ]
