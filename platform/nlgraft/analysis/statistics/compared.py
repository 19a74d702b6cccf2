"""The comparisons, effects and claims of a study's results, corrected over its declared family."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
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

_SAMPLES_AT_LEVEL = 10
"""Resamples expected beyond a difference whose p-value just passes Holm's first step."""


@dataclass(frozen=True)
class Question:
    """A difference to test.

    Attributes:
        metric: Name of the metric.
        cells: Labels of the two cells.
    """

    metric: str
    cells: tuple[str, str]

    @property
    def key(self) -> Hashable:
        """The hypothesis: the same from either side."""
        return self.metric, frozenset(self.cells)


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
        return self._ask(Question(self._known(metric), (self.cell(a).cell.label, self.cell(b).cell.label)))

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

    def _ask(self, question: Question) -> Comparison:
        """Answer a question, with Holm's correction if it belongs to a family."""
        found = self._compared(question)
        if question.key in self._adjusted:
            p_holm, level = self._adjusted[question.key]
            return replace(found, p_holm=p_holm, level=level)
        if self.is_corrected and found.p is not None:
            note = f"not in the family '{self.study.analysis.family}' that the study corrects for"
            return replace(found, notes=(*found.notes, note))
        return found

    def _compared(self, question: Question) -> Comparison:
        if question not in self._answers:
            metric = question.metric
            # Every trial at once: resamples are drawn once per metric, not once per pair.
            trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
            self._comparer.prepare(metric, trials)
            a, b = question.cells
            left, right = (self.cell(label).measured(metric) for label in question.cells)
            self._answers[question] = self._comparer.compare(metric, a, left, b, right)
        return self._answers[question]

    @cached_property
    def _answers(self) -> dict[Question, Comparison]:
        return {}

    @cached_property
    def samples(self) -> int:
        """Number of resamples: more than the study asks for where its family is large.

        The smallest p-value is 1 / (samples + 1), and Holm multiplies it by the size of the family.
        """
        settings = self.study.analysis
        largest = max((len(family) for family in self._families), default=0)
        return max(settings.samples, math.ceil(_SAMPLES_AT_LEVEL * largest / settings.alpha))

    @cached_property
    def _comparer(self) -> Comparer:
        settings = self.study.analysis
        return Comparer(test=settings.test, samples=self.samples, alpha=settings.alpha)

    @cached_property
    def _families(self) -> list[list[Question]]:
        """The questions that are corrected together; none without a correction.

        ``all_cells``: one family per metric, of every cell against the baseline and the claims' pairs on that
        metric. ``claims``: one family of the claims' pairs.
        """
        if not self.is_corrected:
            return []
        claimed = [self._question(claim) for claim in claims_of(self.study) if claim.is_ordering]
        families = [claimed]
        if self.study.analysis.family == "all_cells":
            base = self.baseline.cell.label
            cells = [(found.cell.label, base) for found in self.cells[1:]]
            families = [
                [*(Question(name, pair) for pair in cells), *(one for one in claimed if one.metric == name)]
                for name in self.metrics
            ]
        return [list({one.key: one for one in family}.values()) for family in families]

    @cached_property
    def _adjusted(self) -> dict[Hashable, tuple[float | None, float]]:
        """Holm-adjusted p-value and level of the families' questions, by their keys."""
        found: dict[Hashable, tuple[float | None, float]] = {}
        for family in self._families:
            adjusted, level = self._corrected([self._compared(question).p for question in family])
            found |= {one.key: (p, level) for one, p in zip(family, adjusted, strict=True)}
        return found

    def _corrected(self, raw: Sequence[float | None]) -> tuple[list[float | None], float]:
        """Adjust p-values after Holm, and return the level that the smallest open one must reach."""
        adjusted = holm(raw)
        alpha = self.study.analysis.alpha
        num_open = sum(p is not None and p > alpha for p in adjusted)
        return adjusted, alpha / max(1, num_open)

    def _question(self, claim: Claim) -> Question:
        a, b = (self.cell(text).cell.label for text in (claim.better or "", claim.worse or ""))
        return Question(claim.metric, (a, b))

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
