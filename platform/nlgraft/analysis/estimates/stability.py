"""How stable the training of a cell is: seeds that were lost or diverged, and means robust to them.

**Rule.** A seed *diverged* if it reached less than half of what the best seed of its cell reached: of the
distance from the floor where higher is better, and more than twice its value where lower is better. The floor
is 0, for accuracy the share of the most frequent class. A cell whose best seed is within five points of the
floor has not learned, and none of its seeds diverged. One such seed widens an interval so much that it hides
effects of several deviations, hence the flag; it stays in every figure. A seed is *lost* if it failed or has
no finite value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlgraft.analysis.data.trials import CellResult
from nlgraft.study.data.system import Metric

_LEAST = 5.0
_POINTS = "points"


@dataclass(frozen=True)
class Stability:
    """The seeds of one cell on one metric.

    Attributes:
        label: Label of the cell.
        num_seeds: Seeds that ended, lost ones among them.
        lost: Seeds that failed or have no finite value.
        diverged: Seeds that diverged.
        mean: Mean over the finished seeds.
        median: Median.
        interquartile_mean: Mean of the middle half.
    """

    label: str
    num_seeds: int
    lost: tuple[int, ...]
    diverged: tuple[int, ...]
    mean: float
    median: float
    interquartile_mean: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        document = {name: value for name, value in vars(self).items() if name not in ("label", "num_seeds")}
        return {"seeds": self.num_seeds, **document}


def stability(
    cell: CellResult,
    name: str,
    metric: Metric,
    floor: float = 0.0,
) -> Stability | None:
    """Examine the seeds of a cell; None before one has finished.

    Args:
        cell: The cell.
        name: Name of the metric.
        metric: Its meaning.
        floor: Score that is reached without learning, where higher is better.
    """
    values = cell.values(name)
    if not values:
        return None
    array = np.array(list(values.values()))
    if metric.direction == "maximize":
        best = array.max()
        has_learned = best - floor > _LEAST or not metric.unit.endswith(_POINTS)
        limit = floor + (best - floor) / 2
        diverged = [seed for seed, value in values.items() if has_learned and value < limit]
    else:
        diverged = [seed for seed, value in values.items() if value > 2 * array.min() > 0]
    lost_seeds = tuple(cell.lost(name))
    return Stability(
        cell.label,
        len(values) + len(lost_seeds),
        lost_seeds,
        tuple(diverged),
        float(array.mean()),
        float(np.median(array)),
        interquartile_mean(array.tolist()),
    )


def interquartile_mean(values: Sequence[float]) -> float:
    """Average the middle half of values; one that lies partly in it counts by that part.

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice.
    """
    ends = np.linspace(0.0, 1.0, len(values) + 1)
    inside = np.clip(ends, 0.25, 0.75)
    return float(np.diff(inside) @ np.sort(values) / 0.5)
