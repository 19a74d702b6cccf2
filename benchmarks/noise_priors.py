"""Error and power of tests that borrow seed noise from earlier studies.

``python -m benchmarks.noise_priors --num 10000`` simulates studies without any effect on a grid: how noise
differs, from how many studies the prior comes, seeds, arms, and noise of the test set; then, with effects,
what the prior and its fall-back find. A study errs when it says of any arm that it differs. Priors, tests and
fall-back are the platform's.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import ndtr

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.estimates.looks import look_levels, p_over_looks
from nlgraft.analysis.estimates.noise_prior import (
    PUBLISHED_DF,
    WEIGHT_OF_STUDIES,
    StudyVariance,
    applicable,
    moderated,
    prior_of,
    tail,
)
from nlgraft.analysis.estimates.power import likely_look

ALPHA = 0.05
RANDOM_SEED = 20261127
MAX_ARMS = 8
SEEDS = (3, 5, 10)
LOOKS = (3, 6, 12)


@dataclass(frozen=True)
class Noise:
    """How seeds vary.

    Attributes:
        name: How it is called in tables.
        studies: Deviation of the logarithm of the seeds' deviation between studies.
        cells: The same between cells of a study.
        df: Degrees of freedom of Student's distribution of the seeds; normal if infinite.
        collapsed: Share of seeds that end 20 deviations lower.
    """

    name: str
    studies: float = 0.0
    cells: float = 0.0
    df: float = np.inf
    collapsed: float = 0.0

    def draw(self, rng: np.random.Generator, num: int, arms: int, seeds: int) -> tuple[Array, Array]:
        """Draw studies without effects.

        Returns:
            Differences from the baseline, shape (num, arms, seeds), and the deviation of each between seeds,
            leaving out collapses, shape (num, arms).
        """
        logs = self.studies * rng.standard_normal((num, 1, 1))
        scale = np.exp(logs + self.cells * rng.standard_normal((num, arms + 1, 1)))
        shape = (num, arms + 1, seeds)
        is_normal = np.isinf(self.df)
        scores = rng.standard_normal(shape) if is_normal else rng.standard_t(self.df, shape) / 2**0.5
        scores = scores * scale
        if self.collapsed:
            scores -= 20 * scale * (rng.random(shape) < self.collapsed)
        return scores[:, 1:] - scores[:, :1], np.hypot(scale[:, 1:, 0], scale[:, :1, 0])


KINDS = (
    Noise("equal"),
    Noise("studies differ by .7", studies=0.7, cells=0.3),
    Noise("cells differ by .7", cells=0.7),
    Noise("t with 4 df", df=4.0),
    Noise("5 % collapsed", collapsed=0.05),
)


@dataclass(frozen=True)
class Setting:
    """One design.

    Attributes:
        noise: How seeds vary.
        studies: Number of earlier studies; without any there is no prior.
        looks: Numbers of seeds at which the study is judged.
        arms: Its arms.
        segments: Variance of a mean difference from the test set, in units of the variance between seeds.
        prior_arms: Arms of every earlier study; 1 to 8 at random with 0.
        prior_seeds: Their seeds; 3, 5 or 10 at random with 0.
        shrunk: Factor of the earlier studies' deviations.
        has_fallback: False to trust the prior whatever the study's own variances are.
        prior: The prior of every store, in place of one from earlier studies.
    """

    noise: Noise
    studies: int
    looks: tuple[int, ...]
    arms: int
    segments: float = 0.0
    prior_arms: int = 0
    prior_seeds: int = 0
    shrunk: float = 1.0
    has_fallback: bool = True
    prior: NoisePrior | None = None

    def error(self, num: int) -> float:
        """Simulate stores in which nothing differs; return the share of studies that say otherwise."""
        return float((self._p_values(num, 0.0)[-1].min(axis=1) <= ALPHA / self.arms).mean())

    def power(self, num: int, effect: float) -> list[float]:
        """Return the share of studies that find an effect in their first arm by each look.

        It is tested as Holm's procedure tests the smallest p-value.
        """
        decided = [p[:, 0] <= ALPHA / self.arms for p in self._p_values(num, effect)]
        return [float(by_look.mean()) for by_look in decided]

    def _p_values(self, num: int, effect: float) -> list[Array]:
        """Simulate studies, effects in deviations; return p-values after each look, shape (num, arms)."""
        rng = np.random.default_rng([RANDOM_SEED, self.looks[-1], self.arms])
        differences, deviations = self.noise.draw(rng, num, self.arms, self.looks[-1])
        segments = self.segments * 2.0
        differences += rng.standard_normal((num, self.arms, 1)) * segments**0.5
        shifts = np.zeros((num, self.arms))
        shifts[:, 0] = effect * deviations[:, 0]
        priors = [self.prior] * num
        if self.prior is None:
            priors = _priors(self.noise, self.studies, self.prior_arms, self.prior_seeds, num)
        scale = self.shrunk**2
        df = np.array([0.0 if prior is None else prior.df for prior in priors])
        variance = np.array([1.0 if prior is None else prior.variance for prior in priors])
        taken, answers = {}, []
        for look in self.looks:
            seen = differences[:, :, :look]
            variances = seen.var(axis=2, ddof=1)
            weight, expected = df, variance
            if self.has_fallback:
                df_of_study = StudyVariance.of(seen[0]).df
                studies = [StudyVariance(pooled / scale, df_of_study) for pooled in variances.mean(axis=1)]
                pairs = zip(priors, studies, strict=True)
                usable = [prior and applicable(prior, study, look) for prior, study in pairs]
                weight = np.array([0.0 if prior is None else prior.df for prior in usable])
                expected = np.array([1.0 if prior is None else prior.variance for prior in usable])
            total = weight[:, None] + look - 1
            moderated = ((weight * scale * expected)[:, None] + (look - 1) * variances) / total
            gaps = np.abs(seen.mean(axis=2) + shifts)
            p = 2 * ndtr(-gaps / np.sqrt(moderated / look + segments))  # never above the exact one
            at = p <= ALPHA
            dfs = np.broadcast_to(total, p.shape)[at]
            p[at] = 2 * tail(gaps[at], moderated[at] / look, dfs, segments)
            taken[look] = p
            answers.append(_combined(taken, self.looks, df))
        return answers


def _combined(p_values: Mapping[int, Array], looks: Sequence[int], df: Array) -> Array:
    """Combine looks at the degrees of freedom of each store's prior."""
    combined = np.ones_like(p_values[looks[0]])
    places = np.round(4 * df) / 4
    for place in np.unique(places):
        rows = places == place
        taken = {look: p[rows] for look, p in p_values.items()}
        combined[rows] = p_over_looks(taken, looks, float(place))
    return combined


@cache
def _priors(noise: Noise, studies: int, arms: int, seeds: int, num: int) -> list[NoisePrior | None]:
    """Fit a prior for each of so many stores."""
    rng = np.random.default_rng([RANDOM_SEED, studies])
    stores: list[list[StudyVariance]] = [[] for _ in range(num)]
    for _ in range(studies):
        differences, _ = noise.draw(rng, num, arms or MAX_ARMS, seeds or int(rng.choice(SEEDS)))
        counts = rng.integers(1, MAX_ARMS + 1, num) if not arms else np.full(num, arms)
        dfs = {count: StudyVariance.of(differences[0, :count]).df for count in range(1, MAX_ARMS + 1)}
        pooled = np.cumsum(differences.var(axis=2, ddof=1), axis=1)[np.arange(num), counts - 1] / counts
        for store, variance, count in zip(stores, pooled, counts, strict=True):
            store.append(StudyVariance(variance, dfs[count]))
    return [prior_of(store, WEIGHT_OF_STUDIES) for store in stores]


def grid() -> Iterator[Setting]:
    """List the designs without effects, for one arm and one look."""
    for noise, studies, seeds, segments in itertools.product(KINDS, (1, 2, 3, 10), SEEDS, (0.0, 0.3)):
        yield Setting(noise, studies, (seeds,), 1, segments)


def _row(name: str, rates: Iterable[float]) -> str:
    return f"| {name} | " + " | ".join(f"{rate:.3f}" for rate in rates) + " |"


def report(num: int) -> Iterator[str]:
    """Yield Markdown tables."""
    yield f"{num} studies each, level {ALPHA}; nothing differs; test-set noise in units of the seeds'."
    yield ""
    looks = "looks at n, 2n, 4n: "
    yield f"| noise | earlier studies | n seeds | test set | 1 arm | 4 arms | 8 arms | {looks}1 | 4 | 8 |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for setting in grid():
        seeds = setting.looks[0]
        plans = [(seeds,), (seeds, 2 * seeds, 4 * seeds)]
        rates = [replace(setting, arms=n, looks=plan).error(num) for plan in plans for n in (1, 4, 8)]
        yield _row(f"{setting.noise.name} | {setting.studies} | {seeds} | {setting.segments}", rates)
    yield ""
    yield "Looks at 3, 6, 12 seeds, earlier studies of four arms and three seeds; effects in deviations."
    yield ""
    yield "| arms | studies differ | earlier | error | 1 found at 3 | by 6 | by 12 | 2 at 3 | by 6 | by 12 |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for arms, spread, studies in itertools.product((4, 1), (0.0, 0.3, 0.7), (0, 1, 2, 3, 5)):
        setting = Setting(Noise("", spread, 0.3), studies, LOOKS, arms, prior_arms=4, prior_seeds=3)
        powers = [power for effect in (1.0, 2.0) for power in setting.power(num, effect)]
        yield _row(f"{arms} | {spread} | {studies}", [setting.error(num), *powers])
    yield ""
    yield "Three seeds after five studies whose deviation is half of the truth:"
    yield ""
    for arms, has_fallback in itertools.product((4, 1), (False, True)):
        setting = Setting(KINDS[0], 5, (3,), arms, prior_arms=4, prior_seeds=3, shrunk=0.5)
        error = replace(setting, has_fallback=has_fallback).error(num)
        yield f"- {arms} arms, {'with' if has_fallback else 'without'} fall-back: error {error:.3f}"
    yield ""
    yield "Three seeds with a published prior, by its deviation over the true one:"
    yield ""
    yield "| arms | deviation | error | 2 found |"
    yield "|---|---|---|---|"
    for arms, shrunk in itertools.product((4, 1), (0.5, 0.7, 1.0, 1.4)):
        noise, prior = Noise("", 0.3, 0.3), NoisePrior(PUBLISHED_DF, 2.0)
        setting = Setting(noise, 0, (3,), arms, shrunk=shrunk, prior=prior)
        yield _row(f"{arms} | {shrunk}", [setting.error(num), *setting.power(num, 2.0)])
    yield ""
    yield "| effects of deviation | prior df | level | seeds now | given a number | decided by it |"
    yield "|---|---|---|---|---|---|"
    for scale, prior_df, level, now in itertools.product((1.0, 2.0), (0.0, 4.0), (0.05, 0.0125), LOOKS[:-1]):
        rates = seeds_named(scale, prior_df, level, now, num // 4)
        yield _row(f"{scale} | {prior_df} | {level} | {now}", rates)


def seeds_named(scale: float, prior_df: float, level: float, now: int, num: int) -> tuple[float, float]:
    """Ask undecided studies of one arm how many seeds they need.

    Args:
        scale: Deviation of true effects, in deviations between seeds.
        prior_df: Degrees of freedom of a true prior; 0 for none.
        level: Level of the question.
        now: Seeds so far, one of `LOOKS`.
        num: Studies.

    Returns:
        The share of the undecided that are given a number, and the share of those that it decides.
    """
    rng = np.random.default_rng(RANDOM_SEED)
    prior = NoisePrior(prior_df, 1.0) if prior_df else None
    levels = dict(zip(LOOKS, look_levels(LOOKS, level, prior_df), strict=True))
    advised, decided = [], []
    for _ in range(num):
        deviation = (prior_df / rng.chisquare(prior_df)) ** 0.5 if prior_df else 1.0
        gains = deviation * (rng.normal(0.0, scale) + rng.standard_normal(LOOKS[-1]))
        tests = {look: moderated(gains[:look], prior) for look in LOOKS}
        rejected = [look for look in LOOKS if (tests[look].p or 0.0) <= levels[look]]
        if not rejected or min(rejected) > now:
            needed = likely_look(tests[now], {look: at for look, at in levels.items() if look > now})
            advised.append(needed is not None)
            if needed is not None:
                decided.append(bool(rejected) and min(rejected) <= needed)
    return float(np.mean(advised)), float(np.mean(decided)) if decided else np.nan


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise_priors", description=__doc__)
    parser.add_argument("--num", type=int, default=10_000, help="studies of each design")
    for line in report(parser.parse_args().num):
        print(line, flush=True)


if __name__ == "__main__":
    main()
