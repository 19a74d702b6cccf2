"""The comparisons, effects and claims of a study's results, corrected over its declared family."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.statistics.claims import ClaimResult, judge, signatures_differ
from nlgraft.analysis.statistics.comparer import Comparer
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.effects import Contrast, Effect, GainCurve, contrasts
from nlgraft.analysis.statistics.resampling import holm, normal_p
from nlgraft.analysis.statistics.spending import look_levels, overall_p
from nlgraft.errors import NlgraftError, nearest
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import Cell, axes_of, gain_cells

_CANCELLED = 1e-9
_SAMPLES_AT_LEVEL = 10
"""Resamples expected beyond a difference whose p-value just passes Holm's first step."""


@dataclass(frozen=True)
class Question:
    """A difference to test: of two cells, of two gains, or of a cell from its published figure.

    Attributes:
        metric: Name of the metric.
        cells: Labels of one, two or four cells.
        second_metric: The metric of the second of two cells where it is another; may be the same cell.
        null: Difference under the null hypothesis.
        value: The published figure of a single cell.
        margin: Difference from ``value`` that does not matter.
    """

    metric: str
    cells: tuple[str, ...]
    null: float = 0.0
    value: float = 0.0
    margin: float = 0.0
    second_metric: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of each cell."""
        return (self.metric, *[self.second_metric or self.metric] * (len(self.cells) - 1))

    @property
    def key(self) -> Hashable:
        """The hypothesis, which two cells share from either side."""
        is_symmetric = len(self.cells) == 2 and self.null == 0
        return frozenset(zip(self.metrics, self.cells, strict=True)) if is_symmetric else self


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
        trials = [trial for found in self.cells for trial in found.measured(metric).values()]
        self._comparer.prepare(metric, trials)
        compared = [
            self._limited(
                self._over_looks(self._effect(metric, contrast), partial(self._effect, metric, contrast)),
                [(weight, self.cell(cell)) for weight, cell in contrast.terms],
            )
            for contrast in known
        ]
        if self.is_corrected:
            adjusted, level = self._corrected([found.p for found in compared])
            pairs = zip(compared, adjusted, strict=True)
            compared = [replace(found, p_holm=p, level=level) for found, p in pairs]
        return [Effect(contrast, found) for contrast, found in zip(known, compared, strict=True)]

    def gains(self, metric: str | None = None) -> list[GainCurve]:
        """Compare levels with their factor's baseline at each level of ``analysis.gains_over``.

        Args:
            metric: A metric of the system; the main metric when left out.

        Returns:
            One curve for each level; empty where the study names no factor.

        Raises:
            NlgraftError: The system has no such metric.
        """
        pairs = gain_cells(self.study, [found.cell for found in self.cells])
        return [
            GainCurve(label, tuple((level, self.compare(a, b, metric=metric)) for level, a, b in known))
            for label, known in pairs.items()
        ]

    def _effect(self, metric: str, contrast: Contrast, seeds: Sequence[int] | None = None) -> Comparison:
        return self._comparer.contrast(
            metric,
            contrast.label,
            "both effects added" if len(contrast.levels) > 1 else "the factor's baseline",
            [(weight, self.cell(cell).measured(metric, seeds)) for weight, cell in contrast.terms],
        )

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The answer to every claim of the study, in its order."""
        return [self._judge(claim) for claim in self._claims]

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
            # Every trial at once: resamples are drawn once per metric, not once per pair.
            for metric in {*question.metrics}:
                trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
                self._comparer.prepare(metric, trials)
            found = self._over_looks(self._tested(question), partial(self._tested, question))
            self._answers[question] = self._limited(found, self._terms(question))
        return self._answers[question]

    def over_seeds(self, question: Question, seeds: Sequence[int]) -> Comparison:
        """Answer a question from some of the seeds, without correction."""
        return self._limited(self._tested(question, seeds), self._terms(question))

    def _terms(self, question: Question) -> list[tuple[float, CellResult]]:
        """The question's two or four cells with their weights."""
        return list(zip((1.0, -1.0, -1.0, 1.0), map(self.cell, question.cells), strict=False))

    def _over_looks(self, found: Comparison, test: Callable[[Sequence[int]], Comparison]) -> Comparison:
        """Replace the p-value by one that allows for every look at the results, planned or not.

        Args:
            found: The comparison over all finished seeds.
            test: The same over some seeds.
        """
        if found.p is None:
            return found
        if self.study.sequential is not None:
            looks = self.study.sequential.looks
            known = {look: test(self.study.seeds[:look]) for look in looks}
            p_values = {look: p for look, one in known.items() if (p := _p_at(look, one, found)) is not None}
            found = replace(found, p=float(overall_p(looks, p_values)) if p_values else None)
            taken = ", ".join(map(str, p_values)) or f"none, the first is at {looks[0]} seeds"
            found = replace(found, notes=(*found.notes, f"looks taken: {taken}"))
        if self.earlier_looks and found.p is not None:
            note = f"extended after results at {', '.join(map(str, self.earlier_looks))} seeds: p corrected"
            p = min(1.0, found.p * self.penalty)
            found = replace(found, p=p, notes=(*found.notes, note))
        return replace(found, level=self._level(found.level))

    @property
    def penalty(self) -> int:
        """Factor on the p-values of a study that was extended j - 1 times without a plan: j (j + 1).

        All looks after the first together then spend at most half of alpha.
        """
        number = len(self.earlier_looks) + 1
        return number * (number + 1) if self.earlier_looks else 1

    def _level(self, level: float) -> float:
        """Return the level of the last look that belongs to an overall level."""
        level /= self.penalty
        return level if self.study.sequential is None else look_levels(self.study.sequential.looks, level)[-1]

    def _limited(self, found: Comparison, terms: Sequence[tuple[float, CellResult]]) -> Comparison:
        """Leave open what no number of seeds can decide, and note which stages were trained once for all.

        Where a cell has a stage that its opposite lacks, the noise of that one training is in the difference,
        and no number of seeds shows it.
        """
        metric = self.system.metrics[found.metric]
        if metric.is_fixed:
            return found
        if metric.counted_by and _differ(metric.counted_by, [cell for _, cell in terms]):
            note = f"undecided, {metric.unit} of different vocabularies; compare a metric per character"
            return replace(found, open_because="different vocabularies", notes=(*found.notes, note))
        if metric.is_time and self._is_crowded(cell for _, cell in terms):
            note = "undecided, timed beside other stages on the same machine; resources.max_concurrent: 1"
            return replace(found, open_because="timed beside other stages", notes=(*found.notes, note))
        if metric.is_time:  # which weights a pretraining ended with costs no time
            return found
        names = {stage: name for _, cell in terms for stage, name in cell.trained_once.items()}
        weights = {
            stage: sum(weight for weight, cell in terms if stage in cell.trained_once) for stage in names
        }
        differing = {names[stage] for stage, weight in weights.items() if abs(weight) > _CANCELLED}
        found = replace(found, trained_once=tuple(sorted({*names.values()} - differing)))
        if not differing:
            return found
        note = f"undecided, one pretraining only: {', '.join(sorted(differing))} trained once for all seeds"
        return replace(found, open_because="one pretraining only", notes=(*found.notes, note))

    def _is_crowded(self, cells: Iterable[CellResult]) -> bool:
        """True if a stage of the cells' finished trials shared its machine."""
        trials = [trial for cell in cells for trial in cell.trials if trial.state == "finished"]
        stages = {stage["fingerprint"] for trial in trials if trial.record for stage in trial.record.stages}
        return not stages.isdisjoint(self.provenance.crowded)

    def _tested(self, question: Question, seeds: Sequence[int] | None = None) -> Comparison:
        metric, null = question.metric, question.null
        asked = zip(question.metrics, question.cells, strict=True)
        measured = [self.cell(label).measured(name, seeds) for name, label in asked]
        match question.cells:
            case (cell,):
                return self._comparer.against_value(
                    metric, cell, measured[0], question.value, question.margin
                )
            case (a, b):
                return self._comparer.compare(metric, a, measured[0], b, measured[1], null)
            case (a, b, c, d):
                terms = list(zip((1.0, -1.0, -1.0, 1.0), measured, strict=True))
                return self._comparer.contrast(metric, f"{a} over {b}", f"{c} over {d}", terms, null)
        raise ValueError(question.cells)

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

        ``all_cells``: one family per metric, of every cell against the baseline and the claims on that
        metric. ``claims``: one family of the claims.
        """
        if not self.is_corrected:
            return []
        claimed = [self._question(claim) for claim in self._claims if self._is_tested(claim)]
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
        return adjusted, self._level(alpha / max(1, num_open))

    def _question(self, claim: Claim) -> Question:
        cells = tuple(self.cell(text).cell.label for text in claim.cells)
        if not claim.is_ordering:
            return Question(claim.metric, cells, value=claim.value or 0.0, margin=claim.margin)
        sign = -1 if self.system.metrics[claim.metric].direction == "maximize" else 1
        return Question(claim.metric, cells, null=sign * claim.margin, second_metric=claim.worse_metric)

    @cached_property
    def _claims(self) -> list[Claim]:
        return claims_of(self.study)

    def _is_tested(self, claim: Claim) -> bool:
        """True unless the claim is a figure that ours cannot be compared with."""
        return claim.is_ordering or not self._why_not(claim)

    def _why_not(self, claim: Claim) -> str:
        """Say why the published figures of a claim are not shown beside ours."""
        trials = self.cell(claim.cells[0]).measured(claim.metric).values()
        ours = next((trial.signature for trial in trials), None)
        other_data = claim.other_data(self.study.data)
        return f"other data: {other_data}" if other_data else signatures_differ(claim.signature, ours)

    def _judge(self, claim: Claim) -> ClaimResult:
        cells = [self.cell(text) for text in claim.cells]
        why_not = self._why_not(claim)
        if self._is_tested(claim):
            comparison = self._ask(self._question(claim))
        else:
            note = f"cannot be compared: {why_not}"
            comparison = Comparison(metric=claim.metric, a=cells[0].cell.label, b="published", notes=(note,))
        return judge(
            claim,
            comparison,
            tuple(cell.mean(metric) for cell, metric in zip(cells, claim.metrics, strict=True)),
            direction=self.system.metrics[claim.metric].direction,
            alpha=self.study.analysis.alpha,
            is_corrected=self.is_corrected,
            other_data=claim.other_data(self.study.data),
            why_not=why_not,
        )


def _p_at(look: int, at_look: Comparison, now: Comparison) -> float | None:
    """Return the p-value of a look; None unless all of its seeds finished, and on the side of the present.

    It is computed from the variances, because resamples are too few for the levels of early looks.
    """
    if at_look.num_seeds < look or at_look.difference is None or now.difference is None:
        return None
    if at_look.seed_variance is None:  # a published figure, or a difference that does not vary
        return at_look.p if at_look.num_seeds == now.num_seeds else None
    shift = at_look.difference - at_look.null
    if shift * (now.difference - now.null) < 0:
        return None
    return float(normal_p(np.array(shift), at_look.seed_variance, at_look.segment_variance, look))


def _differ(metric: str, cells: Sequence[CellResult]) -> bool:
    """True if cells have different values of a metric with the same seed."""
    measured = [cell.measured(metric) for cell in cells]
    return any(
        len({found[seed].value for found in measured if seed in found}) > 1 for seed in set().union(*measured)
    )
