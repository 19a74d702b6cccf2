"""How a study's design behaves when it is run as declared: error rates, coverage and power, by simulation.

Variances are those of the study's comparisons with the baseline, averaged; before it ran, a difference
between two cells has deviation 1 over seeds and the test set adds nothing, so that effects are in units of
that deviation. Scores of seeds are normal and independent between cells; tests, looks and corrections are
those of reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nlgraft.analysis.data.ledger import Look, NoisePrior, Plan
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.noise_prior import Estimate, StudyVariance, applicable, moderated
from nlgraft.analysis.estimates.power import smallest_detectable
from nlgraft.analysis.estimates.resampling import holm_either, open_as_one
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.rules import FIRST, p_of_looks

RANDOM_SEED = 20261122
_EFFECTS = (0.5, 1.0, 1.5, 2.0)
"""Sizes of the simulated effect, in units of the detectable one."""
_LEAST = 1e-9
_Z = 1.96


@dataclass(frozen=True)
class Design:
    """What a simulation needs to know of a study.

    Attributes:
        weights: Weights of the cells in each comparison, shape (comparisons, cells), the baseline first.
        looks: Numbers of seeds at which results are tested.
        num_seeds: Seeds of the study.
        alpha: Level.
        seed_variance: Variance between the seeds' differences of two cells.
        segment_variance: Variance of the difference of two cells from the choice of segments.
        is_assumed: True if the variances are assumed.
        prior: Noise of earlier studies.
    """

    weights: Array
    looks: tuple[int, ...]
    num_seeds: int
    alpha: float
    seed_variance: float
    segment_variance: float
    is_assumed: bool
    prior: NoisePrior | None = None

    @property
    def run_looks(self) -> list[int]:
        """The looks that a run takes by itself."""
        return [look for look in self.looks if look <= self.num_seeds] or [self.looks[0]]

    def scores(self, rng: np.random.Generator) -> Array:
        """Draw scores where nothing differs, shape (cells, seeds of the last look)."""
        num_cells = self.weights.shape[1]
        # The variances are those of a difference between two cells; each cell carries half of them.
        seed_deviation = math.sqrt(max(self.seed_variance, _LEAST * self.segment_variance) / 2)
        of_segments = math.sqrt(self.segment_variance / 2) * rng.standard_normal((num_cells, 1))
        return seed_deviation * rng.standard_normal((num_cells, self.run_looks[-1])) + of_segments

    def with_effect(self, scores: Array, effect: float) -> Array:
        """Raise the scores of one cell of the first comparison, not of the baseline."""
        changed = 1 + int(np.flatnonzero(self.weights[0, 1:])[0])
        return scores + effect * (np.arange(len(scores)) == changed)[:, None]


@dataclass(frozen=True)
class Validity:
    """Rates over simulated studies.

    Attributes:
        design: The design.
        num_simulations: Number of simulated studies.
        familywise: Share of studies without any effect in which some comparison is significant.
        coverage: Share of intervals that contain the true difference.
        power: Share of studies that find an effect of one cell of the first comparison, by its size.
        detectable: The size that is meant to be found in four of five studies.
        mean_seeds: Seeds per comparison on average, without any effect.
    """

    design: Design
    num_simulations: int
    familywise: float
    coverage: float
    power: dict[float, float]
    detectable: float
    mean_seeds: float

    def error_of(self, share: float) -> float:
        """Half of the 95 % interval of Agresti and Coull (1998), which is not zero for shares of 0 and 1."""
        total = self.num_simulations + _Z**2
        middle = (share * self.num_simulations + _Z**2 / 2) / total
        return _Z * math.sqrt(middle * (1 - middle) / total)

    def to_json(self) -> dict[str, Any]:
        """Return the rates as JSON values, each with the error of the simulation."""
        document = asdict(self.design)
        num_comparisons = len(document.pop("weights"))
        del document["num_seeds"]
        rates = {"familywise_error": self.familywise, "coverage": self.coverage}
        return {
            "comparisons": num_comparisons,
            **document,
            "simulations": self.num_simulations,
            **rates,
            "errors": {name: self.error_of(rate) for name, rate in rates.items()},
            "power": [
                {"effect": effect, "power": power, "error": self.error_of(power)}
                for effect, power in self.power.items()
            ],
            "detectable": self.detectable,
            "mean_seeds": self.mean_seeds,
        }


def design_of(result: RecordedResults) -> Design:
    """Read the design of a study and, where two seeds have finished, its variances on the main metric."""
    study = result.study
    metric = result.main_metric
    comparisons = result.against_baseline() if result.metrics else []
    base, *arms = [cell.label for cell in result.cells]
    on_test = "test/" + metric.removeprefix("dev/")  # where it will be judged, also before it ran
    judged = on_test if on_test in result.system.metrics else metric
    priors = {result.prior_of(judged, (arm, base)) for arm in arms}
    prior = priors.pop() if len(priors) == 1 else None
    estimates = [comparison.estimate for comparison in comparisons if comparison.estimate is not None]
    variances = [(estimate.variance, estimate.segment_variance) for estimate in estimates]
    assumed = (1.0 if prior is None else prior.variance, 0.0)
    seed_variance, segment_variance = np.mean(variances, axis=0) if variances else assumed
    return Design(
        weights=_weights(result),
        looks=study.looks,
        num_seeds=len(study.seeds),
        alpha=study.analysis.alpha,
        seed_variance=float(seed_variance),
        segment_variance=float(segment_variance),
        is_assumed=not variances and prior is None,
        prior=prior,
    )


def _weights(result: RecordedResults) -> Array:
    """Weights of the cells in the comparisons of the main family, each once."""
    is_whole = result.study.analysis.family == "all_cells"
    questions = result.cell_questions(result.main_metric) if is_whole else []
    # A simulated cell has one metric, so claims between two (worse_metric) cannot be asked of it.
    questions += [claimed for claimed in result.claimed.values() if claimed.second_metric is None]
    comparisons = {
        frozenset(question.labels) if len(question.labels) == 2 else question.labels: question
        for question in questions
    }
    weights = np.zeros((len(comparisons), len(result.cells)))
    for row, question in zip(weights, comparisons.values(), strict=True):
        for term in question.terms:
            row[result.places[term.cell.label]] += term.weight
    return weights


def estimate_validity(design: Design, num_simulations: int) -> Validity:
    """Simulate studies of a design without an effect, and with effects of several sizes.

    Args:
        design: The design.
        num_simulations: Number of simulated studies of each kind.

    Raises:
        ValueError: The design has no comparison, fewer than two seeds, or scores that do not vary.
    """
    num_comparisons = len(design.weights)
    if not num_comparisons or design.num_seeds < 2:
        raise ValueError("nothing to simulate: give at least two cells and two seeds")
    if design.seed_variance + design.segment_variance == 0:
        raise ValueError("nothing to simulate: the scores of the main metric do not vary")
    # The difference that the run's last look detects, at the level of the smallest p-value: the rules
    # correct, whatever the file says.
    level, last = FIRST * design.alpha / num_comparisons, design.run_looks[-1]
    prior_df = design.prior.df if design.prior else 0.0
    levels = dict(zip(design.looks, look_levels(design.looks, level, prior_df), strict=True))
    noise = Estimate(0.0, last, design.seed_variance, prior_df + last - 1, design.segment_variance)
    detectable = smallest_detectable(noise, levels[last])
    effects = [factor * detectable for factor in _EFFECTS]
    rng = np.random.default_rng(RANDOM_SEED)
    shape = (num_simulations, num_comparisons)
    are_decided, are_covered, seeds = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape)
    finds = np.zeros((num_simulations, len(effects)), bool)
    for index in range(num_simulations):
        scores = design.scores(rng)
        for look, are_significant, p_values in _looks_at(design, scores):
            seeds[index, ~are_decided[index]] = look
            are_decided[index] |= are_significant
            are_covered[index] = p_values > design.alpha
        for place, effect in enumerate(effects):
            looks = _looks_at(design, design.with_effect(scores, effect))
            finds[index, place] = any(are_significant[0] for _, are_significant, _ in looks)
    return Validity(
        design=design,
        num_simulations=num_simulations,
        familywise=float(are_decided.any(axis=1).mean()),
        coverage=float(are_covered.mean()),
        power=dict(zip(effects, map(float, finds.mean(axis=0)), strict=True)),
        detectable=detectable,
        mean_seeds=float(seeds.mean()),
    )


def _looks_at(design: Design, scores: Array) -> Iterator[tuple[int, Array, Array]]:
    """Test the comparisons at one look after the other, as the first report of a store does.

    Args:
        design: The design.
        scores: Score of each cell and seed, shape (cells, seeds).

    Yields:
        The look; which comparisons are significant over the looks so far, and their p-values at this look
        alone, both of shape (comparisons,).
    """
    plan = Plan(tuple(range(design.looks[-1])), design.looks)
    taken: list[dict[int, Look]] = [{} for _ in design.weights]
    for number in design.run_looks:
        noise = StudyVariance.of(scores[1:, :number] - scores[0, :number])
        prior = design.prior and applicable(design.prior, noise, number)
        for weights, looks in zip(design.weights, taken, strict=True):
            scale = float(np.abs(weights).sum()) / 2  # 2 where two differences are compared
            scaled = prior and replace(prior, variance=scale * prior.variance)
            estimate = moderated(weights @ scores[:, :number], scaled)
            estimate = replace(estimate, segment_variance=scale * design.segment_variance)
            looks[number] = Look(estimate.difference, estimate.p)
        family = [open_as_one(p_of_looks(plan, looks, design.prior), None) for looks in taken]
        level = FIRST * design.alpha
        are_significant = np.array([p is not None and p <= level for p, _ in holm_either(family)])
        yield number, are_significant, np.array([looks[number].p for looks in taken], dtype=float)
