"""The page of ``nlgraft watch``: how far a study is, with dev curves and without test scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.figures import NUM_SERIES, PAGE, Drawing, series_color
from nlgraft.analysis.rendering.typesetting import template
from nlgraft.basics.wording import duration, grouped, hours_of_budget
from nlgraft.pipeline.trial import is_dev_curve

_MAX_PANELS = 4


def live_page(
    status: Mapping[str, Any],
    result: RecordedResults,
    refresh_s: float | None,
) -> str:
    """Render one HTML page that a browser loads again by itself.

    Args:
        status: The document of `nlgraft.execution.status.read_status`.
        result: The study's result, whose trials have curves.
        refresh_s: Seconds until the browser loads the page again; None: never.
    """
    counts, outlook = status["counts"], status["outlook"]
    num_ended = sum(counts[state] for state in ("finished", "stopped", "failed"))
    left_s = outlook.get("left_s")
    if left_s is not None:
        left_s -= time.time() - outlook["at"]
    running_s = sum(time.time() - trial["started_at"] for trial in status["running"])
    indices = {row["label"]: index for index, row in enumerate(status["cells"])}
    return template("live.html.j2").render(
        study=result.study,
        status=status,
        indices=indices,
        num_series=NUM_SERIES,
        refresh_s=None if refresh_s is None else math.ceil(refresh_s),
        share=num_ended / max(1, counts["planned"]),
        num_ended=num_ended,
        left=None if left_s is None or left_s <= 0 else duration(left_s),
        spent=duration(status["trial_s"] + running_s),
        hours=hours_of_budget(status["hours"]),
        held_back=outlook.get("held_back", {}),
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        figures=[(drawing.title, drawing.inline()) for drawing in _dev_curves(status, result)],
    )


def _dev_curves(status: Mapping[str, Any], result: RecordedResults) -> Iterator[Drawing]:
    """Draw one line for each trial, of those that run as far as they are."""
    index_of = {cell.cell.key: index for index, cell in enumerate(result.cells)}
    trials = [(cell.cell.key, trial.curves) for cell in result.cells for trial in cell.trials]
    trials += [(trial["cell"], trial.get("curves", {})) for trial in status["running"]]
    by_name = grouped(
        (name, (index_of[key], curves[name]))
        for key, curves in trials
        for name in filter(is_dev_curve, curves)
    )
    for name in sorted(by_name, key=lambda name: (name.count("/"), name))[:_MAX_PANELS]:
        with PAGE.canvas(PAGE.panel) as (figure, axes):
            for index, points in by_name[name]:
                steps, values = [point[0] for point in points], [point[1] for point in points]
                axes.plot(steps, values, color=series_color(index), linewidth=1.2, marker=".", markersize=3)
            axes.set_xlabel("optimiser steps")
            yield Drawing(name, figure, PAGE)
