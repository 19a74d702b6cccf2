"""Why a comparison is undecided: its noise, its seeds, what would decide it, what that costs, the command."""

from __future__ import annotations

from statistics import fmean

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.power import PROBABILITY, decided_by
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.basics.wording import count, duration


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
        alpha = result.study.analysis.alpha
        lines.append(f"decided where the corrected p is {alpha:g} or less; it is {comparison.p_holm:.3g}")
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
    lines.append(_cost(result, comparison, look))
    num_looks = sum(1 for number in levels if number <= look)
    times = "" if num_looks <= 1 else f"   # {num_looks} times, until it is decided"
    return [*lines, f"nlgraft run {study} --next-look{times}"]


def _cost(result: RecordedResults, comparison: Comparison, look: int) -> str:
    """Estimate the trials up to a look, each as long as those of the two cells so far."""
    cells = [result.cell(label) for label in (comparison.a, comparison.b)]
    trials = [trial for cell in cells for trial in cell.measured(comparison.metric)]
    records = [trial.record for cell in cells for trial in cell.trials if trial.record is not None]
    num_more = len(cells) * look - len(trials)
    seconds = fmean(record.ended_at - record.started_at for record in records) * num_more
    return f"cost: {count(num_more, 'trial')}, some {duration(seconds)} of a worker's time"
