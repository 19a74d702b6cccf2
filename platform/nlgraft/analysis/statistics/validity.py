"""How a study's design behaves: error rates, coverage and power, by simulation.

A simulated replicate is its cell's true mean plus training noise, independent for every seed, plus test-set
noise, the same for all seeds of a cell. Everything else is the study's: its comparisons, seeds, looks,
correction and level. Variances are those of the study's comparisons with the baseline, averaged; before it
ran, a difference between two cells has deviation 1 over seeds and the test set adds nothing, so that effects
are in units of that deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.statistics.compared import ComparedResults
from nlgraft.analysis.statistics.power import predictive_power, smallest_detectable
from nlgraft.analysis.statistics.resampling import normal_p
from nlgraft.analysis.statistics.sequential import FUTILE
from nlgraft.analysis.statistics.spending import look_levels, overall_p
from nlgraft.errors import NlgraftError
from nlgraft.study.data.claim import claims_of
from nlgraft.study.data.study import Study

RANDOM_SEED = 20261122
_SIGNS = (1.0, -1.0, -1.0, 1.0)
_FEW = 2


@dataclass(frozen=True)
class Design:
    """What a simulation needs to know of a study.

    Attributes:
        weights: Weights of the cells in each comparison, shape (comparisons, cells).
        looks: Numbers of seeds at which results are tested; the last is the number of seeds.
        alpha: Level.
        is_corrected: True with Holm's correction.
        seed_variance: Variance between the seeds' differences of two cells.
        segment_variance: Variance of the difference of two cells from the choice of segments.
        is_assumed: True if the variances are assumed.
    """

    weights: Array
    looks: tuple[int, ...]
    alpha: float
    is_corrected: bool
    seed_variance: float
    segment_variance: float
    is_assumed: bool


@dataclass(frozen=True)
class Validity:
    """Rates over simulated studies.

    Attributes:
        design: The design.
        num_simulations: Number of simulated studies of each kind.
        familywise: Share of studies without any effect in which some comparison is significant.
        single: Share of all comparisons in those studies that are significant.
        coverage: Share of intervals that contain the true difference.
        power: Share of studies that find an effect of the first comparison's first cell, by its size.
        mean_seeds: Seeds per comparison on average, without any effect.
    """

    design: Design
    num_simulations: int
    familywise: float
    single: float
    coverage: float
    power: dict[float, float]
    mean_seeds: float

    def to_json(self) -> dict[str, Any]:
        """Return the rates as JSON values."""
        return {
            "comparisons": len(self.design.weights),
            "looks": list(self.design.looks),
            "alpha": self.design.alpha,
            "seed_variance": self.design.seed_variance,
            "segment_variance": self.design.segment_variance,
            "is_assumed": self.design.is_assumed,
            "simulations": self.num_simulations,
            "familywise_error": self.familywise,
            "single_error": self.single,
            "coverage": self.coverage,
            "power": [{"effect": effect, "power": power} for effect, power in self.power.items()],
            "mean_seeds": self.mean_seeds,
        }


def design_of(result: ComparedResults) -> Design:
    """Read the design of a study and, where two seeds have finished, its variances on the main metric.

    Raises:
        NlgraftError: The study may be looked at any time, so it has no fixed numbers of seeds.
    """
    study = result.study
    if study.is_anytime:
        raise NlgraftError(
            "sequential.kind: 'anytime' cannot be simulated here, which takes fixed seeds or planned looks; "
            "docs/validity.md has its power by the number of seeds"
        )
    metric = result.main_metric
    found = [result.compare(cell.cell, metric=metric) for cell in result.cells[1:] if result.metrics]
    known = [(one.seed_variance, one.segment_variance) for one in found if one.seed_variance is not None]
    seed_variance, segment_variance = np.mean(known, axis=0) if known else (1.0, 0.0)
    return Design(
        _weights(result),
        tuple(study.planned_looks.looks) if study.planned_looks is not None else (len(study.seeds),),
        study.analysis.alpha,
        result.is_corrected,
        float(seed_variance),
        float(segment_variance),
        not known,
    )


def estimate_validity(design: Design, num_simulations: int) -> Validity:
    """Simulate studies of a design without an effect, and with effects of several sizes.

    Raises:
        ValueError: The design has no comparison or fewer than two seeds.
    """
    if not len(design.weights) or design.looks[0] < _FEW:
        raise ValueError("nothing to simulate: give at least two cells and two seeds")
    level = design.alpha / (len(design.weights) if design.is_corrected else 1)
    detectable = smallest_detectable(
        design.seed_variance,
        design.segment_variance,
        design.looks[-1],
        look_levels(design.looks, level)[-1],
    )
    nothing = _Simulation(design, num_simulations, 0.0)
    powers = {}
    for factor in (0.5, 1.0, 1.5, 2.0):
        found = _Simulation(design, num_simulations, factor * detectable)
        powers[factor * detectable] = float(found.is_significant[:, 0].mean())
    return Validity(
        design,
        num_simulations,
        float(nothing.is_significant.any(axis=1).mean()),
        float(nothing.is_significant.mean()),
        float(nothing.is_covered.mean()),
        powers,
        float(nothing.num_seeds.mean()),
    )


class _Simulation:
    """Studies of one design in which the first cell of the first comparison has an effect.

    Attributes:
        is_significant: Shape (studies, comparisons).
        is_covered: True where the interval over all seeds contains the true difference, same shape.
        num_seeds: Seeds of each comparison, same shape.
    """

    def __init__(self, design: Design, num_simulations: int, effect: float) -> None:
        rng = np.random.default_rng(RANDOM_SEED)
        num_comparisons, num_cells = design.weights.shape
        truth = np.zeros(num_cells)
        truth[np.argmax(design.weights[0])] = effect
        # The design has the variance of a difference between two cells; each cell carries half of it.
        seeds = rng.standard_normal((num_simulations, num_cells, design.looks[-1]))
        segments = rng.standard_normal((num_simulations, num_cells, 1))
        values = (
            truth[:, None]
            + seeds * np.sqrt(design.seed_variance / 2)
            + segments * np.sqrt(design.segment_variance / 2)
        )
        self._design = design
        self._differences = np.einsum("mc,scn->smn", design.weights, values)
        self._true = design.weights @ truth
        # variance of a comparison's segment noise, in units of that of two cells
        self._share = np.square(design.weights).sum(axis=1) / 2
        shape = (num_simulations, num_comparisons)
        self.num_seeds = np.full(shape, design.looks[0])
        self.is_significant = np.zeros(shape, dtype=bool)
        self.is_covered = np.zeros(shape, dtype=bool)
        self._run()

    def _run(self) -> None:
        design = self._design
        overall = np.ones(self.is_significant.shape)
        is_open = np.ones_like(self.is_significant)
        for index, look in enumerate(design.looks):
            p = self._p_values(look, 0.0)
            one = overall_p(design.looks, {look: p}) if len(design.looks) > 1 else p
            overall = np.where(is_open, np.minimum(overall, one), overall)
            covered = self._p_values(look, self._true) > design.alpha
            self.is_covered = np.where(is_open, covered, self.is_covered)
            self.num_seeds = np.where(is_open, look, self.num_seeds)
            adjusted = _holm(overall) if design.is_corrected else overall
            self.is_significant = adjusted <= design.alpha
            if index + 1 < len(design.looks):
                # Stopped comparisons keep their seeds and p-value, as cells do in a study.
                is_open &= ~self.is_significant & (self._chances(look) >= FUTILE)

    def _p_values(self, look: int, null: Array | float) -> Array:
        part = self._differences[..., :look]
        shifted, variance = part.mean(axis=-1) - null, part.var(axis=-1, ddof=1)
        columns = [
            normal_p(shifted[:, m], variance[:, m], self._design.segment_variance * share, look)
            for m, share in enumerate(self._share)
        ]
        return np.stack(columns, axis=1)

    def _chances(self, look: int) -> Array:
        """Predict power at the level of the last look, as `SequentialResults` does."""
        design = self._design
        part = self._differences[..., :look]
        num_open = np.maximum(1, (~self.is_significant).sum(axis=1)) if design.is_corrected else 1
        counts = np.broadcast_to(num_open, len(part))
        levels = {int(n): look_levels(design.looks, design.alpha / n)[-1] for n in np.unique(counts)}
        level = np.array([levels[int(n)] for n in counts])[:, None]
        return predictive_power(
            part.mean(axis=-1),
            part.var(axis=-1, ddof=1),
            design.segment_variance * self._share,
            look,
            design.looks[-1],
            level,
        )


def _holm(p_values: Array) -> Array:
    """Adjust p-values after Holm, study by study, shape (studies, comparisons)."""
    order = np.argsort(p_values, axis=1)
    factors = np.arange(p_values.shape[1], 0, -1)
    rising = np.maximum.accumulate(np.take_along_axis(p_values, order, axis=1) * factors, axis=1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(rising, 1.0), axis=1)
    return adjusted


def _weights(result: ComparedResults) -> Array:
    """Weights of the cells in the comparisons of the main family."""
    labels = [found.cell.label for found in result.cells]
    asked = _asked(result, result.study, labels)
    weights = np.zeros((len(asked), len(labels)))
    for row, cells in zip(weights, asked, strict=True):
        for sign, label in zip(_SIGNS, cells, strict=False):
            row[labels.index(label)] += sign
    return weights


def _asked(result: ComparedResults, study: Study, labels: Sequence[str]) -> list[tuple[str, ...]]:
    pairs = [(label, labels[0]) for label in labels[1:]] if study.analysis.family == "all_cells" else []
    # a simulated cell has one metric, so claims between two (worse_metric) cannot be asked of it
    claimed = [
        tuple(result.cell(text).cell.label for text in claim.cells)
        for claim in claims_of(study)
        if claim.is_ordering and claim.worse_metric is None
    ]
    found = [*pairs, *claimed]
    return list({frozenset(cells) if len(cells) == _FEW else cells: cells for cells in found}.values())
