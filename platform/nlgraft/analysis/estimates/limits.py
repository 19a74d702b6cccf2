"""Reasons for which no number of seeds decides a comparison."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import Comparison, Term
from nlgraft.study.data.system import Metric

_CANCELLED = 1e-9


def limited(
    comparison: Comparison,
    metric: Metric,
    terms: Sequence[Term],
    crowded: Collection[str],
    main: str,
) -> Comparison:
    """Leave open what no number of seeds can decide, and name the stages that were trained once for all.

    Args:
        comparison: The comparison.
        metric: Its metric.
        terms: Its cells.
        crowded: Fingerprints of the stages that shared their machine.
        main: The study's main metric.
    """
    # What config and data determine has no noise that seeds could show.
    if metric.is_fixed:
        return comparison
    # Numbers of steps, say, may tie by chance.
    on_main = {tuple(term.cell.values(main, comparison.seeds).values()) for term in terms}
    if comparison.is_same and not metric.is_time and len(on_main) == 1:
        note = f"every score equals that of {comparison.b}: does the setting reach what computes it?"
        comparison = comparison.noted(note)
    if comparison.is_exact:  # seeds that tie by chance make nothing certain
        tie = "the metric may vary with the seed, so there is nothing to test"
        if not _do_vary(comparison, terms):
            tie = f"no score varies with the seed: does the seed reach what computes {comparison.metric}?"
        comparison = comparison.noted(tie, is_exact=False)
    if (
        comparison.estimate is not None
        and comparison.estimate.variance == 0
        and comparison.difference != comparison.null
        and _do_vary(comparison, terms)
    ):
        note = "the cells vary with the seed and their difference happens not to: its noise is unknown"
        return _left_open(comparison, "the same difference for every seed", note)
    cells = [term.cell for term in terms]
    if metric.counted_by and (why := _not_alike(metric, cells)):
        return _left_open(comparison, *why)
    if metric.is_time:  # time does not depend on the weights that a pretraining ended with
        stages = {stage["fingerprint"] for cell in cells for trial in cell.finished for stage in trial.stages}
        if stages.isdisjoint(crowded):
            return comparison
        note = "timed beside other stages on the same machine; resources.max_concurrent: 1"
        return _left_open(comparison, "timed beside other stages", note)
    return _trained_once(_without_lost(comparison, terms), terms)


def _left_open(comparison: Comparison, because: str, note: str) -> Comparison:
    return comparison.noted(f"undecided, {note}", open_because=because)


def _do_vary(comparison: Comparison, terms: Sequence[Term]) -> bool:
    """True if the score of some cell depends on the seed, as that of a cell without training does not."""
    return any(len({*term.cell.values(term.metric, comparison.seeds).values()}) > 1 for term in terms)


def _not_alike(metric: Metric, cells: Sequence[CellResult]) -> tuple[str, str] | None:
    """Say why a mean over tokens cannot be compared: counts differ for one seed, or are not on record."""
    advice = "compare a metric per character"
    by_cell = [cell.values(metric.counted_by) for cell in cells]
    for seed in set().union(*by_cell):
        if len({counts[seed] for counts in by_cell if seed in counts}) > 1:
            return "different vocabularies", f"{metric.unit} of different vocabularies; {advice}"
    for cell, counts in zip(cells, by_cell, strict=True):
        # Finished replicates may lack a count, unless the others all agree on it.
        if len(counts) < len(cell.finished) and len({*counts.values()}) != 1:
            note = f"{metric.counted_by} is not on record, so the units may differ; {advice}"
            return "vocabularies not on record", note
    return None


def _without_lost(comparison: Comparison, terms: Sequence[Term]) -> Comparison:
    """Leave a comparison open if a cell lost seeds that another one did not.

    Seeds that crash or diverge to non-finite values are rarely the good ones; the mean of the others is
    biased in favour of the cell.
    """
    lost_seeds = {term.cell.label: set(term.cell.lost(term.metric)) for term in terms}
    # A seed lost on every side says nothing for or against one of them.
    common = set.intersection(*lost_seeds.values())
    uneven = {label: sorted(seeds - common) for label, seeds in lost_seeds.items() if seeds - common}
    if not uneven or len(lost_seeds) == 1:
        return comparison
    named = "; ".join(f"{label} lost seed {', '.join(map(str, seeds))}" for label, seeds in uneven.items())
    return _left_open(comparison, "seeds lost", f"{named}, and the remaining seeds may flatter it")


def _trained_once(comparison: Comparison, terms: Sequence[Term]) -> Comparison:
    """Name the stages that all seeds share.

    If one cell has such a stage and the other does not, the difference includes the error of that single
    training. No number of seeds shows its size, so the comparison stays open.
    """
    names = {stage: name for term in terms for stage, name in term.cell.trained_once.items()}
    # A stage that both sides share with equal weight cancels out of the difference.
    differing = {
        name
        for stage, name in names.items()
        if abs(sum(term.weight for term in terms if stage in term.cell.trained_once)) > _CANCELLED
    }
    comparison = replace(comparison, trained_once=tuple(sorted({*names.values()} - differing)))
    if not differing or comparison.open_because:
        return comparison
    note = f"one pretraining only: {', '.join(sorted(differing))} trained once for all seeds"
    return _left_open(comparison, "one pretraining only", note)
