"""What the simulation of a design found, in words for readers without statistics.

All functions take the document of ``validity --json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OUTCOME_COLUMNS = (
    "what happens to the study",
    "false verdict,\nby its file",
    "false verdict,\nover the ledger",
    "effect found,\nby its file",
    "effect found,\nover the ledger",
)


def fact_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the design, and what it finds as declared."""
    source = "assumed" if document["is_assumed"] else "of this study"
    prior = document["prior"]
    if prior is not None:
        studies = "published" if prior["is_published"] else "earlier"
        source += f"; {prior['df']:.1f} df of {len(prior['studies'])} {studies} ones"
    seed, segment = document["seed_variance"], document["segment_variance"]
    together = "corrected together" if document["is_corrected"] else "not corrected"
    seeds = ", ".join(map(str, document["looks"]))
    return [
        ("comparisons", f"{document['comparisons']}, {together}"),
        ("tested at seeds", seeds),
        ("variance of a difference", f"{seed:.3g} between seeds, {segment:.3g} from segments ({source})"),
        ("seeds per comparison, no effect", f"{document['mean_seeds']:.1f}"),
        ("intervals that contain the true difference", _share(document["outcomes"][0]["coverage"])),
        *(
            (f"a true difference of {row['effect']:.3g} is found", _share({"rate": row["power"], **row}))
            for row in document["power"]
        ),
    ]


def outcome_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """List the courses of events, with false verdicts and the effect found, by file and over the ledger."""
    places = [(kind, judge) for kind in ("false_verdicts", "effect_found") for judge in ("file", "ledger")]
    return [
        (course["description"], *(_share(course[kind][judge]) for kind, judge in places))
        for course in document["outcomes"]
    ]


def explanation(document: Mapping[str, Any]) -> str:
    """Explain the columns."""
    collapse = next(course for course in document["outcomes"] if course["name"] == "collapse")
    return (
        "False verdict: no cell differs, and some report calls one better or worse; the study allows "
        f"{100 * document['alpha']:g} %. Effect found: one cell differs by {document['detectable']:.3g}, and "
        "some report says so; where cells are added it comes last. By its file: a report corrects for what "
        "its file declares. Over the ledger: also for what the store was asked before, as reports do. "
        f"Collapsed seeds lie {document['fall']:.3g} lower; {_share(collapse['coverage'])} of intervals "
        "contain the true difference then. After ± stands the 95 % error of the simulation."
    )


def advice(document: Mapping[str, Any]) -> list[str]:
    """Say what to do about each course of events, and what the design cannot decide."""
    texts = [f"{course['name']}: {course['advice']}" for course in document["outcomes"] if course["advice"]]
    return [*texts, *document["notes"]]


def _share(estimate: Mapping[str, float]) -> str:
    return f"{100 * estimate['rate']:.1f} ± {100 * estimate['error']:.1f} %"
