"""Comparing cells on one metric: a difference, or another weighted sum, and how certain it is.

Defined quantities for S seeds finished in all cells:

| S | per-segment statistics | interval, p | smallest detectable, seeds needed |
|---|---|---|---|
| >= 2 | yes | over seeds and segments | yes |
| >= 2 | no | over seeds only (Student's t) | yes |
| 1 | yes | over segments only: these two trained models, not the two recipes | None |
| 1 | no | None | None |
| 0 | - | None, the difference too | None |

``notes`` gives the reason for whatever is None. Identical systems have p = 1. A quantity without segments
that does not vary over two or more seeds in any cell (a number of parameters) has an exact difference: its
sign is certain, so it needs no p-value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.trials import Array, Measured
from nlgraft.analysis.estimates import resampling
from nlgraft.analysis.estimates.comparison import ONE_SEED, Comparison
from nlgraft.basics.wording import grouped
from nlgraft.evaluation.sufficient import aggregate

_ROUNDED = 1e-12


@dataclass
class Comparer:
    """Compares cells under one set of resamples.

    **Determinism.** The draws depend on the number of segments and samples only, never on which cells are
    compared or in what order.

    Attributes:
        samples: Number of resamples.
        alpha: One minus the confidence of intervals, and the level of a single comparison.
        name_of: What notes call a seed.
    """

    samples: int = 1000
    alpha: float = 0.05
    name_of: Callable[[int], str] = str
    _draws: dict[Measured, Array] = field(default_factory=dict, repr=False)

    def prepare(self, metric: str, measured: Iterable[Measured]) -> None:
        """Bootstrap many trials of one metric in one pass, so that later comparisons find their scores."""
        by_size = grouped(
            (len(trial.segments), trial)
            for trial in measured
            if trial.segments is not None and trial not in self._draws
        )
        for trials in by_size.values():
            statistics = [trial.segments for trial in trials if trial.segments is not None]
            score = partial(aggregate, metric.rpartition("/")[2])
            scores = resampling.bootstrap_scores(statistics, score, self.samples)
            self._draws.update(zip(trials, scores, strict=True))

    def contrast(
        self,
        metric: str,
        a: str,
        b: str,
        terms: Sequence[tuple[float, Mapping[int, Measured]]],
        null: float = 0.0,
        prior: NoisePrior | None = None,
    ) -> Comparison:
        """Compare weighted means of several cells, paired by seed and by segment.

        Args:
            metric: Name of the metric.
            a: Meaning of the positive weights.
            b: Meaning of the negative weights.
            terms: For each cell its weight, summing to zero, and the metric by seed, finished trials only.
            null: Weighted sum under the null hypothesis.
            prior: What is known of the variance of a difference of two of the cells.

        Returns:
            The weighted sum as a difference, without ``p_holm``.
        """
        weights = [weight for weight, _ in terms]
        cells = [
            {seed: trial for seed, trial in trials.items() if math.isfinite(trial.value)}
            for _, trials in terms
        ]
        # Weights sum to zero, so that what cells of one kind have in common cancels out.
        scale = sum(weight**2 for weight in weights) / 2
        prior = prior and replace(prior, variance=scale * prior.variance)
        all_seeds = dict.fromkeys(seed for cell in cells for seed in cell)
        seeds = tuple(seed for seed in all_seeds if all(seed in cell for cell in cells))
        empty = Comparison(
            metric=metric,
            a=a,
            b=b,
            seeds=seeds,
            null=null,
            level=self.alpha,
            prior=prior,
        )
        which = "both" if len(cells) == 2 else "all"
        if not seeds:
            return empty.noted(f"no seed finished in {which} cells")
        if len(seeds) < len(all_seeds):
            shared = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(self.name_of, seeds))}"
            empty = empty.noted(
                f"difference over {shared} alone, which {which} cells finished; means are over all seeds"
            )
        return self._estimated(empty, weights, [[cell[seed] for cell in cells] for seed in seeds])

    def _estimated(
        self,
        empty: Comparison,
        weights: Sequence[float],
        rows: Sequence[Sequence[Measured]],
    ) -> Comparison:
        """Estimate a weighted sum over the cells of each row, a row for each seed."""
        signatures = {trial.signature for row in rows for trial in row}
        if len(signatures) > 1:
            listed = ", ".join(sorted(map(str, signatures)))
            return empty.noted(f"the metric was computed in different ways: {listed}")
        weighed = np.array(weights)
        values = np.array([[trial.value for trial in row] for row in rows])
        differences = values @ weighed
        # Cells that agree leave a rounding error under weights such as 1/3; so do seeds that agree.
        rounding = _ROUNDED * np.abs(values).max()
        differences[np.abs(differences) <= rounding] = 0.0
        if np.ptp(differences) <= rounding:
            differences[:] = differences[0]
        difference = float(differences.mean())
        # One number alone may tie by chance.
        is_comparable = len(weights) == 2 and (len(rows) > 1 or rows[0][0].segments is not None)
        is_same = is_comparable and all(
            # None equals None alone, which numpy's types leave out.
            first.value == second.value and np.array_equal(first.segments, second.segments)  # pyright: ignore[reportArgumentType]
            for first, second in rows
        )
        empty = replace(empty, difference=difference, is_same=is_same)
        shapes = {None if trial.segments is None else trial.segments.shape for row in rows for trial in row}
        # Before the resamples: nothing can be drawn from constants, and their difference is certain.
        is_constant = len(rows) > 1 and shapes == {None} and (values == values[0]).all()
        if difference != empty.null and is_constant:
            ends = (difference, difference)
            return empty.noted("identical for every seed", is_exact=True, scope="seeds", ci=ends)
        if None in shapes or len(shapes) > 1:
            why = "the cells were scored on different segments"
            if None in shapes:
                why = f"{'some trials have ' if len(shapes) > 1 else ''}no per-segment statistics"
            note = f"{why}: the interval and p cover variation over seeds only"
            return self._tested(empty.noted(note, scope="seeds"), differences, None)
        self.prepare(empty.metric, [trial for row in rows for trial in row])
        bootstrapped = np.stack([weighed @ np.stack([self._draws[trial] for trial in row]) for row in rows])
        fixed_seeds = bootstrapped.mean(axis=0)  # these trained models alone: only the segments vary
        comparison = replace(
            empty,
            num_segments=next(shape[0] for shape in shapes if shape),
            scope="seeds and segments" if len(rows) > 1 else "segments",
            p_segments=resampling.p_value(difference - empty.null, fixed_seeds - fixed_seeds.mean()),
        )
        return self._tested(comparison, differences, bootstrapped)

    def _tested(
        self,
        comparison: Comparison,
        differences: Array,
        bootstrapped: Array | None,
    ) -> Comparison:
        """Put in interval, p-value and noise, as far as they are defined."""
        if bootstrapped is None and len(differences) < 2:
            note = "one seed and no segments to resample: no interval and no p-value"
            return comparison.noted(note, scope="nothing")
        draws, estimate = resampling.spread(differences, bootstrapped, self.samples, comparison.prior)
        ci = resampling.interval(estimate.difference, draws, self.alpha)
        estimate = replace(estimate, difference=estimate.difference - comparison.null)
        if bootstrapped is None and estimate.variance == 0 and estimate.difference:
            note = "the difference is identical for every seed, so there is nothing to test"
            return comparison.noted(note, ci=ci)
        comparison = replace(comparison, ci=ci, p=resampling.two_sided_p(estimate, draws))
        if len(differences) == 1:
            return comparison.noted(ONE_SEED)
        if estimate.variance + estimate.segment_variance == 0:
            return comparison.noted("no variation over seeds or segments")
        return replace(comparison, estimate=estimate)
