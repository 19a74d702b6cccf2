"""Which trial of a study is taken away, and why that one."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.analysis.data.trials import CellResult, TrialResult
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import count
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.reading.resolving import resolve_cell


@dataclass(frozen=True)
class Choice:
    """A finished replicate of a study.

    Attributes:
        result: The results that it was chosen from.
        cell: Its cell.
        trial: The replicate.
        reasons: Why this cell and this seed, in one sentence each.
    """

    result: StudyResult
    cell: CellResult
    trial: TrialResult
    reasons: tuple[str, str]

    @property
    def graph(self) -> StageGraph:
        """The trial's stages."""
        return resolve_cell(self.result.study, self.cell.cell, self.cell.params).graph(self.trial.seed)


def choose(result: StudyResult, cell: str | None = None, seed: int | None = None) -> Choice:
    """Choose a replicate; without a cell the best one, without a seed that of the median score.

    The objective decides, on dev, so that test scores of what is taken away stay unbiased by the choice. The
    best seed would promise what another training of the same recipe does not keep.

    Raises:
        StudyError: The study has no such cell.
        DataError: Nothing has finished that could be taken.
    """
    objective = result.study.objectives[0]
    sign = 1.0 if objective.direction == "maximize" else -1.0
    if cell is None:
        means = {found.cell.label: (found.mean(objective.metric), found) for found in result.cells}
        known = [(sign * mean, found) for mean, found in means.values() if mean is not None]
        if not known:
            raise DataError(f"{result.study.variant}: {_why_none(result)}")
        chosen = max(known, key=lambda pair: pair[0])[1]
        mean = chosen.mean(objective.metric)
        of = count(len(known), "finished cell")
        why_cell = f"cell {chosen.cell.label}: the best mean {objective.metric}, {mean:.4g}, of {of}"
    else:
        chosen = result.cell(cell)
        why_cell = f"cell {chosen.cell.label}: as asked for"
    trial, why_seed = _of_seed(chosen, objective.metric, sign, seed)
    return Choice(result, chosen, trial, (why_cell, why_seed))


def _why_none(result: StudyResult) -> str:
    is_finished = any(trial.state == "finished" for cell in result.cells for trial in cell.trials)
    if is_finished:
        return f"no finished trial has a value of {result.study.objectives[0].metric}"
    return "no trial has finished; run the study first"


def _of_seed(cell: CellResult, metric: str, sign: float, seed: int | None) -> tuple[TrialResult, str]:
    measured = cell.measured(metric)
    finished = {trial.seed: trial for trial in cell.trials if trial.seed in measured}
    if not finished:
        raise DataError(
            f"cell {cell.cell.label}: no trial has finished with a value of {metric}; run the study"
        )
    if seed is not None:
        if seed not in finished:
            allowed = nearest(str(seed), [str(known) for known in finished])
            raise DataError(f"cell {cell.cell.label}: seed {seed} has not finished. {allowed}")
        return finished[seed], f"seed {seed}: as asked for"
    ordered = sorted(finished, key=lambda known: sign * measured[known].value)
    # Of two middle ones the worse: a promise is to be kept.
    middle = ordered[(len(ordered) - 1) // 2]
    if len(ordered) == 1:
        return finished[middle], f"seed {middle}: the only one that has finished"
    which = "median" if len(ordered) % 2 else "lower of the two middle values"
    value = f"{metric}, {measured[middle].value:.4g}, of {len(ordered)} seeds"
    return finished[middle], f"seed {middle}: the {which} by {value}"
