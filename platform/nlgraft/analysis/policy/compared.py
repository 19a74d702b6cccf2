"""The comparisons of a study's results at its looks, and the questions that it declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from nlgraft.analysis.data.ledger import NoisePrior, Plan, Training, training_of
from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult, cached_method
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.effects import Contrast, contrasts
from nlgraft.analysis.estimates.limits import Term, limited
from nlgraft.analysis.estimates.noise_prior import StudyVariance, applicable, paired_kinds, study_variance
from nlgraft.analysis.estimates.question import SIGNS, Question
from nlgraft.analysis.estimates.searched_settings import CellSettings, searched_settings
from nlgraft.analysis.estimates.stability import Stability, stability
from nlgraft.analysis.estimates.trivial import Trivial, has_learned, trivial_output
from nlgraft.analysis.policy.planned import over_looks
from nlgraft.basics.errors import NlgraftError, nearest
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import axes_of

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
        second_metric: The metric of the second of two cells where it is another.
        is_effect: True for the effect of a factor or an interaction.
    """

    metric: str
    a: str
    b: str
    terms: tuple[Term, ...]
    null: float = 0.0
    margin: float | None = None
    second_metric: str | None = None
    is_effect: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the cells; of an effect, those with positive weights first, which tells effects apart."""
        terms = self.terms
        if self.is_effect:
            terms = tuple(sorted(terms, key=lambda term: (-term.weight, term.cell.label)))
        return tuple(term.cell.label for term in terms)


@dataclass(eq=False)
class ComparedResults(Results):
    """Results with their statistics, each computed when it is first needed; verdicts are `RecordedResults`'.

    **Determinism.** Figures depend on the finished trials' scores and the study's analysis settings only.
    """

    @cached_property
    def prior_of(self) -> Callable[[str, Sequence[str]], NoisePrior | None]:
        """What earlier studies say of the noise of a metric between cells, given by their labels."""
        return lambda metric, labels: None

    def _weigh_question(self, question: Question) -> Weighted:
        """Write a question as a weighted sum of cells."""
        cells = map(self.cell, question.cells)
        terms = tuple(map(Term, SIGNS, cells, question.metrics))
        pairs = (question.cells[:2], question.cells[2:])
        a, b = question.cells if len(terms) == 2 else map(" over ".join, pairs)
        margin = self.margin(question.metric) if question.has_margin else None
        return Weighted(question.metric, a, b, terms, question.null, margin, question.second_metric)

    def _weigh_effect(self, metric: str, contrast: Contrast) -> Weighted:
        """Write an effect as a weighted sum of cells."""
        base = "both effects added" if len(contrast.levels) > 1 else "the factor's baseline"
        terms = tuple(Term(weight, self.cell(cell), metric) for weight, cell in contrast.terms)
        return Weighted(metric, contrast.label, base, terms, margin=self.margin(metric), is_effect=True)

    @cached_property
    def _contrasts(self) -> list[Contrast]:
        """The effects of crossed factors."""
        return contrasts(axes_of(self.study), [cell.cell for cell in self.cells])

    @cached_method
    def _compared(self, weighted: Weighted) -> Comparison:
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
            cell.label: {seed: trial.value for seed, trial in cell.measured(metric, seeds).items()}
            for cell in self.cells
        }
        return study_variance(self.trainings, scores, kinds)

    @cached_property
    def trainings(self) -> dict[str, Training]:
        """What varies with the seed, by the cells' labels."""
        return {cell.label: training_of(self.study, cell.cell) for cell in self.cells}

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
        largest = max(map(len, self._families.values()), default=0)
        # With too few resamples Holm could never reach alpha in a large family.
        return max(settings.samples, math.ceil(_SAMPLES_AT_LEVEL * largest / settings.alpha))

    @cached_property
    def _comparer(self) -> Comparer:
        settings = self.study.analysis
        return Comparer(samples=self.samples, alpha=settings.alpha)

    @property
    def _claimed(self) -> list[Question]:
        return [self._question(claim) for claim in claims_of(self.study)]

    @cached_property
    def _families(self) -> dict[str, list[Question]]:
        """The questions that are corrected together, by the name of their family: a metric's, or ``claims``.

        ``all_cells``: one family for the main metric and each of the claims' metrics, of every cell against
        the baseline and the claims on that metric. ``claims``: one family of the claims. A family is what the
        study declares, whether it has been run or not; there is no question about a metric that a finished
        cell does not have.
        """
        claimed = self._claimed
        families = {"claims": claimed}
        if self.study.analysis.family == "all_cells":
            base = self.baseline.label
            cells = [(cell.label, base) for cell in self.cells[1:]]
            families = {
                name: [*(Question(name, pair) for pair in cells), *(q for q in claimed if q.metric == name)]
                for name in dict.fromkeys([self.main_metric, *(question.metric for question in claimed)])
            }
        return {
            name: list({question.key: question for question in family if self._exists(question)}.values())
            for name, family in families.items()
        }

    def _exists(self, question: Question) -> bool:
        """True unless one of the question's cells has finished without the metric."""
        sides = zip(question.metrics, question.cells, strict=True)
        return not any(self.cell(label).lacks(name) for name, label in sides)

    def _question(self, claim: Claim) -> Question:
        cells = tuple(self.cell(text).label for text in claim.cells)
        sign = -1 if self.system.metrics[claim.metric].direction == "maximize" else 1
        return Question(claim.metric, cells, null=sign * claim.margin, second_metric=claim.worse_metric)
