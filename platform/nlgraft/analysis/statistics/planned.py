"""p-values that allow for when a study looks at its results: once, at planned looks, or at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nlgraft.analysis.statistics.anytime import at_any_time
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.equivalence import equal_p, equal_p_at_any_time, equal_p_over_looks
from nlgraft.analysis.statistics.resampling import normal_p
from nlgraft.analysis.statistics.spending import look_levels, overall_p
from nlgraft.study.data.study import Study


def over_looks(study: Study, found: Comparison, test: Callable[[Sequence[int]], Comparison]) -> Comparison:
    """Replace the p-values by those that allow for every planned look, or for looks at any time.

    Args:
        study: The study.
        found: The comparison over all finished seeds, with its margin.
        test: The same over some seeds.
    """
    if found.p is None:
        return found
    if study.is_anytime:
        return at_any_time(replace(found, p_equal=equal_p_at_any_time(found)), study.analysis.alpha)
    if study.planned_looks is None:
        return replace(found, p_equal=equal_p(found))
    looks = study.planned_looks.looks
    known = {look: replace(test(study.seeds[:look]), margin=found.margin) for look in looks}
    # Each look on its own seeds, so that a report says the same whenever it is made.
    known = {look: one for look, one in known.items() if one.num_seeds == look}
    p_values = {look: p for look, one in known.items() if (p := _p_at(look, one, found)) is not None}
    taken = ", ".join(map(str, p_values)) or f"none, the first is at {looks[0]} seeds"
    return replace(
        found,
        p=float(overall_p(looks, p_values)) if p_values else None,
        p_equal=equal_p_over_looks(looks, known),
        level=last_level(study, found.level),
        notes=(*found.notes, f"looks taken: {taken}"),
    )


def last_level(study: Study, level: float) -> float:
    """Return the level of the last look that belongs to an overall level."""
    planned = study.planned_looks
    return level if planned is None else look_levels(planned.looks, level)[-1]


def _p_at(look: int, at_look: Comparison, now: Comparison) -> float | None:
    """Return the p-value of a look whose seeds have all finished; None unless on the side of the present.

    It is computed from the variances, because resamples are too few for the levels of early looks.
    """
    if at_look.difference is None or now.difference is None:
        return None
    if at_look.seed_variance is None:  # a published figure, or a difference that does not vary
        return at_look.p if at_look.num_seeds == now.num_seeds else None
    shift = at_look.difference - at_look.null
    if shift * (now.difference - now.null) < 0:
        return None
    return float(normal_p(np.array(shift), at_look.seed_variance, at_look.segment_variance, look))
