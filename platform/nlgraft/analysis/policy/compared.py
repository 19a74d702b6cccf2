"""The comparisons, effects and claims of a study's results, corrected over its declared family."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

from nlgraft.analysis.data.ledger import NoisePrior, Plan, Training, training_of
from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult, cached_method
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison, Standing
from nlgraft.analysis.estimates.effects import Contrast, Effect, GainCurve, contrasts
from nlgraft.analysis.estimates.limits import Term, limited
from nlgraft.analysis.estimates.noise_prior import StudyVariance, applicable, paired_kinds, study_variance
from nlgraft.analysis.estimates.question import SIGNS, Question
from nlgraft.analysis.estimates.searched_settings import CellSettings, searched_settings
from nlgraft.analysis.estimates.stability import Stability, stability
from nlgraft.analysis.estimates.trivial import Trivial, has_learned, trivial_output
from nlgraft.analysis.policy.claims import ClaimResult, judge, signatures_differ
from nlgraft.analysis.policy.planned import over_looks, with_levels
from nlgraft.analysis.policy.rules import FIRST, corrected
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import Cell, axes_of, gain_cells

_SAMPLES_AT_LEVEL = 10
"""Resamples expected beyond a difference whose p-value just passes Holm's first step."""


@dataclass(frozen=True)
class Weighted:
    """A weighted sum of cells, which is a difference: of two cells, of two gains, or an effect.

    Attributes:
        metric: The metric that it is in the unit of.
        a: Meaning of the positive weights.
        b: Meaning of the negative weights.
        terms: The cells with their weights.
        null: The sum under the null hypothesis.
        margin: Difference that the study declares too small to matter.
    """

    metric: str
    a: str
    b: str
    terms: tuple[Term, ...]
    null: float = 0.0
    margin: float | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of the cells."""
        return [term.cell.cell.label for term in self.terms]


@dataclass(eq=False)
class ComparedResults(Results):
    """Results with their statistics, each computed when it is first needed.

    **Determinism.** Figures depend on the finished trials' scores and the study's analysis settings only.
    """

    def alone(self, cells: Sequence[CellResult] | None = None) -> Self:
        """Return the same results by the study's own correction, as if nothing else had been asked.

        Args:
            cells: The cells with fewer replicates; as they are if left out.
        """
        view = replace(self, store=None, cells=tuple(self.cells if cells is None else cells))
        view._comparer, view.prior_of = self._comparer, self.prior_of  # resamples and prior are the same
        return view

    @cached_property
    def prior_of(self) -> Callable[[str, Sequence[str]], NoisePrior | None]:
        """What earlier studies say of the noise of a metric between cells, given by their labels."""
        return lambda metric, labels: None

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
        question = Question(self._metric_named(metric), (self.cell(a).cell.label, self.cell(b).cell.label))
        return self._judged(question)

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
        metric = self._metric_named(metric)
        all_contrasts = contrasts(axes_of(self.study), [cell.cell for cell in self.cells])
        compared = [self._over_looks(self._weigh_effect(metric, contrast)) for contrast in all_contrasts]
        return [
            Effect(contrast, self.judged(comparison))
            for contrast, comparison in zip(all_contrasts, self._corrected(compared), strict=True)
        ]

    def gains(self, metric: str | None = None) -> list[GainCurve]:
        """Compare levels with their factor's baseline at each level of ``analysis.gains_over``.

        Args:
            metric: A metric of the system; the main metric when left out.

        Returns:
            One curve for each level; empty where the study names no factor.

        Raises:
            NlgraftError: The system has no such metric.
        """
        pairs = gain_cells(self.study, [cell.cell for cell in self.cells])
        return [
            GainCurve(label, tuple((level, self.compare(a, b, metric=metric)) for level, a, b in level_pairs))
            for label, level_pairs in pairs.items()
        ]

    def _weigh_question(self, question: Question) -> Weighted:
        """Write a question as a weighted sum of cells."""
        cells = map(self.cell, question.cells)
        terms = tuple(map(Term, SIGNS, cells, question.metrics))
        pairs = (question.cells[:2], question.cells[2:])
        a, b = question.cells if len(terms) == 2 else map(" over ".join, pairs)
        margin = self.margin(question.metric) if question.has_margin else None
        return Weighted(question.metric, a, b, terms, question.null, margin)

    def _weigh_effect(self, metric: str, contrast: Contrast) -> Weighted:
        """Write an effect as a weighted sum of cells."""
        base = "both effects added" if len(contrast.levels) > 1 else "the factor's baseline"
        terms = tuple(Term(weight, self.cell(cell), metric) for weight, cell in contrast.terms)
        return Weighted(metric, contrast.label, base, terms, margin=self.margin(metric))

    def _over_looks(self, weighted: Weighted) -> Comparison:
        """Compare at the looks of its cells."""
        # Every trial at once: resamples are drawn once per metric, not once per pair.
        for metric in {term.metric for term in weighted.terms}:
            trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
            self._comparer.prepare(metric, trials)
        plan = self._plan_of(weighted.labels, weighted.metric)
        compared = over_looks(plan, partial(self._over_seeds, weighted), weighted.margin)
        return self._limited(compared, weighted.terms)

    def _over_seeds(self, weighted: Weighted, seeds: Sequence[int] | None) -> Comparison:
        """Compare over some seeds, or all finished ones, with what earlier studies say of their noise."""
        metric, labels = weighted.metric, weighted.labels
        sides = [(term.weight, term.cell.measured(term.metric, seeds)) for term in weighted.terms]
        test = partial(self._comparer.contrast, metric, weighted.a, weighted.b, sides, weighted.null)
        prior = (
            self.prior_of(metric, labels) if {term.metric for term in weighted.terms} == {metric} else None
        )
        kinds = paired_kinds([self.trainings[label] for label in labels]) if prior else None
        if prior is None or kinds is None:
            return test()
        common = tuple(seed for seed in sides[0][1] if all(seed in trials for _, trials in sides))
        usable = applicable(prior, self._noise(metric, kinds, common), len(common))
        return replace(test(prior=usable), prior=prior, is_noisier=usable != prior)

    @cached_method
    def _noise(self, metric: str, kinds: tuple[str, str], seeds: tuple[int, ...]) -> StudyVariance:
        """Pool the noise of the whole study."""
        scores = {
            cell.cell.label: {seed: trial.value for seed, trial in cell.measured(metric, seeds).items()}
            for cell in self.cells
        }
        return study_variance(self.trainings, scores, kinds)

    @cached_property
    def trainings(self) -> dict[str, Training]:
        """What varies with the seed, by the cells' labels."""
        return {cell.cell.label: training_of(self.study, cell.cell) for cell in self.cells}

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The answer to every claim of the study, in its order."""
        return [self._judge(claim) for claim in self._claims]

    def standing(self, comparison: Comparison) -> Standing:
        """Read a comparison as a verdict on its first cell."""
        is_up = self.system.metrics[comparison.metric].direction == "maximize"
        return comparison.standing_at(self.study.analysis.alpha, is_up=is_up)

    def judged(self, comparison: Comparison) -> Comparison:
        """Write the verdict into a comparison."""
        is_equal = comparison.is_equal(self.study.analysis.alpha)
        return replace(comparison, standing=self.standing(comparison), is_within_margin=is_equal)

    def margin(self, metric: str) -> float | None:
        """The difference on a metric that the study declares too small to matter."""
        return self.study.analysis.margin.get(metric)

    def _metric_named(self, metric: str | None) -> str:
        metric = self.main_metric if metric is None else metric
        if metric not in self.system.metrics:
            raise NlgraftError(
                f"{self.system.path} has no metric '{metric}'. {nearest(metric, list(self.system.metrics))}"
            )
        return metric

    @cached_method
    def _judged(self, question: Question) -> Comparison:
        return self.judged(self._answer(question))

    def _answer(self, question: Question) -> Comparison:
        """Answer a question as it is shown."""
        return self._declared(question)

    def _declared(self, question: Question) -> Comparison:
        """Answer a question by this study alone, with Holm's correction if it belongs to a family."""
        comparison = self._compared(question)
        # The family may ask the same from the other side: the correction is shared, figures are not.
        if question.key in self._adjusted:
            adjusted = self._adjusted[question.key]
            return replace(
                comparison,
                p_holm=adjusted.p_holm,
                p_equal_holm=adjusted.p_equal_holm,
                level=adjusted.level,
                later_levels=adjusted.later_levels,
                family=adjusted.family,
            )
        if comparison.p is not None:
            note = f"not in the family '{self.study.analysis.family}' that the study corrects for"
            return replace(comparison, notes=(*comparison.notes, note))
        return comparison

    @cached_method
    def _compared(self, question: Question) -> Comparison:
        return self._over_looks(self._weigh_question(question))

    @cached_property
    def own_plan(self) -> Plan:
        """When the study's own questions are answered."""
        return Plan(seeds=self.study.look_seeds, looks=self.study.looks)

    def _plan_of(self, labels: Sequence[str], metric: str) -> Plan:
        """Say when a question about some cells is answered."""
        return self.own_plan

    def _limited(self, comparison: Comparison, terms: Sequence[Term]) -> Comparison:
        """Leave open what no number of seeds can decide, and name the stages that were trained once."""
        metric = self.system.metrics[comparison.metric]
        comparison = limited(replace(comparison, unit=metric.unit), metric, terms, self.provenance.crowded)
        is_main = comparison.metric == self.main_metric
        if comparison.open_because or not is_main or not all(self.unlearned(term.cell) for term in terms):
            return comparison
        which = "neither cell has" if len(terms) == 2 else "none of its cells has"
        return replace(comparison, open_because=f"{which} learned")

    @cached_property
    def trivial(self) -> Trivial | None:
        """The best trivial output on the main metric."""
        return trivial_output(self.cells, self.main_metric)

    def unlearned(self, cell: CellResult) -> bool:
        """True if a cell is on average hardly better than a trivial output, or worse."""
        mean = cell.mean(self.main_metric)
        return (
            self.trivial is not None
            and mean is not None
            and not has_learned(mean, self.trivial, self.main_metric)
        )

    @cached_property
    def searched_settings(self) -> list[CellSettings]:
        """Which searched settings mattered, by cell; a description, see `estimates.searched_settings`."""
        by_cell = [searched_settings(self, cell) for cell in self.cells]
        return [settings for settings in by_cell if settings is not None]

    @cached_property
    def stabilities(self) -> list[Stability]:
        """How stable the finished cells are on the main metric."""
        main = self.main_metric
        if main not in self.metrics:
            return []
        floor = self.trivial.value if self.trivial is not None and main.endswith("/accuracy") else 0.0
        by_cell = [stability(cell, main, self.metrics[main], floor) for cell in self.cells]
        return [examined for examined in by_cell if examined is not None]

    @cached_property
    def samples(self) -> int:
        """Number of resamples: more than the study asks for where its family is large.

        The smallest p-value is 1 / (samples + 1), and Holm multiplies it by the size of the family.
        """
        settings = self.study.analysis
        largest = max((len(family) for family in self._families), default=0)
        # With too few resamples Holm could never reach alpha in a large family.
        return max(settings.samples, math.ceil(_SAMPLES_AT_LEVEL * largest / settings.alpha))

    @cached_property
    def _comparer(self) -> Comparer:
        settings = self.study.analysis
        return Comparer(samples=self.samples, alpha=settings.alpha)

    @cached_property
    def _families(self) -> list[list[Question]]:
        """The questions that are corrected together.

        ``all_cells``: one family per metric, of every cell against the baseline and the claims on that
        metric. ``claims``: one family of the claims. A family is what the study declares, whether it has been
        run or not; there is no question about a metric that a finished cell does not have.
        """
        return [*self._families_of(self.metrics).values()]

    @property
    def _claimed(self) -> list[Question]:
        return [self._question(claim) for claim in self._claims]

    def _families_of(self, metrics: Iterable[str]) -> dict[str, list[Question]]:
        """List the families of questions by name: the metrics', or ``claims``."""
        claimed = self._claimed
        families = {"claims": claimed}
        if self.study.analysis.family == "all_cells":
            base = self.baseline.cell.label
            cells = [(cell.cell.label, base) for cell in self.cells[1:]]
            families = {
                name: [*(Question(name, pair) for pair in cells), *(q for q in claimed if q.metric == name)]
                for name in metrics
            }
        return {
            name: list({question.key: question for question in family if self._exists(question)}.values())
            for name, family in families.items()
        }

    def _exists(self, question: Question) -> bool:
        """True unless one of the question's cells has finished without the metric."""
        sides = zip(question.metrics, question.cells, strict=True)
        return not any(self.cell(label).lacks(name) for name, label in sides)

    @cached_property
    def _adjusted(self) -> dict[Hashable, Comparison]:
        """The families' comparisons with Holm's correction, by the keys of their questions."""
        by_key: dict[Hashable, Comparison] = {}
        for family in self._families:
            corrected = self._corrected([self._compared(question) for question in family])
            by_key |= {
                question.key: comparison for question, comparison in zip(family, corrected, strict=True)
            }
        return by_key

    def _corrected(self, family: Sequence[Comparison]) -> list[Comparison]:
        """Adjust p-values after Holm, and set the level that the smallest open one must reach.

        A question that is unfinished, or whose cells failed, counts as p = 1: the family is what was asked,
        not what has finished. Certain differences need no test and do not count.
        """
        alpha = self.study.analysis.alpha
        level = FIRST * alpha
        adjusted = corrected([comparison.either for comparison in family], level, alpha)
        # Holm tests the smallest of m open questions at its level / m; power is stated at that level.
        num_open = sum(p is not None and max(p, equal or 0.0) > alpha for p, equal in adjusted)
        size = (
            sum(not comparison.is_exact for comparison in family),
            sum(bool(comparison.looks) for comparison in family),
        )
        return [
            with_levels(
                replace(
                    comparison,
                    p_holm=p if comparison.looks else None,
                    p_equal_holm=p_equal if comparison.looks and comparison.p_equal is not None else None,
                    family=size,
                ),
                self.own_plan.looks,
                level / max(1, num_open),
            )
            for comparison, (p, p_equal) in zip(family, adjusted, strict=True)
        ]

    def _question(self, claim: Claim) -> Question:
        cells = tuple(self.cell(text).cell.label for text in claim.cells)
        sign = -1 if self.system.metrics[claim.metric].direction == "maximize" else 1
        return Question(claim.metric, cells, null=sign * claim.margin, second_metric=claim.worse_metric)

    @cached_property
    def _claims(self) -> list[Claim]:
        return claims_of(self.study)

    def _why_not(self, claim: Claim) -> str:
        """Say why the published figures of a claim are not shown beside ours."""
        trials = self.cell(claim.cells[0]).measured(claim.metric).values()
        own_signature = next((trial.signature for trial in trials), None)
        other_data = claim.other_data(self.study.data)
        return (
            f"other data: {other_data}" if other_data else signatures_differ(claim.signature, own_signature)
        )

    def _judge(self, claim: Claim) -> ClaimResult:
        cells = [self.cell(text) for text in claim.cells]
        why_not = self._why_not(claim)
        question = self._question(claim)
        comparison = self._answer(question)
        if question.null == 0:  # "better" says nothing of a difference that is tested against a margin
            comparison = self.judged(comparison)
        return judge(
            claim,
            comparison,
            tuple(cell.mean(metric) for cell, metric in zip(cells, claim.metrics, strict=True)),
            direction=self.system.metrics[claim.metric].direction,
            alpha=self.study.analysis.alpha,
            other_data=claim.other_data(self.study.data),
            why_not=why_not,
            has_run=all(cell.has_started for cell in cells),
        )
