"""The comparisons, effects and claims of a study's results, corrected over its declared family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.statistics.claims import ClaimResult, judge_figure, judge_ordering, why_not_comparable
from nlgraft.analysis.statistics.comparison import Comparer, Comparison
from nlgraft.analysis.statistics.effects import Effect, contrasts
from nlgraft.analysis.statistics.resampling import holm
from nlgraft.errors import NlgraftError, nearest
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import Cell, axes_of


@dataclass(eq=False)
class ComparedResults(Results):
    """Results with their statistics, each computed when it is first needed.

    **Determinism.** Figures depend on the finished trials' scores and the study's analysis settings only.
    """

    @property
    def is_corrected(self) -> bool:
        """True if Holm-adjusted p-values decide."""
        return self.study.analysis.correction == "holm"

    def compare(self, a: str | Cell, b: str | Cell = "baseline", *, metric: str | None = None) -> Comparison:
        """Compare two cells.

        Args:
            a: The first cell, or a text that names it.
            b: The cell to subtract.
            metric: A metric of the system; the main metric when left out.

        Returns:
            ``a`` minus ``b``. ``p_holm`` is set for comparisons of the study's declared family.

        Raises:
            NlgraftError: The system has no such metric.
            StudyError: The study has no such cell.
        """
        metric = self._known(metric)
        first, second = self.cell(a), self.cell(b)
        found = self._compare(first, second, metric)
        key = (metric, frozenset((first.cell.label, second.cell.label)))
        if key in self._adjusted:
            p_holm, level = self._adjusted[key]
            return replace(found, p_holm=p_holm, level=level)
        if self.is_corrected and found.p is not None:
            note = f"not in the family '{self.study.analysis.family}' that the study corrects for"
            return replace(found, notes=(*found.notes, note))
        return found

    def effects(self, metric: str | None = None) -> list[Effect]:
        """Estimate the main effect of each level and the interactions of two.

        Args:
            metric: A metric of the system; the main metric when left out.

        Returns:
            Main effects, then interactions; ``p_holm`` is adjusted over all of them. Empty where the design
            crosses no factors: one_factor, leave_one_out.

        Raises:
            NlgraftError: The system has no such metric.
        """
        metric = self._known(metric)
        known = contrasts(axes_of(self.study), [found.cell for found in self.cells])
        measured = {found.cell.label: found.measured(metric) for found in self.cells}
        self._comparer.prepare(metric, [trial for trials in measured.values() for trial in trials.values()])
        compared = [
            self._comparer.contrast(
                metric,
                contrast.label,
                "both effects added" if len(contrast.levels) > 1 else "the factor's baseline",
                [(weight, measured[cell.label]) for weight, cell in contrast.terms],
            )
            for contrast in known
        ]
        if self.is_corrected:
            adjusted, level = self._corrected([found.p for found in compared])
            pairs = zip(compared, adjusted, strict=True)
            compared = [replace(found, p_holm=p, level=level) for found, p in pairs]
        return [Effect(contrast, found) for contrast, found in zip(known, compared, strict=True)]

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The answer to every claim of the study, in its order."""
        return [self._judge(claim) for claim in claims_of(self.study)]

    def standing(self, found: Comparison) -> Literal["better", "worse", "open"]:
        """Read a comparison as a verdict on its first cell; ``open`` unless it is significant."""
        alpha = self.study.analysis.alpha
        if found.difference is None or not found.is_significant(alpha, is_corrected=self.is_corrected):
            return "open"
        is_up = self.system.metrics[found.metric].direction == "maximize"
        return "better" if (found.difference > 0) == is_up else "worse"

    def _known(self, metric: str | None) -> str:
        metric = self.main_metric if metric is None else metric
        if metric not in self.system.metrics:
            raise NlgraftError(
                f"{self.system.path} has no metric '{metric}'. {nearest(metric, list(self.system.metrics))}"
            )
        return metric

    def _compare(self, a: CellResult, b: CellResult, metric: str) -> Comparison:
        key = (a.cell.label, b.cell.label, metric)
        if key not in self._compared:
            # Every trial at once: resamples are drawn once per metric, not once per pair.
            trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
            self._comparer.prepare(metric, trials)
            left, right = a.measured(metric), b.measured(metric)
            found = self._comparer.compare(metric, a.cell.label, left, b.cell.label, right)
            self._compared[key] = found
        return self._compared[key]

    @cached_property
    def _compared(self) -> dict[tuple[str, str, str], Comparison]:
        return {}

    @cached_property
    def _comparer(self) -> Comparer:
        settings = self.study.analysis
        return Comparer(test=settings.test, samples=settings.samples, alpha=settings.alpha)

    @cached_property
    def _adjusted(self) -> dict[tuple[str, frozenset[str]], tuple[float | None, float]]:
        """Holm-adjusted p-value and level of the declared family, by metric and pair of labels.

        ``all_cells``: one family per metric, of every cell against the baseline and the claims' pairs on that
        metric. ``claims``: one family of the claims' pairs.
        """
        if not self.is_corrected:
            return {}
        orderings = [claim for claim in claims_of(self.study) if claim.is_ordering]
        claimed = [
            (claim.metric, self.cell(claim.better or ""), self.cell(claim.worse or "")) for claim in orderings
        ]
        if self.study.analysis.family == "claims":
            return self._adjust(claimed)
        adjusted: dict[tuple[str, frozenset[str]], tuple[float | None, float]] = {}
        for name in self.metrics:
            against_baseline = [(name, cell, self.baseline) for cell in self.cells[1:]]
            adjusted |= self._adjust([*against_baseline, *(pair for pair in claimed if pair[0] == name)])
        return adjusted

    def _adjust(
        self, family: Iterable[tuple[str, CellResult, CellResult]]
    ) -> dict[tuple[str, frozenset[str]], tuple[float | None, float]]:
        pairs = {(metric, frozenset((a.cell.label, b.cell.label))): (a, b, metric) for metric, a, b in family}
        adjusted, level = self._corrected([self._compare(*pair).p for pair in pairs.values()])
        return {key: (p, level) for key, p in zip(pairs, adjusted, strict=True)}

    def _corrected(self, raw: Sequence[float | None]) -> tuple[list[float | None], float]:
        """Adjust p-values after Holm, and return the level that the smallest open one must reach."""
        adjusted = holm(raw)
        alpha = self.study.analysis.alpha
        num_open = sum(p is not None and p > alpha for p in adjusted)
        return adjusted, alpha / max(1, num_open)

    def _judge(self, claim: Claim) -> ClaimResult:
        direction = self.system.metrics[claim.metric].direction
        if claim.better is None or claim.worse is None:
            cell = self.cell(claim.cell or "")
            why_not = self._why_not(claim, cell)
            comparison = self._comparer.against_value(
                claim.metric, cell.cell.label, cell.measured(claim.metric), claim.value or 0.0
            )
            return judge_figure(claim, comparison, cell.mean(claim.metric), why_not=why_not)
        better, worse = self.cell(claim.better), self.cell(claim.worse)
        return judge_ordering(
            claim,
            self.compare(better.cell, worse.cell, metric=claim.metric),
            (better.mean(claim.metric), worse.mean(claim.metric)),
            direction=direction,
            alpha=self.study.analysis.alpha,
            is_corrected=self.is_corrected,
            why_not=self._why_not(claim, better),
        )

    def _why_not(self, claim: Claim, cell: CellResult) -> str:
        ours = next((trial.signature for trial in cell.measured(claim.metric).values()), None)
        return why_not_comparable(claim.signature, ours, self.is_constructed)
