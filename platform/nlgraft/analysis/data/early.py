"""Early learning: what the curves of dev loss show beyond their best value.

Both metrics compare cells, so they are computed over the finished replicates of a study. The area is taken
over the steps that all their curves cover; "the baseline's best" is that of the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nlgraft.analysis.data.trials import Array, CellResult, TrialResult
from nlgraft.study.data.system import AREA, CURVE, STEPS

_TWO_POINTS = 2


def with_early_learning(cells: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """Add the metrics of early learning to the finished replicates that have a curve of dev loss."""
    curves = {
        (cell.cell.label, trial.seed): curve
        for cell in cells
        for trial in cell.trials
        if trial.state == "finished" and (curve := _curve(trial)) is not None
    }
    if not curves:
        return tuple(cells)
    first = max(curve[0, 0] for curve in curves.values())
    last = min(curve[-1, 0] for curve in curves.values())
    base = cells[0].cell.label
    extended_cells = []
    for cell in cells:
        trials = []
        for trial in cell.trials:
            curve = curves.get((cell.cell.label, trial.seed))
            derived = {}
            if curve is not None and first < last:
                derived[AREA] = mean_height(curve, first, last)
            if curve is not None and (goal := curves.get((base, trial.seed))) is not None:
                derived[STEPS] = steps_to(curve, float(goal[:, 1].min()))
            trials.append(replace(trial, derived={**trial.derived, **derived}))
        extended_cells.append(replace(cell, trials=tuple(trials)))
    return tuple(extended_cells)


def mean_height(curve: Array, first: float, last: float) -> float:
    """Average a curve, linear between its points of shape (n, 2), from one step to another."""
    inner = curve[(curve[:, 0] > first) & (curve[:, 0] < last), 0]
    steps = np.concatenate(([first], inner, [last]))
    return float(np.trapezoid(np.interp(steps, curve[:, 0], curve[:, 1]), steps) / (last - first))


def steps_to(curve: Array, goal: float) -> float:
    """Find the step at which a curve first is as low as ``goal``; its last step if it never is."""
    low = np.flatnonzero(curve[:, 1] <= goal)
    if len(low) == 0:
        return float(curve[-1, 0])
    index = int(low[0])
    if index == 0:
        return float(curve[0, 0])
    (before, high), (after, value) = curve[index - 1], curve[index]
    return float(before + (after - before) * (high - goal) / (high - value))


def _curve(trial: TrialResult) -> Array | None:
    """Return step and dev loss, shape (n, 2), the last value of each step; None below two points."""
    points = [] if trial.record is None else trial.record.curves.get(CURVE, [])
    values = {step: value for step, value, _ in points if np.isfinite(value)}
    return np.array(sorted(values.items()), dtype=float) if len(values) >= _TWO_POINTS else None
