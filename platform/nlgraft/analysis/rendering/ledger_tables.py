"""What a report says of the ledger: which analysis it is of its test segments, and which came before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.analysis.data.ledger import Asked, Entry
from nlgraft.analysis.policy.recorded import Analysis, RecordedResults
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.rendering.registration_tables import registered_entry
from nlgraft.analysis.rendering.typesetting import (
    NOTHING,
    Table,
    make_table,
    num_decimals,
    number,
    probability,
)
from nlgraft.basics.wording import count

_NUM_NAMED = 3
_DAY = 10


def ledger_sentences(result: RecordedResults) -> str:
    """Say how often the test segments were analysed before; empty without a store."""
    return " ".join(_sentence(metric, analysis) for metric, analysis in result.analyses.items())


def _sentence(metric: str, analysis: Analysis) -> str:
    num = analysis.entry.segments.num
    what = f"these {count(num, 'segment')}" if num > 1 else "this data"
    earlier = analysis.earlier
    text = f"Analysis {len(earlier) + 1} of {what} in this store ({metric})"
    if earlier:
        names = list(dict.fromkeys(entry.variant for entry in reversed(earlier.values())))
        more = ", ..." if len(names) > _NUM_NAMED else ""
        text += f"; {len(earlier)} earlier: {', '.join(names[:_NUM_NAMED])}{more}"
    bases = [
        question.basis
        for question in analysis.entry.asked
        if question.family is not None and question.difference is not None
    ]
    text += "."
    if later := bases.count("declared later"):
        text += f" {count(later, 'question')} declared later, at the level that is left (docs/validity.md)."
    if exploratory := bases.count("exploratory"):
        text += (
            f" {count(exploratory, 'question')} exploratory, without verdict: scores had been seen before it "
            "was asked."
        )
    if analysis.why_not_entered:
        text += f" The store's ledger lacks this analysis: {analysis.why_not_entered}."
    if analysis.past.problems:
        text += f" The ledger is damaged: {'; '.join(analysis.past.problems)}."
    return text


def ledger_method(result: RecordedResults) -> list[str]:
    """Describe the correction over the ledger; empty without a store."""
    if not result.analyses:
        return []
    also = "" if result.is_corrected else "Stars follow it whatever the study's own correction. "
    return [
        "The store's ledger holds every analysis that was shown. What the first one on these test segments "
        f"declared has {FIRST:g} of alpha, by Holm's correction over all its looks; what was declared later, "
        "about trials that nobody had seen, shares the rest; all else is exploratory and gets no verdict. "
        f"{also}Other stores cannot be known."
    ]


def ledger_table(entries: Mapping[int, Entry]) -> Table:
    """Tabulate analyses by number."""
    header = ["analysis", "day", "study", "metric", "asked", "seeds", "segments", "decided"]
    rows = [_row(*item) for item in entries.items()]
    if any(entry.registration for entry in entries.values()):
        header.append("registration")
        rows = [[*row, registered_entry(entry)] for row, entry in zip(rows, entries.values(), strict=True)]
    return make_table(header, rows, num_text=len(header))


def earlier_analyses(result: RecordedResults) -> Table | None:
    """Tabulate the analyses of the same segments before this one; None without any."""
    entries: dict[int, Entry] = {}
    for analysis in result.analyses.values():
        entries |= analysis.earlier
    return ledger_table(dict(sorted(entries.items()))) if entries else None


def ledger_document(result: RecordedResults) -> list[dict[str, Any]]:
    """Return what a report says of the ledger as JSON values, without dates."""
    return [
        {
            "metric": metric,
            "segments": analysis.entry.segments.num,
            "analysis": len(analysis.earlier) + 1,
            "earlier": [entry.variant for entry in analysis.earlier.values()],
            "why_not_entered": analysis.why_not_entered,
        }
        for metric, analysis in result.analyses.items()
    ]


def _row(position: int, entry: Entry) -> list[str]:
    questions = [question for question in entry.asked if question.family is not None] or list(entry.asked)
    seeds = sorted(
        {
            seed
            for seen in (*(question.seeds for question in questions), *entry.scores.values())
            for seed in seen
        }
    )
    decided = [_decided(question) for question in entry.asked if question.verdict != "open"]
    return [
        str(position),
        entry.time[:_DAY],
        entry.variant,
        entry.metrics[0],
        count(len(questions), "question"),
        ", ".join(map(str, seeds)) or NOTHING,
        str(entry.segments.num),
        "; ".join(decided) or NOTHING,
    ]


def _decided(question: Asked) -> str:
    what = f"{' against '.join(question.labels)} on {question.metric}"
    if question.verdict == "equal":
        return f"{what}: equal within {question.equal_margin:g} (p = {probability(question.p_equal_ledger)})"
    difference = number(question.difference, num_decimals([question.difference]), is_signed=True)
    return f"{what}: {difference} (p = {probability(question.p_ledger)})"
