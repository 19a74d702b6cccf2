"""How a study's design behaves: error rates, coverage and power, by simulation.

Variances are those of the study's comparisons with the baseline, averaged; before it ran, a difference
between two cells has deviation 1 over seeds and the test set adds nothing, so that effects are in units of
that deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.power import smallest_detectable
from nlgraft.analysis.estimates.question import SIGNS
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.policy.departures import (
    Course,
    Departure,
    Design,
    Outcome,
    Rate,
    outcomes,
    run_as_declared,
)
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.study.data.claim import claims_of
from nlgraft.study.data.study import Study

_FEW = 2
_FALL = 20.0


@dataclass(frozen=True)
class Validity:
    """Rates over simulated studies.

    Attributes:
        design: The design.
        num_simulations: Number of simulated studies of each kind.
        single: Share of all comparisons, in studies without any effect, that are significant.
        power: Share of studies that find an effect of one cell of the first comparison, by its size.
        detectable: The size that is meant to be found in four of five studies.
        mean_seeds: Seeds per comparison on average, without any effect.
        outcomes: What happens to the study as declared, and in other courses of events.
    """

    design: Design
    num_simulations: int
    single: float
    power: dict[float, float]
    detectable: float
    mean_seeds: float
    outcomes: tuple[Outcome, ...]

    @property
    def familywise(self) -> float:
        """Share of studies, as declared and without any effect, in which some comparison is significant."""
        return self.outcomes[0].errs["file"].value

    @property
    def coverage(self) -> float:
        """Share of intervals of the study as declared that contain the true difference."""
        assert self.outcomes[0].coverage is not None
        return self.outcomes[0].coverage.value

    @property
    def notes(self) -> list[str]:
        """What the simulation leaves out, and reasons why the design can decide nothing."""
        design = self.design
        notes = []
        if design.has_margin:
            notes.append(
                "the margin is not simulated: with it a difference is found a little less often, and how "
                "often cells are called equal is not estimated"
            )
        if design.fall == 0:
            notes.append(
                "collapsed seeds lose nothing here: no cell scores better than a trivial output, so train "
                "longer before you rely on this simulation"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return the rates as JSON values."""
        num = self.num_simulations
        return {
            "comparisons": len(self.design.weights),
            "is_corrected": self.design.is_corrected,
            "looks": list(self.design.looks),
            "alpha": self.design.alpha,
            "seed_variance": self.design.seed_variance,
            "segment_variance": self.design.segment_variance,
            "is_assumed": self.design.is_assumed,
            "prior": None if self.design.prior is None else asdict(self.design.prior),
            "fall": self.design.fall,
            "simulations": num,
            "familywise_error": self.familywise,
            "single_error": self.single,
            "coverage": self.coverage,
            "power": [
                {"effect": effect, "power": power, "error": Rate(power, num).error}
                for effect, power in self.power.items()
            ],
            "detectable": self.detectable,
            "mean_seeds": self.mean_seeds,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "notes": self.notes,
        }


def design_of(result: ComparedResults) -> Design:
    """Read the design of a study and, where two seeds have finished, its variances on the main metric."""
    study = result.study
    metric = result.main_metric
    comparisons = [result.compare(cell.cell, metric=metric) for cell in result.cells[1:] if result.metrics]
    base, *arms = [cell.cell.label for cell in result.cells]
    on_test = "test/" + metric.removeprefix("dev/")  # where it will be judged, also before it ran
    judged = on_test if on_test in result.system.metrics else metric
    priors = {result.prior_of(judged, (arm, base)) for arm in arms}
    prior = priors.pop() if len(priors) == 1 else None
    variances = [
        (comparison.seed_variance, comparison.segment_variance)
        for comparison in comparisons
        if comparison.seed_variance is not None
    ]
    assumed = (1.0 if prior is None else prior.variance, 0.0)
    seed_variance, segment_variance = np.mean(variances, axis=0) if variances else assumed
    return Design(
        weights=_weights(result),
        looks=study.looks,
        num_seeds=len(study.seeds),
        alpha=study.analysis.alpha,
        is_corrected=result.is_corrected,
        seed_variance=float(seed_variance),
        segment_variance=float(segment_variance),
        is_assumed=not variances and prior is None,
        fall=_fall(result) if variances else _FALL,
        has_margin=bool(study.analysis.margin),
        prior=prior,
    )


def estimate_validity(design: Design, num_simulations: int, departure: Departure | None = None) -> Validity:
    """Simulate studies of a design without an effect, and with effects of several sizes.

    Args:
        design: The design.
        num_simulations: Number of simulated studies of each kind.
        departure: How far they depart from what is declared; None if they do not.

    Raises:
        ValueError: The design has no comparison, fewer than two seeds, or scores that do not vary.
    """
    if not len(design.weights) or design.num_seeds < _FEW:
        raise ValueError("nothing to simulate: give at least two cells and two seeds")
    if design.seed_variance + design.segment_variance == 0:
        raise ValueError("nothing to simulate: the scores of the main metric do not vary")
    level = FIRST * design.alpha / len(design.weights)  # the rules correct, whatever the file says
    prior_df = design.prior.df if design.prior else 0.0
    levels = dict(zip(design.looks, look_levels(design.looks, level, prior_df), strict=True))
    last = design.run_looks[-1]
    detectable = smallest_detectable(
        design.seed_variance, design.segment_variance, last, prior_df + last - 1, levels.get(last, level)
    )
    declared = run_as_declared(
        design,
        num_simulations,
        [factor * detectable for factor in (1.0, 0.5, 1.5, 2.0)],
        Course("as declared", "run once, as declared"),
    )
    others = [] if departure is None else outcomes(design, num_simulations, detectable, departure)
    return Validity(
        design,
        num_simulations,
        declared.single,
        dict(sorted(declared.power.items())),
        detectable,
        declared.mean_seeds,
        (declared.outcome, *others),
    )


def _fall(result: ComparedResults) -> float:
    """Distance from the best mean to a trivial score: of a trivial output, else 0, or twice the loss."""
    name = result.main_metric
    means = [mean for cell in result.cells if (mean := cell.mean(name)) is not None]
    if result.system.metrics[name].direction == "minimize":
        return abs(min(means))
    floor = result.trivial.value if result.trivial is not None else 0.0
    return max(0.0, max(means) - floor)


def _weights(result: ComparedResults) -> Array:
    """Weights of the cells in the comparisons of the main family."""
    labels = [cell.cell.label for cell in result.cells]
    comparisons = _comparisons(result, result.study, labels)
    weights = np.zeros((len(comparisons), len(labels)))
    for row, cells in zip(weights, comparisons, strict=True):
        for sign, label in zip(SIGNS, cells, strict=False):
            row[labels.index(label)] += sign
    return weights


def _comparisons(result: ComparedResults, study: Study, labels: Sequence[str]) -> list[tuple[str, ...]]:
    pairs = [(label, labels[0]) for label in labels[1:]] if study.analysis.family == "all_cells" else []
    # a simulated cell has one metric, so claims between two (worse_metric) cannot be asked of it
    claimed = [
        tuple(result.cell(text).cell.label for text in claim.cells)
        for claim in claims_of(study)
        if claim.worse_metric is None
    ]
    comparisons = [*pairs, *claimed]
    return list({frozenset(cells) if len(cells) == _FEW else cells: cells for cells in comparisons}.values())
