"""What reports say of a registration: how the study relates to it, and what was registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nlgraft.analysis.data.ledger import Entry
from nlgraft.analysis.data.registration import Registration
from nlgraft.analysis.policy.deviations import claim_text
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.typesetting import NOTHING, Table, make_table
from nlgraft.basics.wording import count


def registration_sentence(result: RecordedResults) -> str:
    """Say how the study relates to its registration; empty if it is not registered."""
    return "" if result.registration is None else str(result.registration)


def deviations_table(result: RecordedResults) -> Table | None:
    """Tabulate the deviations from the registration; None without any."""
    registration = result.registration
    if registration is None or not registration.deviations:
        return None
    rows = [[deviation.what, deviation.registered, deviation.now] for deviation in registration.deviations]
    return make_table(["what", "registered", "now"], rows, num_text=3)


def registration_document(result: RecordedResults) -> dict[str, Any] | None:
    """Return how the study relates to its registration as JSON values."""
    return None if result.registration is None else result.registration.to_json()


def registered_entry(entry: Entry) -> str:
    """Say in a few words how an analysis of the ledger related to its registration."""
    if not entry.registration:
        return NOTHING
    if not entry.deviations:
        return f"as registered ({entry.registration})"
    return f"{count(len(entry.deviations), 'deviation')} from {entry.registration}"


def registered_table(registration: Registration) -> Table:
    """Tabulate what a registration freezes; settings and text in full are in its JSON."""
    content = registration.content
    base, *others = content.cells
    # Settings in which cells differ are those of the factors, and known by the labels.
    shared = {path: value for path, value in base.settings.items() if path.startswith("data.")}
    rows = [
        ["date", registration.time],
        ["digest (SHA-256)", registration.digest],
        ["seen before", _before(registration)],
        ["system", content.system],
        ["baseline", ", ".join(f"{name}={level}" for name, level in base.levels.items()) or base.label],
        ["cells", _listed([cell.label for cell in others])],
        ["seeds", ", ".join(map(str, content.seeds))],
        *([path, _value(value)] for path, value in content.settings.items()),
        *(["claim", _claim(claim)] for claim in content.claims),
        *([f"metric {name}", meaning] for name, meaning in content.metrics.items()),
        *([path, _value(value)] for path, value in shared.items()),
        ["settings", f"{len(base.settings) - len(shared)} of each cell, see --json"],
    ]
    return make_table([registration.variant, "registered"], rows, num_text=2)


def _before(registration: Registration) -> str:
    num = len(registration.analyses)
    seen = count(num, "analysis", "analyses") if num else "no analyses"
    replicates = count(registration.num_planned, "replicate")
    return f"{seen} of its test segments; {registration.num_finished} of {replicates} finished"


def _claim(claim: dict[str, Any]) -> str:
    further = [f"{name} {_value(claim[name])}" for name in ("figures", "margin", "source") if name in claim]
    return ", ".join([claim_text(claim), *further])


def _value(value: Any) -> str:
    return _listed(value) if isinstance(value, list) else str(value)


def _listed(values: Sequence[Any]) -> str:
    return "; ".join(map(str, values)) or NOTHING
