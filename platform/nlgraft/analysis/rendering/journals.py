"""What the journals of a store hold, in sentences and tables: registrations, the ledger, streams."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

from nlgraft.analysis.data.ledger import Entry, LedgerQuestion
from nlgraft.analysis.data.registration import Registration
from nlgraft.analysis.data.stream import Proposal, Stream
from nlgraft.analysis.policy.proposals import gain_of
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.registered import document_of
from nlgraft.analysis.rendering.typesetting import (
    Row,
    Table,
    interval,
    make_table,
    number,
    probability,
    rounded,
    sentences,
)
from nlgraft.basics.wording import count

_DAY = 10
_DECIMALS = 2
_ALPHA = 0.05
"""Intervals of gains cover 1 - this; the level of a stream is that of its studies."""


def deviations_table(result: RecordedResults) -> Table | None:
    """Tabulate the deviations from the registration; None without any."""
    registration = result.registration
    if registration is None or not registration.deviations:
        return None
    return make_table(map(vars, registration.deviations), num_text=3)


def registered_table(registration: Registration) -> Table:
    """Tabulate what a registration freezes; settings and text in full are in its JSON."""
    content, base = registration.content, registration.content.cells[0]
    # Settings in which cells differ are those of the factors, and known by the labels.
    shared = {path: value for path, value in base.settings.items() if path.startswith("data.")}
    num = len(registration.analyses)
    seen = count(num, "analysis", "analyses") if num else "no analyses"
    replicates = count(registration.num_planned, "replicate")
    rows: dict[str, Any] = {
        "date": registration.time,
        "digest (SHA-256)": registration.digest,
        "seen before": f"{seen} of its test segments; {registration.num_finished} of {replicates} finished",
        **document_of(content, [base.label], content.metrics),
        **shared,
        "settings": f"{len(base.settings) - len(shared)} of each cell, see --json",
    }
    texts = ({registration.variant: name, "registered": _value(value)} for name, value in rows.items())
    return make_table(texts, num_text=2)


def _value(value: Any) -> str | None:
    """Write a value; of a claim what its name does not say, of a cell nothing."""
    if isinstance(value, Mapping):
        shown = (name for name in ("figures", "margin", "source") if name in value)
        return ", ".join(f"{name} {_value(value[name])}" for name in shown) or None
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def ledger_sentences(result: RecordedResults) -> str:
    """Say how often the test segments were analysed before; empty without a store."""
    return " ".join(sentences("ledger.txt.j2", {"analyses": result.analyses}))


def ledger_table(entries: Mapping[int, Entry]) -> Table:
    """Tabulate analyses by number."""
    rows = [_row(*item) for item in entries.items()]
    return make_table(rows, num_text=9)


def earlier_analyses(result: RecordedResults) -> Table | None:
    """Tabulate the analyses of the same segments before this one; None without any."""
    entries = dict(ChainMap(*(analysis.earlier for analysis in result.analyses.values())))
    return ledger_table({number: entries[number] for number in sorted(entries)}) if entries else None


def _row(position: int, entry: Entry) -> Row:
    questions = [question for question in entry.asked if question.family is not None] or list(entry.asked)
    seeds = sorted({*chain(*(question.seeds for question in questions), *entry.scores.values())})
    decided = [_decided(question) for question in entry.asked if question.verdict != "open"]
    row: Row = {
        "analysis": position,
        "day": entry.time[:_DAY],
        "study": entry.variant,
        "metric": entry.metrics[0],
        "asked": count(len(questions), "question"),
        "seeds": ", ".join(map(str, seeds)) or None,
        "segments": entry.segments.num,
        "decided": "; ".join(decided) or (None if entry.has_compared else "declared only"),
    }
    if entry.registration:
        row["registration"] = f"as registered ({entry.registration})"
    if entry.deviations:
        row["registration"] = f"{count(len(entry.deviations), 'deviation')} from {entry.registration}"
    return row


def _decided(question: LedgerQuestion) -> str:
    what = f"{' against '.join(question.labels)} on {question.metric}"
    if question.verdict == "equal":
        return f"{what}: equal within {question.equal_margin:g} (p = {probability(question.p_equal_ledger)})"
    difference = rounded(question.difference, is_signed=True)
    return f"{what}: {difference} (p = {probability(question.p_ledger)})"


def stream_table(stream: Stream) -> Table:
    """Tabulate the proposals of a stream, with what they cost and gained."""
    metric = next((proposal.entered.metric for proposal in stream.proposals.values()), "")
    note = (
        f"{count(len(stream.proposals), 'proposal')} on {metric}, {stream.num_kept} kept. "
        "Gains again are those of fresh seeds, with 95 % "
        "intervals; the first gain of what was kept flatters it."
    )
    rows = [_proposal_row(stream, number, proposal) for number, proposal in stream.proposals.items()]
    return make_table(rows, num_text=6, notes=[note])


def streams_document(streams: Mapping[str, Stream]) -> list[dict[str, Any]]:
    """Return streams as JSON values."""
    return [
        {
            "stream": key,
            "kept": stream.num_kept,
            "proposals": [
                {"number": number, **asdict(proposal)} for number, proposal in stream.proposals.items()
            ],
        }
        for key, stream in streams.items()
    ]


def _proposal_row(stream: Stream, at: int, proposal: Proposal) -> Row:
    entered, decided = proposal.entered, proposal.decided
    before = stream.proposals.get(entered.against)
    texts_before = [] if before is None else before.entered.texts
    again, gain = gain_of(proposal.measured, _ALPHA), gain_of(decided)
    measured = None
    if again is not None:
        ends = interval(again.interval, _DECIMALS)
        measured = f"{number(again.mean, _DECIMALS, is_signed=True)} {ends}"
    return {
        "proposal": at,
        "day": entered.time[:_DAY],
        "study": entered.study,
        "change": " ".join(text for text in entered.texts if text not in texts_before),
        "against": entered.against or "baseline",
        "decision": decided.decision if decided else "open",
        "seeds": len(gain.seeds) if gain else None,
        "level": f"{entered.level:.2g}",
        "gain": number(gain and gain.mean, _DECIMALS, is_signed=True),
        "gain again": measured,
    }
