"""Streams of proposals as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nlgraft.analysis.data.stream import BASELINE, Proposal, Stream
from nlgraft.analysis.policy.answer import first_gain, gain_again
from nlgraft.analysis.rendering.typesetting import NOTHING, Table, interval, make_table, number
from nlgraft.basics.wording import count

_DAY = 10
_DECIMALS = 2
_ALPHA = 0.05
"""Intervals of gains cover 1 - this; the level of a stream is that of its studies."""


def stream_table(stream: Stream) -> Table:
    """Tabulate the proposals of a stream, with what they cost and gained."""
    header = [
        "proposal",
        "day",
        "study",
        "change",
        "against",
        "decision",
        "seeds",
        "level",
        "gain",
        "gain again",
    ]
    metric = next((proposal.entered.metric for proposal in stream.proposals.values()), "")
    note = (
        f"{count(len(stream.proposals), 'proposal')} on {metric}, {stream.num_kept} kept, "
        f"levels so far add up to {stream.spent:.3g}. Gains again are those of fresh seeds, with 95 % "
        "intervals; the first gain of what was kept flatters it."
    )
    rows = [_row(stream, number, proposal) for number, proposal in stream.proposals.items()]
    return make_table(header, rows, num_text=6, notes=[note])


def streams_document(streams: Mapping[str, Stream]) -> list[dict[str, Any]]:
    """Return streams as JSON values."""
    return [
        {
            "stream": key,
            "kept": stream.num_kept,
            "levels": stream.spent,
            "proposals": [
                {
                    "number": number,
                    **{name: asdict(step) if step else None for name, step in _steps(proposal).items()},
                }
                for number, proposal in stream.proposals.items()
            ],
        }
        for key, stream in streams.items()
    ]


def _steps(proposal: Proposal) -> dict[str, Any]:
    return {"entered": proposal.entered, "decided": proposal.decided, "measured": proposal.measured}


def _row(stream: Stream, at: int, proposal: Proposal) -> list[str]:
    entered, decided = proposal.entered, proposal.decided
    before = stream.proposals.get(entered.against)
    texts_before = [] if before is None else before.entered.texts
    again = gain_again(proposal.measured, _ALPHA)
    gain = first_gain(proposal)
    measured = NOTHING
    if again is not None:
        ends = interval(again.interval, _DECIMALS)
        measured = f"{number(again.mean, _DECIMALS, is_signed=True)} {ends}"
    return [
        str(at),
        entered.time[:_DAY],
        entered.study,
        " ".join(text for text in entered.texts if text not in texts_before),
        "baseline" if entered.against == BASELINE else str(entered.against),
        "open" if decided is None else str(decided.decision),
        str(len(gain.seeds)) if decided is not None else NOTHING,
        f"{entered.level:.2g}",
        number(gain.mean, _DECIMALS, is_signed=True),
        measured,
    ]
