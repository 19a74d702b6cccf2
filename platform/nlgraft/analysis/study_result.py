"""The result of a study: its trials, their statistics and its reports behind one object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from nlgraft.analysis.data.results import Stop
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import Comparison, Question
from nlgraft.analysis.estimates.power import FUTILE, decided_by
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering import report
from nlgraft.analysis.rendering.prose import headline, short_note
from nlgraft.analysis.rendering.tables import comparison_table, effects_table, metrics_table
from nlgraft.analysis.rendering.typesetting import Table
from nlgraft.basics.wording import count, name_some
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import read_granted

if TYPE_CHECKING:
    import pandas as pd

    from nlgraft.analysis.rendering.figures import Drawings

PlotKind = Literal["forest", "gains", "curves", "budget"]


@dataclass(eq=False, repr=False)
class StudyResult(RecordedResults):
    """The result of a study so far, whose cells may get their seeds look by look.

    After a look a cell stops when every comparison that the study asks of it is significant (benefit or
    harm), can hardly become so (futility), or depends on a stage that was trained once. The futility rule is
    non-binding: no level depends on it. The baseline gets seeds as long as any comparison with it does.
    """

    def __repr__(self) -> str:
        states = Counter(trial.state for trial in self.trials)
        counts = ", ".join(f"{number} {state}" for state, number in states.items())
        return (
            f"Result of {self.study.variant}: {count(len(self.cells), 'cell')} x "
            f"{count(len(self.study.seeds), 'seed')}, {count(len(self.trials), 'trial')}: {counts}\n"
            f"  cells: {name_some([cell.label for cell in self.cells])}\n"
            f"  next: .frame(); .compare(cell, metric={self.main_metric!r}); .claims; .plot(); "
            ".report(directory); .paper(directory)"
        )

    def _repr_html_(self) -> str:
        """Show the comparison table in a notebook."""
        return report.html_table(self.comparison(), f"{self.study.variant}: {self.main_metric}")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of ``run --json`` and ``report --format json``."""
        return report.result_document(self)

    def headline(self) -> str:
        """Summarise the verdicts in a few sentences."""
        return headline(self)

    def comparison(self) -> Table:
        """Tabulate the difference of every cell from the baseline on the main metric."""
        return comparison_table(self, self.main_metric)

    def comparisons(self) -> pd.DataFrame:
        """Compare every cell on every metric with the baseline, in full precision: one row for each.

        Returns:
            ``cell``, one column per factor, ``state``, ``metric``, ``mean``, ``std``, ``n``, ``difference``,
            ``ci_low``, ``ci_high``, ``p``, ``p_holm`` and more, as in ``comparison.csv``.
        """
        return report.comparison_frame(self).infer_objects()

    def plot(self, kind: PlotKind = "forest") -> Drawings:
        """Draw figures of the result, for a notebook; each has Matplotlib's ``.figure`` and ``.save(path)``.

        Args:
            kind: ``forest`` (differences on the main metric), ``gains``, ``curves`` (of the trainings),
                or ``budget`` (a search's expected best).

        Raises:
            NlgraftError: There is no such kind.
        """
        from nlgraft.analysis.rendering.figures import plot  # loads matplotlib

        return plot(self, kind)

    def effects_on_main_metric(self) -> Table | None:
        """Tabulate the effects on the main metric; None where the design crosses no factors."""
        return effects_table(self, self.main_metric)

    def test_metrics(self) -> Table | None:
        """Tabulate the other metrics of the test set but times; None where there are none."""
        names = [
            name
            for name, metric in self.metrics.items()
            if metric.split == "test" and not metric.is_time and name != self.main_metric
        ]
        return metrics_table(self, names) if names else None

    def note(self) -> str:
        """Return the comparison table and the claims as Markdown, short enough for MLflow's note."""
        return short_note(self)

    def render(self, kind: str, beside: Sequence[StudyResult] = ()) -> str:
        """Render the main file of a report: ``md``, ``html``, ``latex``, ``csv`` or ``json``.

        Args:
            kind: The format.
            beside: Further studies in the same text, behind all headlines; ``md`` and ``html`` only.

        Raises:
            NlgraftError: There is no such format, or there are further studies and it holds one.
        """
        return report.render(self, kind, beside)

    def report(
        self,
        out: str | Path,
        formats: Sequence[str] = ("html", "md"),
        beside: Sequence[StudyResult] = (),
    ) -> list[Path]:
        """Write a report.

        Args:
            out: Directory to write into; created when missing.
            formats: Any of ``html``, ``md``, ``latex``, ``csv``, ``json``.
            beside: Further studies in the same files; ``md`` and ``html`` only.

        Returns:
            The files: ``report.md``, ``report.html``, ``report.tex``, ``comparison.csv``, ``trials.csv`` and,
            where outputs are stored, ``examples.csv``, ``result.json``.

        Raises:
            NlgraftError: There is no such format, or there are further studies and it holds one.
        """
        return report.write_report(self, Path(out), formats, beside)

    def paper(self, out: str | Path) -> list[Path]:
        """Write tables, figures, numbers, methods, checklist, examples and BibTeX for a paper.

        Args:
            out: Directory to write into; created when missing. Files of an earlier call are replaced.

        Returns:
            The files written, figures as PDF and as SVG; ``paper.tex`` shows the others.
        """
        from nlgraft.analysis.rendering.paper import write_paper  # loads matplotlib

        return write_paper(self, Path(out))

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
        kept = result._granted_trials({label: stop.num_seeds for label, stop in stops.items()}, finished=True)
        return result.view(cells=kept, stops=stops)

    def next_look(self) -> dict[str, int]:
        """Say how many seeds each cell gets at the next look of its undecided questions, by the cell's key.

        Returns:
            Only cells that get more than they have; empty if everything is decided, or no look is left.
        """
        granted = {}
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
        for look, following in pairwise(self.run_looks):
            # The study's own p-values decide who gets more seeds.
            view = self.alone(cells=self._granted_trials(granted))
            due = {cell.label for cell in view.cells if granted[cell.label] == look}
            # A crashed seed may be run again: no cell is stopped on seeds that are not all there.
            due -= {cell.label for cell in view.cells if cell.state != "finished"}
            chances = view._chances()
            for label in due:
                of_cell = (chance for question, chance in chances.items() if label in question.labels)
                most = max(of_cell, default=None)
                reasons[label] = "decided" if most is None else "more seeds decide nothing"
                if most:
                    reasons[label] = f"decided by the last look with a probability of at most {most:.2f}"
            for question, chance in chances.items():
                if due.issuperset(question.labels) and chance >= FUTILE:
                    granted |= dict.fromkeys(question.labels, following)
                    reasons |= dict.fromkeys(question.labels, "")
        return {label: Stop(count, reasons[label]) for label, count in granted.items()}

    def _granted_trials(
        self, granted: Mapping[str, int], *, finished: bool = False
    ) -> tuple[CellResult, ...]:
        """Leave out replicates beyond the granted ones; with ``finished`` only unfinished ones."""
        return tuple(
            replace(
                cell,
                trials=tuple(
                    trial
                    for index, trial in enumerate(cell.trials)
                    if index < granted[cell.label] or (finished and trial.state == "finished")
                ),
            )
            for cell in self.cells
        )

    def _chances(self) -> dict[Question, float]:
        """Predict the power of the open comparisons at the last look; 0 where seeds decide nothing."""
        last = self.run_looks[-1]
        chances = {}
        for question in self._seed_questions:
            comparison = self._judged(question)
            if self._is_decided(comparison):
                continue
            chances[question] = 0.0
            if not comparison.open_because and comparison.estimate is not None:
                level = comparison.later_levels.get(last, comparison.level)
                chances[question] = decided_by(comparison.estimate, last, level, comparison.margin)
        return chances

    def _is_decided(self, comparison: Comparison) -> bool:
        return comparison.standing == "equal" or comparison.is_significant(self.alpha)

    @property
    def _seed_questions(self) -> list[Question]:
        """The comparisons that cells get seeds for: with the baseline on the main metric, and of claims."""
        questions = [*self.claimed.values()]
        if self.study.analysis.family == "all_cells" and self.main_metric in self.metrics:
            questions += self.cell_questions(self.main_metric)
        return list({question.key: question for question in questions}.values())
