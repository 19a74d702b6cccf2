"""Expected validation performance: how good the best of n search trials is expected to be, for every n.

With a cell's N values in the order from worst to best, v_1 ... v_N, the best of n trials drawn from them with
replacement is v_i with probability (i / N)^n - ((i - 1) / N)^n (Dodge et al. 2019, Show Your Work, section
3.1). The estimate is biased towards worse values, since nothing exceeds the best trial that was seen (Tang
et al. 2020); of the known estimators it leads to the fewest wrong conclusions (Dodge et al. 2021).

**The band describes, it does not test.** It is where the estimate falls when the same trials are drawn again;
nothing drawn exceeds the best trial, so with more of the budget it covers the truth ever less: of 95 % bands
over twelve trials .90 do at one trial, .66 at six and .44 at twelve.

**The luck of one seed.** Every trial was trained once, and the best of many is one that was also lucky. With
the variance between seeds, which the replicates show, each value is replaced by what the same trial is
expected to reach on a new seed: its posterior mean under the distribution of all trials' true values that
makes the observed ones likeliest (Kiefer and Wolfowitz 1956, by the EM algorithm). Where seeds vary half as
much as trials the best of 24 is seen at +.42 deviations of a trial, expected so at -.24, and is at -.30.

A trial that failed or was stopped early counts as the worst one that finished. Trials are taken as
independent draws, which holds for random search; an adaptive sampler improves as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import Array, CellResult

RANDOM_SEED = 20261122
_NUM_SAMPLES = 1000
_BAND = (0.025, 0.975)
_NUM_PLACES = 100
_NUM_STEPS = 100


@dataclass(frozen=True, eq=False)
class ExpectedBest:
    """Expected objective of the best of 1 ... N search trials of a cell.

    Attributes:
        label: Label of the cell.
        mean: The expectation, shape (N,).
        low: Lower end of the middle 95 % of its resamples over the trials, a description; same shape.
        high: Upper end.
        on_new_seeds: What the best, so chosen, is expected to reach on a new seed; None where the variance
            between seeds is not known.
        num_without_value: Trials that failed or were stopped.
        steps_per_trial: Mean number of training steps of a trial; None where trials report no steps.
        worker_s_per_trial: Mean time of a trial times its workers.
    """

    label: str
    mean: Array
    low: Array
    high: Array
    on_new_seeds: Array | None
    num_without_value: int
    steps_per_trial: float | None
    worker_s_per_trial: float

    def to_json(self) -> dict[str, Any]:
        """Return the curve for `rounded_all`, without times; entry n - 1 of an array is that of n trials."""
        return {
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "on_new_seeds": self.on_new_seeds,
            "without_value": self.num_without_value,
            "steps_per_trial": self.steps_per_trial,
        }


def expected_best(result: Results, cell: CellResult) -> ExpectedBest | None:
    """Estimate the curve of a cell on the objective; None with fewer than two values."""
    objective = result.study.objective
    sign = objective.sign
    ended = [trial for trial in cell.search if trial.record is not None and trial.state != "killed"]
    scores = [
        sign * measured.value for trial in ended if (measured := trial.measured(objective.metric)) is not None
    ]
    if len(scores) < 2:
        return None
    # Leaving failed trials out would make a search that fails often look cheap.
    values = np.array(scores + [min(scores)] * (len(ended) - len(scores)))
    again = None
    # The variance between seeds, pooled over the cells.
    groups = [group for each in result.cells if len(group := [*each.values(objective.metric).values()]) > 1]
    if groups:
        variances = [np.var(group, ddof=1) for group in groups]
        seed_variance = float(np.average(variances, weights=[len(group) - 1 for group in groups]))
        again = sign * expected_maximum(on_new_seeds(values, seed_variance))
    # Of the trials' own trainings; curves of others begin with their name.
    reported = [
        [
            points[-1][0]
            for name, points in trial.curves.items()
            if points and name.startswith(("train/", "dev/"))
        ]
        for trial in ended
    ]
    steps = [max(of_trial) for of_trial in reported if of_trial]
    draws = np.random.default_rng(RANDOM_SEED).choice(values, (_NUM_SAMPLES, len(values)))
    ends = np.quantile(expected_maximum(draws), _BAND, axis=0)
    low, high = np.sort(sign * ends, axis=0)
    return ExpectedBest(
        cell.label,
        sign * expected_maximum(values),
        low,
        high,
        again,
        len(ended) - len(scores),
        float(np.mean(steps)) if steps else None,
        result.study.resources.max_workers * float(np.mean([trial.duration_s for trial in ended])),
    )


def on_new_seeds(values: Array, seed_variance: float) -> Array:
    """Estimate what each trial would reach on a new seed, shape (N,), from one seed each.

    Args:
        values: Observed values, shape (N,).
        seed_variance: Variance of one configuration's value between seeds.
    """
    places = np.linspace(values.min(), values.max(), _NUM_PLACES)
    if seed_variance == 0 or np.ptp(values) == 0:
        return values
    variance = max(seed_variance, (places[1] - places[0]) ** 2)  # no finer than the places
    likelihoods = np.exp(-((values[:, None] - places) ** 2) / (2 * variance))
    posterior, weights = likelihoods, np.full(_NUM_PLACES, 1 / _NUM_PLACES)
    for _ in range(_NUM_STEPS):
        posterior = likelihoods * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        weights = posterior.mean(axis=0)
    return posterior @ places


def expected_maximum(values: Array) -> Array:
    """Compute the expected maximum of n = 1 ... N draws with replacement from N values.

    Args:
        values: Values, shape (..., N).

    Returns:
        Expectations, shape (..., N).
    """
    number = values.shape[-1]
    below = (np.arange(number + 1) / number)[:, None] ** np.arange(1, number + 1)
    return np.sort(values, axis=-1) @ np.diff(below, axis=0)
