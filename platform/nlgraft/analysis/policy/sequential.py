"""Planned looks: after each, which cells get more seeds.

A cell stops when every comparison that the study asks of it is significant (benefit or harm), can hardly
become so (futility), or depends on a stage that was trained once. The futility rule is non-binding: no level
depends on it. The baseline gets seeds as long as any comparison with it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from nlgraft.analysis.data.results import Stop
from nlgraft.analysis.estimates.comparison import Comparison, Question
from nlgraft.analysis.estimates.power import decided_by
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import read_granted

FUTILE = 0.1
"""A comparison is given up when it becomes significant by the last look with a lower probability."""


@dataclass(eq=False)
class SequentialResults(RecordedResults):
    """Results of a study whose cells may get their seeds look by look."""

    @classmethod
    def read(cls, study: Study, store: ArtifactStore) -> Self:
        """Read what the store holds; replicates that planned looks made unnecessary are left out."""
        result = super().read(study, store)
        if study.sequential is None:
            return result
        stops = result.replay()
        # A run with --next-look may have granted more.
        granted = read_granted(study, store)
        for cell in result.cells:
            if (num := granted.get(cell.cell.key, 0)) > stops[cell.label].num_seeds:
                stops[cell.label] = Stop(num, "")
        result = result._up_to({label: stop.num_seeds for label, stop in stops.items()}, has_finished=True)
        result.stops = stops
        return result

    def next_look(self) -> dict[str, int]:
        """Say how many seeds each cell gets at the next look of its undecided questions, by the cell's key.

        Returns:
            Only cells that get more than they have; empty if everything is decided, or no look is left.
        """
        granted: dict[str, int] = {}
        for question in self._seed_questions:
            answer = self._judged(question)
            if self._is_decided(answer) or answer.open_because or not answer.later_levels:
                continue
            following = min(answer.later_levels)
            for cell in (term.cell for term in question.terms):
                if following > len(cell.trials):
                    granted[cell.cell.key] = max(following, granted.get(cell.cell.key, 0))
        return granted

    @property
    def run_looks(self) -> list[int]:
        """The looks that a run takes by itself."""
        return [look for look in self.study.looks if look <= len(self.study.seeds)]

    def replay(self) -> dict[str, Stop]:
        """Take the planned looks one after the other, each on the seeds that the earlier ones granted.

        A look is due for a cell when all the replicates that it was granted are finished.

        Returns:
            By label the seeds that each cell gets now.
        """
        granted = {cell.label: self.study.first_seeds for cell in self.cells}
        reasons = dict.fromkeys(granted, "")
        for look, following in itertools.pairwise(self.run_looks):
            view = self._up_to(granted)
            due = {cell.label for cell in view.cells if granted[cell.label] == look}
            # A crashed seed may be run again: no cell is stopped on seeds that are not all there.
            due -= {cell.label for cell in view.cells if cell.state != "finished"}
            chances = view._chances()
            reasons |= {label: _why_settled(label, chances) for label in due}
            for question, chance in chances.items():
                if due.issuperset(question.labels) and chance >= FUTILE:
                    granted |= dict.fromkeys(question.labels, following)
                    reasons |= dict.fromkeys(question.labels, "")
        return {label: Stop(count, reasons[label]) for label, count in granted.items()}

    def _up_to(self, granted: Mapping[str, int], *, has_finished: bool = False) -> Self:
        """Leave out replicates beyond the granted ones; with ``has_finished`` only unfinished ones."""
        cells = tuple(
            replace(
                cell,
                trials=tuple(
                    trial
                    for index, trial in enumerate(cell.trials)
                    if index < granted[cell.label] or (has_finished and trial.state == "finished")
                ),
            )
            for cell in self.cells
        )
        if not has_finished:
            return self.alone(cells)  # the study's own p-values decide who gets more seeds
        view = replace(self, cells=cells)
        view._comparer = self._comparer  # its resamples are the same
        return view

    def _chances(self) -> dict[Question, float]:
        """Return the comparisons that looks may settle, with the predicted power of those still open."""
        last = self.run_looks[-1]
        chances = {}
        for question in self._seed_questions:
            comparison = self._judged(question)
            chances[question] = 0.0
            if self._is_decided(comparison):
                chances[question] = -1.0  # decided; 0 is open, but not to be decided by seeds
            elif not comparison.open_because and (estimate := comparison.estimate) is not None:
                level = comparison.later_levels.get(last, comparison.level)
                chances[question] = decided_by(estimate, last, level, comparison.margin)
        return chances

    def _is_decided(self, comparison: Comparison) -> bool:
        return comparison.standing == "equal" or comparison.is_significant(self.study.analysis.alpha)

    @property
    def _seed_questions(self) -> list[Question]:
        """The comparisons that cells get seeds for: with the baseline on the main metric, and of claims."""
        questions = [*self.claimed.values()]
        if self.study.analysis.family == "all_cells" and self.main_metric in self.metrics:
            questions += self.cell_questions(self.main_metric)
        return list({question.key: question for question in questions}.values())


def _why_settled(label: str, chances: Mapping[Question, float]) -> str:
    open_ones = [chance for question, chance in chances.items() if label in question.labels and chance >= 0]
    if not open_ones:
        return "decided"
    if max(open_ones) == 0:
        return "more seeds decide nothing"
    return f"decided by the last look with a probability of at most {max(open_ones):.2f}"
