"""Comparisons at planned looks, each on its own seeds, and what the rules make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nlgraft.analysis.data.ledger import Look, Plan
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.policy.rules import Answer

Test = Callable[[Sequence[int] | None], Comparison]
"""Compares over some seeds, or over all that have finished."""


def over_looks(
    plan: Plan, test: Test, margin: float | None = None, name_of: Callable[[int], str] = str
) -> Comparison:
    """Compare at the looks whose seeds have all finished.

    Args:
        plan: Seeds and looks.
        test: The comparison.
        margin: Difference that the study declares too small to matter.
        name_of: What notes call a seed.

    Returns:
        The comparison at the last look that was taken, with the answers at all; that over all finished
        seeds, without ``looks``, where none was.
    """
    latest = replace(test(None), margin=margin)
    taken = plan.taken(latest.seeds)
    if latest.p is None:
        return latest
    if not taken:
        note = f"looks taken: none, the first is at {plan.looks[0]} seeds"
        return latest.noted(note)
    at_looks = {number: replace(test(plan.seeds[:number]), margin=margin) for number in taken[:-1]}
    last = set(plan.seeds[: taken[-1]])
    at_looks[taken[-1]] = latest if last == {*latest.seeds} else replace(test(sorted(last)), margin=margin)
    looks = {
        number: Look(
            difference=at_look.difference - at_look.null,
            p=at_look.p,
            p_equal=at_look.estimate.equal_p(margin) if margin is not None and at_look.estimate else None,
        )
        for number, at_look in at_looks.items()
        if at_look.difference is not None
    }
    notes = [*at_looks[taken[-1]].notes]
    if len(taken) > 1:
        notes.append(f"looks taken: {', '.join(map(str, taken))}")
    if waiting := [seed for seed in latest.seeds if seed not in last]:
        following = next((look for look in plan.looks if look > taken[-1]), None)
        when = "are beyond the last look" if following is None else f"count at the look of {following} seeds"
        shown = f"difference, interval and p are those of the first {taken[-1]}"
        notes.append(f"seeds {', '.join(map(name_of, waiting))} {when}; {shown}")
    p_equal = looks[taken[-1]].p_equal
    return replace(at_looks[taken[-1]], p_equal=p_equal, looks=looks, notes=tuple(notes))


def with_levels(comparison: Comparison, looks: Sequence[int], level: float) -> Comparison:
    """Put in the level that a p-value must reach at the present look, and those of later looks.

    Args:
        comparison: The comparison.
        looks: All looks of its plan.
        level: Level of all looks together.
    """
    prior_df = comparison.prior.df if comparison.prior else 0.0
    levels = dict(zip(looks, look_levels(looks, level, prior_df), strict=True))
    last = max(comparison.looks, default=0)
    later = {look: look_level for look, look_level in levels.items() if look > last}
    return replace(comparison, level=levels.get(last, levels[looks[0]]), later_levels=later)


def by_rules(comparison: Comparison, answer: Answer, plan: Plan, alpha: float) -> Comparison:
    """Put the answer by the rules into a comparison.

    Args:
        comparison: The comparison at its looks.
        answer: The answer.
        plan: Seeds and looks of the question.
        alpha: Level of its study.
    """
    notes = [answer.reason] if answer.reason else []
    if answer.basis == "declared later":
        level = answer.share * alpha
        notes.append(f"declaration {answer.number} on these test lines, which has a level of {level:.2g}")
    return with_levels(comparison, plan.looks, answer.level).noted(
        *notes, p_holm=answer.p, p_equal_holm=answer.p_equal, basis=answer.basis
    )


def exploratory(comparison: Comparison, note: str) -> Comparison:
    """Mark a comparison as one without a verdict; the note says why, and what would give one."""
    notes = () if comparison.difference is None else (note,)
    return comparison.noted(*notes, basis="exploratory")
