"""Simulated studies of one design, all at once: which comparisons are decided, and which intervals hold.

A simulated replicate is its cell's true mean plus training noise, independent for every seed, plus test-set
noise, the same for all seeds of a cell. Everything else is the study's: its comparisons, seeds, looks,
correction and level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.statistics.anytime import half_width
from nlgraft.analysis.statistics.power import predictive_power
from nlgraft.analysis.statistics.resampling import normal_p
from nlgraft.analysis.statistics.sequential import FUTILE
from nlgraft.analysis.statistics.spending import look_levels, overall_p

RANDOM_SEED = 20261122
_TINY = 1e-300


@dataclass(frozen=True)
class Design:
    """What a simulation needs to know of a study.

    Attributes:
        weights: Weights of the cells in each comparison, shape (comparisons, cells), the baseline first.
        looks: Numbers of seeds at which results are tested; the last is the number of seeds.
        alpha: Level.
        is_corrected: True with Holm's correction.
        seed_variance: Variance between the seeds' differences of two cells.
        segment_variance: Variance of the difference of two cells from the choice of segments.
        is_assumed: True if the variances are assumed.
        fall: Distance from a cell's mean to the score of a collapsed seed.
        is_anytime: True if the tests hold at every number of seeds.
        has_margin: True if the study declares a difference too small to matter, which is not simulated.
    """

    weights: Array
    looks: tuple[int, ...]
    alpha: float
    is_corrected: bool
    seed_variance: float
    segment_variance: float
    is_assumed: bool
    fall: float = 20.0
    is_anytime: bool = False
    has_margin: bool = False

    @property
    def changed(self) -> int:
        """Index of the cell that has the effect: of the first comparison, and not the baseline."""
        return 1 + int(np.flatnonzero(self.weights[0, 1:])[0])


@dataclass(frozen=True)
class Trouble:
    """What may go wrong with the trainings of a study.

    Attributes:
        collapse: Share of seeds that end at a trivial score.
        pretraining: Variance of a difference from the one pretraining that all seeds of a cell share, in
            units of that between seeds.
    """

    collapse: float = 0.0
    pretraining: float = 0.0


class SimulatedStudies:
    """Studies of one design in which one cell of the first comparison has an effect.

    Attributes:
        is_significant: Shape (studies, comparisons).
        is_covered: True where the interval over all seeds contains the true difference, same shape.
        num_seeds: Seeds of each comparison, same shape; at any time, those at which it was decided.
    """

    def __init__(
        self, design: Design, num_studies: int, effect: float, trouble: Trouble | None = None
    ) -> None:
        trouble = trouble or Trouble()
        num_comparisons, num_cells = design.weights.shape
        truth = np.zeros(num_cells)
        truth[design.changed] = effect
        values = _draw(design, num_studies, truth, trouble)
        self._design = design
        self._differences = np.einsum("mc,scn->smn", design.weights, values)
        # Collapsed seeds have one score, whatever the cell.
        self._true = design.weights @ truth * (1 - trouble.collapse)
        # variance of a comparison's segment noise, in units of that of two cells
        self._share = np.square(design.weights).sum(axis=1) / 2
        shape = (num_studies, num_comparisons)
        self.num_seeds = np.full(shape, design.looks[0])
        self.is_significant = np.zeros(shape, dtype=bool)
        self.is_covered = np.zeros(shape, dtype=bool)
        if design.is_anytime:
            self._run_any_time()
        else:
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

    def _run_any_time(self) -> None:
        """Look after every seed; a comparison that is decided once stays so."""
        is_open = np.ones_like(self.is_significant)
        for look in self._design.looks:
            self.num_seeds = np.where(is_open, look, self.num_seeds)
            widths = self._widths(look, self._design.alpha)
            covered = np.abs(self._moments(look)[0] - self._true) <= widths
            self.is_covered = np.where(is_open, covered, self.is_covered)
            self.is_significant |= self._beyond(look)
            is_open &= ~self.is_significant

    def _beyond(self, look: int) -> NDArray[np.bool_]:
        """Decide by Holm's procedure: the smallest p-value of m open ones at alpha / m, and so on."""
        design, size = self._design, np.abs(self._moments(look)[0])
        if not design.is_corrected:
            return size >= self._widths(look, design.alpha)
        num = size.shape[1]
        # The number of open comparisons at which each one would still be decided.
        most = sum(size >= self._widths(look, design.alpha / number) for number in range(1, num + 1))
        found: NDArray[np.bool_] = np.zeros(size.shape, dtype=bool)
        for _ in range(num):
            found = most >= num - found.sum(axis=1, keepdims=True)
        return found

    def _widths(self, look: int, level: float) -> Array:
        _, variance = self._moments(look)
        noise = self._design.segment_variance * self._share
        columns = [
            np.broadcast_to(half_width(look, variance[:, m], one, math.log(level)), len(variance))
            for m, one in enumerate(noise)
        ]
        return np.stack(columns, axis=1)

    def _moments(self, look: int) -> tuple[Array, Array]:
        """Return means over seeds and variances between them, where cells are equal a tiny one."""
        part = self._differences[..., :look]
        return part.mean(axis=-1), np.maximum(part.var(axis=-1, ddof=1), _TINY)

    def _p_values(self, look: int, null: Array | float) -> Array:
        means, variance = self._moments(look)
        shifted = means - null
        columns = [
            normal_p(shifted[:, m], variance[:, m], self._design.segment_variance * share, look)
            for m, share in enumerate(self._share)
        ]
        return np.stack(columns, axis=1)

    def _chances(self, look: int) -> Array:
        """Predict power at the level of the last look, as `SequentialResults` does."""
        design = self._design
        means, variance = self._moments(look)
        num_open = np.maximum(1, (~self.is_significant).sum(axis=1)) if design.is_corrected else 1
        counts = np.broadcast_to(num_open, len(means))
        levels = {int(n): look_levels(design.looks, design.alpha / n)[-1] for n in np.unique(counts)}
        level = np.array([levels[int(n)] for n in counts])[:, None]
        return predictive_power(
            means,
            variance,
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


def _draw(design: Design, num_studies: int, truth: Array, trouble: Trouble) -> Array:
    """Draw scores, shape (studies, cells, seeds)."""
    rng = np.random.default_rng(RANDOM_SEED)
    shape = (num_studies, len(truth), design.looks[-1])
    # The design has the variance of a difference between two cells; each cell carries half of it.
    seeds = rng.standard_normal(shape) * np.sqrt(design.seed_variance / 2)
    once = rng.standard_normal((*shape[:2], 2)) * np.sqrt(
        [design.segment_variance / 2, trouble.pretraining * design.seed_variance / 2]
    )
    values = truth[:, None] + seeds + once.sum(axis=-1, keepdims=True)
    return np.where(rng.random(shape) < trouble.collapse, -design.fall, values)
