"""One cell against another on one metric: the difference and how certain it is.

Defined quantities for S seeds finished in both cells:

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from nlgraft.analysis.data.trials import Array, Measured
from nlgraft.analysis.statistics import power, resampling
from nlgraft.analysis.statistics.resampling import Score, Spread
from nlgraft.evaluation.sufficient import aggregate

ONE_SEED = "one seed: the interval and p cover test-set sampling only, not training noise"
_ROUNDED = 1e-12

Test = Literal["paired_bootstrap", "approximate_randomisation"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Cell ``a`` minus cell ``b`` on one metric, or minus a published figure.

    Attributes:
        metric: Name of the metric, e.g. ``test/bleu``.
        a: Label of the first cell.
        b: Label of the second cell, or the published value in its place.
        seeds: Seeds that finished in both cells, over which the comparison is paired.
        null: Difference under the null hypothesis: 0, or that of a claim with a margin.
        num_segments: Segments of the test set, paired too; None when only the seeds could be used.
        difference: Mean over seeds of ``a`` minus ``b``.
        ci: Ends of the 1 - alpha interval of the difference.
        p: Two-sided p-value of the study's test.
        p_bootstrap: The same by paired bootstrap.
        p_randomisation: The same by approximate randomisation.
        p_segments: By paired bootstrap over segments alone: these trained models, as papers report it.
        p_holm: ``p`` adjusted for the study's family of comparisons.
        level: Level that a p-value must reach to decide: alpha, or alpha over the open part of the family.
        seed_variance: Variance between the seeds' differences; None below two seeds or for constants.
        segment_variance: Variance of ``difference`` from the choice of segments.
        scope: Sources of variation in the interval and the p-value.
        trained_once: Names of stages that all seeds and cells share; their noise is not in the interval.
        open_because: Reason why no verdict may rest on the comparison, whatever its p-value; else empty.
        is_exact: True for a difference of constants, which no seed changes.
        notes: Reasons for what is missing or limited, as sentences.
    """

    metric: str
    a: str
    b: str
    seeds: tuple[int, ...] = ()
    null: float = 0.0
    num_segments: int | None = None
    difference: float | None = None
    ci: tuple[float, float] | None = None
    p: float | None = None
    p_bootstrap: float | None = None
    p_randomisation: float | None = None
    p_segments: float | None = None
    p_holm: float | None = None
    level: float = 0.05
    seed_variance: float | None = None
    segment_variance: float = 0.0
    scope: Literal["seeds and segments", "seeds", "segments", "nothing"] = "nothing"
    trained_once: tuple[str, ...] = ()
    open_because: str = ""
    is_exact: bool = False
    notes: tuple[str, ...] = ()

    @property
    def num_seeds(self) -> int:
        """Number of paired seeds."""
        return len(self.seeds)

    @cached_property
    def smallest_detectable(self) -> float | None:
        """True difference that this many seeds detect at ``level`` with probability 0.8."""
        if self.seed_variance is None:
            return None
        return power.smallest_detectable(
            self.seed_variance, self.segment_variance, self.num_seeds, self.level
        )

    @cached_property
    def detectable_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of ``smallest_detectable``: wide where few seeds estimate the noise."""
        if self.seed_variance is None:
            return None
        return power.detectable_interval(
            self.seed_variance, self.segment_variance, self.num_seeds, self.level
        )

    @cached_property
    def seeds_needed(self) -> int | None:
        """Fewest seeds that detect a true difference as large as the observed one with probability 0.8.

        None if ``power.MAX_SEEDS`` are not enough, or if the variances are unknown.
        """
        if self.seed_variance is None or self.difference is None:
            return None
        return power.seeds_needed(
            self.difference - self.null, self.seed_variance, self.segment_variance, self.num_seeds, self.level
        )

    def is_significant(self, alpha: float, *, is_corrected: bool) -> bool:
        """True if the sign of the difference is certain at level alpha, given training and test noise.

        Always true for an exact difference; never with fewer than two seeds, whose p-value says nothing about
        training, nor where ``open_because`` gives a reason.
        """
        if self.open_because:
            return False
        if self.is_exact:
            return True
        p = self.p_holm if is_corrected else self.p
        return self.num_seeds >= 2 and p is not None and p <= alpha

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON values, rounded to ten significant digits."""
        return {
            "difference": rounded(self.difference),
            "ci": _rounded_ends(self.ci),
            "p": rounded(self.p),
            "p_holm": rounded(self.p_holm),
            "p_bootstrap": rounded(self.p_bootstrap),
            "p_randomisation": rounded(self.p_randomisation),
            "p_segments": rounded(self.p_segments),
            "level": rounded(self.level),
            "smallest_detectable": rounded(self.smallest_detectable),
            "detectable_ci": _rounded_ends(self.detectable_ci),
            "seeds_needed": self.seeds_needed,
            "num_seeds": self.num_seeds,
            "num_segments": self.num_segments,
            "scope": self.scope,
            "trained_once": list(self.trained_once),
            "open_because": self.open_because,
            "is_exact": self.is_exact,
            "notes": list(self.notes),
        }


def rounded(value: float | None) -> float | None:
    """Round to ten significant digits, which do not depend on the order of summation.

    Returns:
        None for None and for values that JSON cannot express.
    """
    return None if value is None or not math.isfinite(value) else float(f"{value:.10g}")


def _rounded_ends(ends: tuple[float, float] | None) -> list[float | None] | None:
    return None if ends is None else [rounded(end) for end in ends]


@dataclass
class Comparer:
    """Compares cells under one set of resamples.

    **Determinism.** The draws depend on the number of segments and samples only, never on which cells are
    compared or in what order.

    Attributes:
        test: The test that gives ``Comparison.p``.
        samples: Number of resamples.
        alpha: One minus the confidence of intervals, and the level of a single comparison.
    """

    test: Test = "paired_bootstrap"
    samples: int = 1000
    alpha: float = 0.05
    _draws: dict[Measured, Array] = field(default_factory=dict, repr=False)

    def prepare(self, metric: str, measured: Iterable[Measured]) -> None:
        """Bootstrap many trials of one metric in one pass, so that later comparisons find their scores."""
        by_size: dict[int, list[Measured]] = {}
        for trial in measured:
            if trial.segments is not None and trial not in self._draws:
                by_size.setdefault(len(trial.segments), []).append(trial)
        for trials in by_size.values():
            statistics = [trial.segments for trial in trials if trial.segments is not None]
            scores = resampling.bootstrap_scores(statistics, _score(metric), self.samples)
            self._draws.update(zip(trials, scores, strict=True))

    def compare(
        self,
        metric: str,
        a: str,
        a_trials: Mapping[int, Measured],
        b: str,
        b_trials: Mapping[int, Measured],
        null: float = 0.0,
    ) -> Comparison:
        """Compare two cells, paired by seed and by segment.

        Args:
            metric: Name of the metric.
            a: Label of the first cell.
            a_trials: The metric by seed, finished trials only.
            b: Label of the second cell.
            b_trials: Likewise.
            null: Difference under the null hypothesis.

        Returns:
            The comparison without ``p_holm``.
        """
        sides = (_finite(a_trials), _finite(b_trials))
        empty = Comparison(metric=metric, a=a, b=b, null=null, level=self.alpha)
        return self._weigh(empty, (1.0, -1.0), sides, "finished in only one of the two cells")

    def contrast(
        self,
        metric: str,
        a: str,
        b: str,
        terms: Sequence[tuple[float, Mapping[int, Measured]]],
        null: float = 0.0,
    ) -> Comparison:
        """Compare weighted means of several cells, paired by seed and by segment.

        Args:
            metric: Name of the metric.
            a: Meaning of the positive weights.
            b: Meaning of the negative weights.
            terms: For each cell its weight, summing to zero, and the metric by seed, finished trials only.
            null: Weighted sum under the null hypothesis.

        Returns:
            The weighted sum as a difference, without ``p_holm``. ``p`` is the bootstrap's, as there are no
            two outputs to exchange.
        """
        empty = Comparison(metric=metric, a=a, b=b, null=null, level=self.alpha)
        weights, cells = zip(*((weight, _finite(trials)) for weight, trials in terms), strict=True)
        return self._weigh(empty, weights, cells, f"did not finish in all of the {len(cells)} cells")

    def _weigh(
        self,
        empty: Comparison,
        weights: Sequence[float],
        cells: Sequence[Mapping[int, Measured]],
        missing: str,
    ) -> Comparison:
        every = dict.fromkeys(seed for cell in cells for seed in cell)
        seeds = tuple(seed for seed in every if all(seed in cell for cell in cells))
        empty = replace(empty, seeds=seeds)
        if not seeds:
            note = f"no seed finished in {'both' if len(cells) == 2 else 'all'} cells"
            return replace(empty, notes=(note,))
        left_out = [str(seed) for seed in every if seed not in seeds]
        word = "seed" if len(left_out) == 1 else "seeds"
        notes = [f"{word} {', '.join(left_out)} {missing}"] if left_out else []
        rows = [[cell[seed] for cell in cells] for seed in seeds]
        signatures = {trial.signature for row in rows for trial in row}
        if len(signatures) > 1:
            listed = ", ".join(sorted(map(str, signatures)))
            return replace(empty, notes=(*notes, f"the metric was computed in different ways: {listed}"))
        weighed = np.array(weights)
        values = np.array([[trial.value for trial in row] for row in rows])
        differences = values @ weighed
        # Equal cells under weights such as 1/3 leave a rounding error, not a difference.
        differences[np.abs(differences) <= _ROUNDED * np.abs(values).max()] = 0.0
        empty = replace(empty, difference=float(differences.mean()))
        reason = _why_unpaired(rows)
        if empty.difference != empty.null and _are_constant(rows):
            low = high = _known(empty.difference)
            notes.append("exact: identical for every seed")
            return replace(empty, is_exact=True, scope="seeds", ci=(low, high), notes=tuple(notes))
        if reason is not None:
            return self._by_seeds(empty, differences, [*notes, reason])
        self.prepare(empty.metric, [trial for row in rows for trial in row])
        bootstrapped = np.stack([weighed @ np.stack([self._draws[trial] for trial in row]) for row in rows])
        num_segments = len(_segments(rows[0][0]))
        exchanged = None
        if len(cells) == 2:
            left, right = (np.stack([_segments(row[side]) for row in rows]) for side in (0, 1))
            exchanged = resampling.randomised_differences(left, right, _score(empty.metric), self.samples)
        return self._by_segments(empty, differences, bootstrapped, exchanged, num_segments, notes)

    def against_value(
        self, metric: str, a: str, a_trials: Mapping[int, Measured], value: float, margin: float
    ) -> Comparison:
        """Compare the mean of a cell with the published figure of a single run on the same test set.

        The published run varies as ours do, hence a prediction interval: with S seeds of variance V the
        difference has variance V (1 + 1 / S). Segments add nothing, as both were scored on the same ones.

        Args:
            metric: Name of the metric.
            a: Label of the cell.
            a_trials: The metric by seed, finished trials only.
            value: The published figure.
            margin: Difference that does not matter.

        Returns:
            The comparison; a small ``p`` says that the difference certainly is on the side of the margin on
            which it lies, within or beyond.
        """
        a_trials = _finite(a_trials)
        found = Comparison(
            metric=metric, a=a, b=f"published {value:g}", seeds=tuple(a_trials), level=self.alpha
        )
        if not a_trials:
            return replace(found, notes=("no seed finished",))
        values = np.array([trial.value for trial in a_trials.values()])
        found = replace(found, difference=float(values.mean()) - value)
        if len(values) < 2:
            return replace(found, notes=("one seed: no interval and no p-value",))
        difference, dof = _known(found.difference), len(values) - 1
        scale = float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        if scale == 0:
            return replace(found, is_exact=True, scope="seeds", ci=(difference, difference))
        reach = scale * float(stdtrit(dof, 1 - self.alpha / 2))
        p = resampling.equivalence_p(difference, scale, dof, margin)
        return replace(found, p=p, scope="seeds", ci=(difference - reach, difference + reach))

    def _by_seeds(self, found: Comparison, differences: Array, notes: list[str]) -> Comparison:
        if len(differences) < 2:
            notes.append("one seed and no segments to resample: no interval and no p-value")
            return replace(found, notes=tuple(notes))
        noise = resampling.spread(differences, None, self.samples)
        found = replace(found, scope="seeds", ci=self._interval(found, noise))
        if noise.seed_variance == 0 and found.difference != found.null:
            notes.append("the difference is identical for every seed, so there is nothing to test")
            return replace(found, notes=tuple(notes))
        p = resampling.p_value(_known(found.difference) - found.null, noise.draws)
        found = replace(found, p=p, p_bootstrap=p, p_randomisation=p)
        return _with_variances(found, noise, notes)

    def _by_segments(
        self,
        found: Comparison,
        differences: Array,
        bootstrapped: Array,
        exchanged: Array | None,
        num_segments: int | None,
        notes: list[str],
    ) -> Comparison:
        difference = _known(found.difference) - found.null
        noise = resampling.spread(differences, bootstrapped, self.samples)
        p_bootstrap = resampling.p_value(difference, noise.draws)
        p_randomisation = None
        if exchanged is not None:
            exchange_noise = resampling.spread(differences, exchanged, self.samples)
            p_randomisation = resampling.p_value(difference, exchange_noise.draws)
        fixed_seeds = bootstrapped.mean(axis=0)
        is_randomised = self.test == "approximate_randomisation" and p_randomisation is not None
        found = replace(
            found,
            num_segments=num_segments,
            scope="seeds and segments" if len(differences) > 1 else "segments",
            ci=self._interval(found, noise),
            p=p_randomisation if is_randomised else p_bootstrap,
            p_bootstrap=p_bootstrap,
            p_randomisation=p_randomisation,
            p_segments=resampling.p_value(difference, fixed_seeds - fixed_seeds.mean()),
        )
        return _with_variances(found, noise, notes)

    def _interval(self, found: Comparison, noise: Spread) -> tuple[float, float]:
        return resampling.interval(_known(found.difference), noise.draws, self.alpha)


def _with_variances(found: Comparison, noise: Spread, notes: list[str]) -> Comparison:
    if noise.seed_variance is None:
        notes.append(ONE_SEED)
    elif noise.seed_variance + noise.segment_variance == 0:
        notes.append("no variation over seeds or segments")
    else:
        found = replace(found, seed_variance=noise.seed_variance, segment_variance=noise.segment_variance)
    return replace(found, notes=tuple(notes))


def _known(difference: float | None) -> float:
    assert difference is not None
    return difference


def _score(metric: str) -> Score:
    return partial(aggregate, metric.rpartition("/")[2])


def _finite(trials: Mapping[int, Measured]) -> dict[int, Measured]:
    return {seed: trial for seed, trial in trials.items() if math.isfinite(trial.value)}


def _segments(trial: Measured) -> Array:
    assert trial.segments is not None
    return trial.segments


def _are_constant(rows: Sequence[Sequence[Measured]]) -> bool:
    """True if no cell varies over its seeds or has segments to resample."""
    values = [[(trial.value, trial.segments is None) for trial in row] for row in rows]
    return len(rows) > 1 and all(row == values[0] for row in values) and all(one for _, one in values[0])


def _why_unpaired(rows: Sequence[Sequence[Measured]]) -> str | None:
    """Say why segments cannot be paired; None if they can."""
    shapes = {None if trial.segments is None else trial.segments.shape for row in rows for trial in row}
    if shapes == {None}:
        reason = "no per-segment statistics"
    elif None in shapes:
        reason = "some trials have no per-segment statistics"
    elif len(shapes) > 1:
        reason = "the cells were scored on different segments"
    else:
        return None
    return f"{reason}: the interval and p cover variation over seeds only"
