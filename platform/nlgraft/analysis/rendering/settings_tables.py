"""Which searched setting mattered, as a sentence and as tables."""

from __future__ import annotations

from nlgraft.analysis.estimates.searched_settings import CellSettings, SearchedSetting
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.rendering.typesetting import (
    NO_BREAK,
    NOTHING,
    Entry,
    Table,
    make_table,
    num_decimals,
    number,
)
from nlgraft.basics.wording import count

_NUM_NAMED = 4
_NOTE = (
    "A description of the trials that ran, not a test. Importance: how far a setting's values among the best "
    "trials depart from those among all (PED-ANOVA), as a share of the sum; in brackets what one of twenty "
    "shuffles of the same trials exceeds. • marks those above it; the others did no more than chance would."
)


def which_setting(result: ComparedResults) -> str:
    """Say in one sentence which searched setting mattered in which cell; empty without a search."""
    cells = result.searched_settings
    if not cells:
        return ""
    shown = [f"{cell.label}: {_leading(cell)}" for cell in cells[:_NUM_NAMED]]
    more = (
        f"; {count(len(cells) - _NUM_NAMED, 'further cell')} in the report" if len(cells) > _NUM_NAMED else ""
    )
    objective = result.study.objective.metric
    return (
        f"Which setting mattered for {objective} (a description of the trials, not a test): "
        f"{'; '.join(shown)}{more}."
    )


def _leading(cell: CellSettings) -> str:
    """Name the settings of a cell that stand out, or say why none does."""
    if all(setting.share is None for setting in cell.settings):
        return f"nothing to be said from {count(cell.num_trials, 'finished trial')}"
    leading = [
        f"{setting.path} ({number(setting.share, 2)})" for setting in cell.settings if setting.stands_out
    ]
    return ", ".join(leading) or "none more than by chance"


def importance_table(result: ComparedResults) -> Table | None:
    """Tabulate the importances side by side, one row per cell; None without a search."""
    cells, search = result.searched_settings, result.study.search
    if not cells or search is None:
        return None
    rows: list[list[Entry | str]] = []
    for cell in cells:
        settings = {setting.path: setting for setting in cell.settings}
        shares = [_share(settings.get(path)) for path in search.space]
        rows.append([cell.label, str(cell.num_trials), *shares])
    caveats: dict[str, list[str]] = {}
    for cell in cells:
        for caveat in cell.caveats:
            caveats.setdefault(caveat, []).append(cell.label)
    num_cells = len(cells)
    notes = [
        f"{'Every cell' if len(labels) == num_cells else ', '.join(labels)}: {caveat}."
        for caveat, labels in caveats.items()
    ]
    return make_table(["cell", "finished trials", *search.space], rows, notes=[_NOTE, *notes])


def _share(setting: SearchedSetting | None) -> str:
    if setting is None or setting.share is None:
        return NOTHING
    mark = f"{NO_BREAK}•" if setting.stands_out else ""
    return f"{number(setting.share, 2)}{NO_BREAK}({number(setting.by_chance, 2)}){mark}"


def levels_table(result: ComparedResults) -> Table | None:
    """Tabulate the objective by level of each searched setting; None without a search."""
    cells = result.searched_settings
    if not cells:
        return None
    levels = [
        (cell.label, setting, level)
        for cell in cells
        for setting in cell.settings
        for level in setting.levels
    ]
    decimals = num_decimals(level.best for _, _, level in levels)
    rows = [
        [label, setting.path, level.name, str(level.num_trials)]
        + [number(value, decimals) for value in (level.mean, level.best)]
        for label, setting, level in levels
    ]
    without = [
        f"{cell.label}: {setting.path} was searched in {cell.num_trials - setting.num_without} of "
        f"{cell.num_trials} trials, where its condition holds."
        for cell in cells
        for setting in cell.settings
        if setting.num_without
    ]
    objective = result.study.objective.metric
    note = "Numbers with many values are cut into four intervals with about equally many trials."
    header = ["cell", "setting", "level", "trials", f"mean {objective}", f"best {objective}"]
    return make_table(header, rows, num_text=3, notes=[note, *without])
