"""Tables of what several studies tell together: do small ones agree with large ones, what made a gain."""

from __future__ import annotations

from nlgraft.analysis.estimates.agreement import Agreement
from nlgraft.analysis.rendering.typesetting import Table, interval, make_table, number
from nlgraft.basics.wording import duration


def agreement_table(agreement: Agreement) -> Table:
    """Tabulate how far scales agree with the largest one, and name the cheapest that is good enough."""
    *_, (largest, largest_s) = agreement.seconds.items()
    rows = [
        {
            "scale": row.scale,
            "by": row.metric,
            "agrees": number(row.share, 2),
            "over seeds": interval(row.ci, 2, is_signed=False),
            "arms": row.num_arms,
            "seeds": " and ".join(map(str, row.num_seeds)),
            "time": duration(agreement.seconds[row.scale]),
            "of the largest": number(agreement.seconds[row.scale] / largest_s, 2) if largest_s else "",
        }
        for row in agreement.rows
    ]
    notes = [
        f"Agrees: share of the pairs of arms that are ordered as by {agreement.target} of {largest}; chance "
        "is 0.5. Over seeds: what other seeds would have shown of these arms; too narrow with two or three."
    ]
    cheapest = agreement.cheapest
    if cheapest is None:
        notes.append(f"No scale agrees in {agreement.threshold:g} of the pairs.")
    else:
        is_certain = cheapest.ci is not None and cheapest.ci[0] >= agreement.threshold
        notes.append(
            f"Cheapest that agrees in {agreement.threshold:g} of the pairs: {cheapest.scale} by "
            f"{cheapest.metric}{'' if is_certain else '; other seeds could show less'}."
        )
    return make_table(rows, num_text=2, notes=notes)
