"""What the simulation of a design found, in words for readers without statistics.

All functions take the document of ``validity --json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fact_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the design, how often it errs, and what it finds."""
    source = "assumed" if document["is_assumed"] else "of this study"
    prior = document["prior"]
    if prior is not None:
        studies = "published" if prior["is_published"] else "earlier"
        source += f"; {prior['df']:.1f} df of {len(prior['studies'])} {studies} ones"
    seed, segment = document["seed_variance"], document["segment_variance"]
    seeds = ", ".join(map(str, document["looks"]))
    errors = document["errors"]
    return [
        ("comparisons", f"{document['comparisons']}, corrected together"),
        ("tested at seeds", seeds),
        ("variance of a difference", f"{seed:.3g} between seeds, {segment:.3g} from segments ({source})"),
        ("seeds per comparison, no effect", f"{document['mean_seeds']:.1f}"),
        ("studies with a false verdict", _share(document["familywise_error"], errors["familywise_error"])),
        ("intervals that contain the true difference", _share(document["coverage"], errors["coverage"])),
        *(
            (f"a true difference of {row['effect']:.3g} is found", _share(row["power"], row["error"]))
            for row in document["power"]
        ),
    ]


def explanation(document: Mapping[str, Any]) -> str:
    """Explain the rows."""
    return (
        "False verdict: no cell differs, and a report calls one better or worse; the study allows "
        f"{100 * document['alpha']:g} %. Found: one cell differs, and a report says so. After ± stands the "
        "95 % error of the simulation. Margins, effects of crossed factors and claims on further metrics are "
        "not simulated."
    )


def _share(rate: float, error: float) -> str:
    return f"{100 * rate:.1f} ± {100 * error:.1f} %"
