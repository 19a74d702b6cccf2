"""The tables of a search: what it chose, what a smaller budget would have, which setting mattered."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.estimates.searched_settings import SearchedSetting
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.tables import cell_entry
from nlgraft.analysis.rendering.typesetting import (
    NO_BREAK,
    Row,
    Table,
    interval,
    make_table,
    num_decimals,
    number,
    probability,
    rounded,
)
from nlgraft.basics.wording import count, grouped
from nlgraft.study.data.space import Domain


def space_table(space: Mapping[str, Domain]) -> Table:
    """Tabulate the domains of a search."""
    rows = ({"setting": path, "searched values": _values(domain)} for path, domain in space.items())
    return make_table(rows, num_text=2)


def _values(domain: Domain) -> str:
    if domain.type == "categorical":
        text = ", ".join(json.dumps(choice, ensure_ascii=False) for choice in domain.choices)
    else:
        scale = ", logarithmic" if domain.log else ""
        is_coarse = domain.step is not None and (domain.type == "float" or domain.step != 1)
        step = f", in steps of {domain.step:g}" if is_coarse else ""
        text = f"{domain.low:g} to {domain.high:g}{scale}{step}"
    if domain.when:
        text += f"; only where {', '.join(f'{p} is {json.dumps(v)}' for p, v in domain.when.items())}"
    return text


def search_table(result: RecordedResults) -> Table | None:
    """Tabulate the search of each cell and the values it chose; None without a search."""
    search, objective = result.study.search, result.study.objective.metric
    if search is None:
        return None
    rows = []
    for cell in result.cells:
        states = [trial.state for trial in cell.search]
        chosen = (trial for trial in cell.search if cell.params and trial.params == cell.params)
        value = next((trial.metrics.get(objective) for trial in chosen), None)
        row: Row = {
            "cell": cell_entry(cell),
            "finished + stopped + failed": " + ".join(
                str(states.count(state)) for state in ("finished", "stopped", "failed")
            ),
            "distinct": cell.num_distinct,
            f"best {objective}": rounded(value),
        }
        config = next((trial.config for trial in cell.trials if trial.record is not None), None)
        params = cell.params if config is None else result.system.read_params(cell.params, config)
        chosen_values = {path: params.get(path) for path in search.space}
        rows.append(
            row | {path: f"{v:.4g}" if isinstance(v, float) else v for path, v in chosen_values.items()}
        )
    note = "Within every cell, on dev only; the replicates ran with the chosen config."
    return make_table(rows, notes=[note])


def expected_best_table(result: RecordedResults) -> Table | None:
    """Tabulate the expected best of several numbers of search trials; None where no cell has two values."""
    curves = [curve for cell in result.cells if (curve := expected_best(result, cell)) is not None]
    if not curves:
        return None
    most = max(len(curve.mean) for curve in curves)
    budgets = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    decimals = num_decimals(value for curve in curves for value in curve.mean)
    rows = []
    for curve in curves:
        row: Row = {
            "cell": curve.label,
            "steps of a trial": number(curve.steps_per_trial, 0),
            "worker seconds of a trial": number(curve.worker_s_per_trial, 1),
        }
        again: Row = {**dict.fromkeys(row, ""), "cell": f"{curve.label}, on new seeds"}
        for budget in budgets:
            # Cells whose searches ended early have no value for the larger budgets.
            if budget <= len(curve.mean):
                place = budget - 1
                band = interval((curve.low[place], curve.high[place]), decimals, is_signed=False)
                row[f"best of {budget}"] = f"{number(curve.mean[place], decimals)}{NO_BREAK}{band}"
                if curve.on_new_seeds is not None:
                    again[f"best of {budget}"] = number(curve.on_new_seeds[place], decimals)
        rows += [row] if curve.on_new_seeds is None else [row, again]
    lacking = [f"{curve.label} {curve.num_without_value}" for curve in curves if curve.num_without_value]
    note = (
        f"Expected {result.study.objective.metric} of the best of so many trials, with the range of 95 % "
        f"of its resamples. The range describes these trials; it is no confidence interval. On new seeds: "
        "what the best is expected to reach there, without the luck of the one seed that chose it."
    )
    if lacking:
        note += f" Trials without a value count as the worst finished one: {', '.join(lacking)}."
    return make_table(rows, notes=[note])


_NUM_NAMED = 4
_NOTE = (
    "Importance: how far a setting's values among the best trials depart from those among all (PED-ANOVA), "
    "as a share of the sum. In brackets p: how many shuffles of the same trials' objectives differ as much "
    "between the values of any setting. • marks p ≤ 0.05; the others did no more than chance would."
)


def which_setting(result: RecordedResults) -> str:
    """Say in one sentence which searched setting mattered in which cell; empty without a search."""
    cells = result.searched_settings
    if not cells:
        return ""
    shown = []
    for cell in cells[:_NUM_NAMED]:
        leading = [f"{each.path} ({number(each.share, 2)})" for each in cell.settings if each.stands_out]
        text = ", ".join(leading) or "none more than by chance"
        if all(setting.share is None for setting in cell.settings):
            text = f"nothing to be said from {count(cell.num_trials, 'finished trial')}"
        shown.append(f"{cell.label}: {text}")
    if more := cells[_NUM_NAMED:]:
        shown.append(f"{count(len(more), 'further cell')} in the report")
    objective = result.study.objective.metric
    return f"Which setting mattered for {objective} in these trials: {'; '.join(shown)}."


def importance_table(result: RecordedResults) -> Table | None:
    """Tabulate the importances side by side, one row per cell; None without a search."""
    cells, search = result.searched_settings, result.study.search
    if not cells or search is None:
        return None
    rows = []
    for cell in cells:
        settings = {setting.path: setting for setting in cell.settings}
        shares = {path: _share(settings.get(path)) for path in search.space}
        rows.append({"cell": cell.label, "finished trials": cell.num_trials} | shares)
    caveats = grouped((caveat, cell.label) for cell in cells for caveat in cell.caveats)
    notes = [
        f"{'Every cell' if len(labels) == len(cells) else ', '.join(labels)}: {caveat}."
        for caveat, labels in caveats.items()
    ]
    without = [
        f"{cell.label}: {setting.path} was searched in {cell.num_trials - setting.num_without} of "
        f"{cell.num_trials} trials, where its condition holds."
        for cell in cells
        for setting in cell.settings
        if setting.num_without
    ]
    return make_table(rows, notes=[_NOTE, *notes, *without])


def _share(setting: SearchedSetting | None) -> str | None:
    if setting is None or setting.share is None:
        return None
    mark = f"{NO_BREAK}•" if setting.stands_out else ""
    return f"{number(setting.share, 2)}{NO_BREAK}({probability(setting.p)}){mark}"
