"""The figures of a cell in MLflow: its metrics, its name, and the view that shows them as a table."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from nlgraft.tracking.naming import metric_name
from nlgraft.tracking.tags import KIND, MATTERED, VERDICT

VIEW = "mlflow.sharedViewState.cells"
"""A view of the experiment's page, offered by its menu *Views* and opened by ``?viewStateShareKey=cells``."""
_SHOWN = ("mean", "difference", "ci_low", "ci_high", "p_holm")  # as many as fit; the name has the deviation
_DIGITS = 4
_COMPARED = ("difference", "p", "p_holm", "p_equal", "p_equal_holm", "smallest_detectable")


def cell_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Turn a cell's results into metrics, so that MLflow's comparison of cells is the paper's table.

    Args:
        result: One element of ``cells`` in the JSON of ``run --json``.

    Returns:
        ``test/bleu.mean``, ``.std``, ``.n``, ``.difference``, ``.ci_low``, ``.ci_high``, ``.p``, ``.p_holm``,
        ``.p_equal``, ``.p_equal_holm`` and ``.smallest_detectable``, with four significant digits, since
        MLflow's columns show all that there are; undefined (null) values are left out.
    """
    found: dict[str, Any] = {}
    for name, summary in (result.get("metrics") or {}).items():
        found |= {f"{name}.{key}": summary.get(key) for key in ("mean", "std", "n")}
    for name, comparison in (result.get("comparison") or {}).items():
        found |= {f"{name}.{key}": comparison.get(key) for key in _COMPARED}
        low, high = comparison.get("ci") or (None, None)
        found |= {f"{name}.ci_low": low, f"{name}.ci_high": high}
    return {
        metric_name(name): _rounded(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _rounded(value: float) -> float:
    """Round to four significant digits, or to a whole number."""
    decimals = _DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    return round(float(value), max(0, decimals))


def main_figure(result: Mapping[str, Any], metric: str) -> str:
    """Format a cell's main metric, marked if a single seed shows no spread, to begin its run's name.

    MLflow's list shows some 24 characters of a name: of what follows the figure the end may be missing.
    """
    found = (result.get("metrics") or {}).get(metric)
    if not found or found.get("mean") is None:
        return ""
    spread = " (1 seed)" if found.get("std") is None else f" ± {found['std']:.2f}"
    return f"{found['mean']:.2f}{spread} "


def cell_tags(result: Mapping[str, Any], metric: str) -> dict[str, str]:
    """Return the verdict on a cell in words, and the settings of its search that stand out, as tags."""
    tags = {}
    found = (result.get("comparison") or {}).get(metric) or {}
    if found.get("verdict"):
        tags[VERDICT] = str(found["verdict"])
    settings = ((result.get("search") or {}).get("settings") or {}).get("settings") or []
    if settings:
        leading = [f"{one['setting']} {one['importance']:.2f}" for one in settings if one["stands_out"]]
        tags[MATTERED] = ", ".join(leading) or "none more than by chance"
    return tags


def cells_view(main_metric: str) -> dict[str, str]:
    """Describe a view of the cells with the main metric's columns, as MLflow's *Views* menu stores it."""
    columns = [f"metrics.`{metric_name(f'{main_metric}.{column}')}`" for column in _SHOWN]
    state = {
        "searchFilter": f"tags.`{KIND}` = 'cell'",
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsHiddenMode": "SHOW_ALL",
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return {VIEW: json.dumps({"name": "Cells", "createdAt": 0, "state": f"deflate;{packed}"})}
