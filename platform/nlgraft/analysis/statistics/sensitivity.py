"""Sensitivity of the verdicts: does each stand on other metrics, and without any one of the seeds?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nlgraft.analysis.statistics.compared import ComparedResults, Question
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.resampling import holm

Standing = Literal["better", "worse", "open"]
_FEW_SEEDS = 3


@dataclass(frozen=True)
class Sensitivity:
    """How the verdict on one cell depends on choices that could have been others.

    Attributes:
        label: Label of the cell.
        standing: The verdict on the main metric.
        others: The verdict by alternative: another metric of quality, one seed left out.
    """

    label: str
    standing: Standing
    others: dict[str, Standing]

    @property
    def changes(self) -> dict[str, Standing]:
        """The alternatives whose verdict is another."""
        return {name: other for name, other in self.others.items() if other != self.standing}


def sensitivities(result: ComparedResults) -> list[Sensitivity]:
    """Examine the verdict on each cell against the baseline; none before the main metric is known."""
    main = result.main_metric
    if main not in result.metrics:
        return []
    split = result.metrics[main].split
    others = [
        name
        for name, metric in result.metrics.items()
        if metric.split == split and name != main and not (metric.is_time or metric.is_fixed)
        if not (metric.is_derived or name.endswith("_length"))
    ]
    found: dict[str, dict[str, Standing]] = {
        cell.cell.label: {
            f"on {name}": result.standing(result.compare(cell.cell, metric=name)) for name in others
        }
        for cell in result.cells[1:]
    }
    for seed, standings in _without_each_seed(result):
        for label, standing in standings.items():
            found[label][f"without seed {seed}"] = standing
    return [
        Sensitivity(label, result.standing(result.compare(label, metric=main)), standings)
        for label, standings in found.items()
    ]


def _without_each_seed(result: ComparedResults) -> Iterator[tuple[int, dict[str, Standing]]]:
    """Judge all cells anew without each seed, corrected over them; looks are not counted again."""
    base = result.baseline.cell.label
    questions = [Question(result.main_metric, (cell.cell.label, base)) for cell in result.cells[1:]]
    for seed in result.common_seeds if len(result.common_seeds) >= _FEW_SEEDS else ():
        kept = [one for one in result.study.seeds if one != seed]
        compared = [result.over_seeds(question, kept) for question in questions]
        p_values = [one.p for one in compared]
        adjusted = holm(p_values) if result.is_corrected else p_values
        yield (
            seed,
            {
                question.cells[0]: _standing(result, one, p)
                for question, one, p in zip(questions, compared, adjusted, strict=True)
            },
        )


def _standing(result: ComparedResults, found: Comparison, p: float | None) -> Standing:
    if found.difference is None or found.open_because or p is None or p > result.study.analysis.alpha:
        return "open"
    is_up = result.system.metrics[found.metric].direction == "maximize"
    return "better" if (found.difference > 0) == is_up else "worse"
