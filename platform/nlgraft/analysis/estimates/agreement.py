"""Do small studies order the arms as a large one does: decision accuracy (DataDecide, Magnusson et al. 2025).

Of all pairs of arms, the share that the means over seeds at a small scale order as those at the largest one;
a tie counts half, and so do guesses. The interval is a bootstrap over seeds, drawn for each scale apart and
for all arms of a scale together, which are paired by seed. It tells what other seeds would have shown of
*these* arms, and is too narrow with two or three. Arms are not drawn: their pairs depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.comparison import rounded_all
from nlgraft.basics.errors import DataError, NlgraftError

if TYPE_CHECKING:
    import pandas as pd

_NUM_SAMPLES = 10_000
_RANDOM_SEED = 20261128


@dataclass(frozen=True)
class ScaleAgreement:
    """How far a scale orders the arms by one metric as the largest scale does by the target.

    Attributes:
        scale: Name of the variant.
        metric: Metric by which the scale orders the arms.
        share: Decision accuracy, 0 to 1.
        ci: Interval of the share over seeds; None where a scale has fewer than two.
        num_arms: Arms with scores at both scales.
        num_seeds: Seeds that all these arms have, at this scale and at the largest one.
    """

    scale: str
    metric: str
    share: float
    ci: tuple[float, float] | None
    num_arms: int
    num_seeds: tuple[int, int]


@dataclass(frozen=True)
class Agreement:
    """How far smaller scales agree with the largest one.

    Attributes:
        target: Metric at the largest scale whose order is to be foretold.
        threshold: Share that is good enough.
        rows: Each smaller scale with each metric.
        seconds: Time of the stages of each scale, each stage counted once; the largest scale is the last.
        missing: Labels of the cells of a scale of which no or not every trial has finished.
    """

    target: str
    threshold: float
    rows: tuple[ScaleAgreement, ...]
    seconds: Mapping[str, float]
    missing: Mapping[str, Sequence[str]]

    @property
    def cheapest(self) -> ScaleAgreement | None:
        """The cheapest scale and metric that are good enough; None if none is."""
        sufficient = [row for row in self.rows if row.share >= self.threshold]
        return min(sufficient, key=lambda row: (self.seconds[row.scale], -row.share), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return rounded_all({**vars(self), "cheapest": self.cheapest})


def agreement(
    results: Sequence[Results],
    target: str | None = None,
    metrics: Sequence[str] = (),
    threshold: float = 0.8,
) -> Agreement:
    """Compare the order of the arms at each scale with that at the last one.

    Args:
        results: Results of the scales, the largest last. Cells of one label are one arm.
        target: Metric at the largest scale; None for the objective.
        metrics: Metrics by which smaller scales order the arms; none for the target alone.
        threshold: Share that is good enough.

    Raises:
        NlgraftError: There are fewer than two scales, or a scale has no such metric.
        DataError: Fewer than two arms have scores at two scales.
    """
    *smaller, largest = results
    if not smaller:
        raise NlgraftError("agreement compares scales: name two or more, the largest one last")
    target = target or largest.study.objective.metric
    pairs = [(result, metric) for result in smaller for metric in metrics or [target]]
    return Agreement(
        target,
        threshold,
        tuple(_scale_agreement(result, metric, largest, target) for result, metric in pairs),
        {result.study.variant: result.provenance.computed_s for result in results},
        {
            result.study.variant: [cell.label for cell in result.cells if cell.state != "finished"]
            for result in results
        },
    )


def _scale_agreement(
    result: Results,
    metric: str,
    largest: Results,
    target: str,
) -> ScaleAgreement:
    frames = [_scores(result, metric), _scores(largest, target)]
    arms = frames[0].columns.intersection(frames[1].columns)
    # A seed that an arm lacks is left out of all.
    matrices = [frame[arms].dropna().to_numpy() for frame in frames]
    num_seeds = (len(matrices[0]), len(matrices[1]))
    if len(arms) < 2 or not all(num_seeds):
        names = f"{result.study.variant}, {metric}, and {largest.study.variant}, {target}"
        raise DataError(f"{names}: two arms with common seeds are needed at both scales; run the studies")
    alpha = largest.alpha
    # The same draws for each scale and metric, whatever else is compared.
    rng = np.random.default_rng(_RANDOM_SEED)
    # Means over seeds drawn with replacement, shape (samples, arms).
    drawn = _share(
        *(
            rng.multinomial(num, np.full(num, 1 / num), _NUM_SAMPLES) @ scores / num
            for num, scores in zip(num_seeds, matrices, strict=True)
        )
    )
    ci = np.quantile(drawn, [alpha / 2, 1 - alpha / 2]).tolist() if min(num_seeds) > 1 else None
    share = float(_share(*(scores.mean(0) for scores in matrices)))
    return ScaleAgreement(result.study.variant, metric, share, ci and tuple(ci), len(arms), num_seeds)


def _scores(result: Results, name: str) -> pd.DataFrame:
    """Return the scores by seed and arm, more being better; of arms that have any."""
    import pandas as pd  # half a second to import

    metric = result.system.metrics[result.metric_named(name)]
    frame = pd.DataFrame({cell.label: cell.values(name) for cell in result.cells}, dtype=float).sort_index()
    return frame.dropna(axis=1, how="all") * (1 if metric.direction == "maximize" else -1)


def _share(small: Array, large: Array) -> Array:
    """Return the share of pairs of arms in one order in both, arrays of shape (..., arms)."""
    first, second = np.triu_indices(small.shape[-1], 1)
    orders = []
    for means in (small, large):
        differences = means[..., first] - means[..., second]
        # Means of equal scores may differ in their last digits.
        is_tie = np.abs(differences) <= 1e-9 * np.abs(means).max()
        orders.append(np.where(is_tie, 0, np.sign(differences)))
    return (1 + orders[0] * orders[1]).mean(-1) / 2
