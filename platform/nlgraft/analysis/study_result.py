"""The result of a study: its trials, their statistics and its reports behind one object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nlgraft.analysis.policy.sequential import SequentialResults
from nlgraft.analysis.rendering import report
from nlgraft.analysis.rendering.prose import headline, short_note
from nlgraft.analysis.rendering.tables import comparison_table, effects_table, metrics_table
from nlgraft.analysis.rendering.typesetting import Table
from nlgraft.basics.wording import count, name_some

if TYPE_CHECKING:
    import pandas as pd

    from nlgraft.analysis.rendering.figures import Drawings

PlotKind = Literal["forest", "gains", "curves", "budget"]


@dataclass(eq=False, repr=False)
class StudyResult(SequentialResults):
    """The result of a study so far."""

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
            NlgraftError: There is no such format, or it holds one study.
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
            NlgraftError: There is no such format, or it holds one study.
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
