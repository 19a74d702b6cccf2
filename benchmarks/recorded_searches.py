"""TPE, GP and searches that start from known settings, by the trials that they get, on recorded searches.

``recorded/NAME.yaml`` is a study with the space of a shipped search, smaller, and ``recorded/NAME.csv`` what
`nlgraft run` found for it: random proposals with one seed, and a few of them with further seeds. A model
fitted to the table answers for settings that it lacks, with noise as large as that between seeds.
``python -m benchmarks.recorded_searches`` searches each of them and prints how far the best proposal is from
the best settings that the model knows. ``--seconds`` ends it after the repetition that is running.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import KFold, cross_val_predict

from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.space import CategoricalDomain
from nlgraft.study.data.study import Objective, Search

RECORDED = Path(__file__).parent / "recorded"
TRIALS = (12, 24, 60)
NUM_BEFORE = 12
"""Random trials of the search before, whose best settings a started search knows."""
LEAST_EXPLAINED = 0.5
"""Share of the variance that a model must explain of settings that it was not fitted to."""
NUM_DRAWN = 5_000
"""Random settings, the best of which is what a search could find."""
VARIANTS = [(name, has_start) for name in ("random", "tpe", "gp") for has_start in (False, True)]


class Recorded:
    """A recorded search, and a model of it.

    Args:
        name: Of the study and of the table.
    """

    def __init__(self, name: str) -> None:
        document = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
        self.name = name
        self.metric: str = document["objective"]["metric"]
        self.space: dict[str, Any] = document["search"]["space"]
        self._domains = Search.model_validate(document["search"]).space
        self._sign = -1 if document["objective"]["direction"] == "maximize" else 1
        rows: list[tuple[dict[str, Any], float]] = []
        by_settings: dict[str, list[float]] = defaultdict(list)
        with (RECORDED / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                settings = {path: json.loads(row[path]) for path in self.space if row[path]}
                loss = self._sign * float(row[self.metric])
                values = by_settings[json.dumps(settings)]
                values.append(loss)
                if len(values) == 1:
                    rows.append((settings, loss))
        self.losses = np.array([loss for _, loss in rows])
        self._settings = [settings for settings, _ in rows]
        repeated = [values for values in by_settings.values() if len(values) > 1]
        squares = sum(np.var(values) * len(values) for values in repeated)
        self.noise = float(np.sqrt(squares / sum(len(values) - 1 for values in repeated)))

    def _row(self, settings: Mapping[str, Any]) -> list[float]:
        """Describe settings by numbers: 0 and 1 for each choice, the logarithm where the search takes it."""
        row: list[float] = []
        for path, domain in self._domains.items():
            value = settings.get(path)
            if isinstance(domain, CategoricalDomain):
                row += [float(value == choice) for choice in domain.choices]
            elif value is None:  # its condition does not hold: the model knows by the setting that it names
                row.append(0.5)
            else:
                ends = np.array([domain.low, value, domain.high], float)
                low, place, high = np.log(ends) if domain.log else ends
                row.append((place - low) / (high - low))
        return row

    @cached_property
    def fitted(self) -> tuple[Any, float, float]:
        """The model that explains more of what it was not fitted to, that share, and that of the other."""
        rows = np.array([self._row(settings) for settings in self._settings])
        smooth = ConstantKernel(1.0) * RBF(np.ones(rows.shape[1]), (0.05, 100.0))
        kernel = smooth + WhiteKernel(0.1, (1e-4, 10))
        models = [
            GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0),
            ExtraTreesRegressor(300, random_state=0),
        ]
        shares = []
        folds = KFold(10, shuffle=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of settings that matter little
            for model in models:
                left = self.losses - cross_val_predict(model, rows, self.losses, cv=folds)
                shares.append(1 - float(np.mean(left**2) / np.var(self.losses)))
            best = models[int(np.argmax(shares))].fit(rows, self.losses)
        return best, max(shares), min(shares)

    def expected(self, settings: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the loss that the model expects of each."""
        return list(self.fitted[0].predict(np.array([self._row(each) for each in settings])))

    @cached_property
    def least(self) -> float:
        """The lowest loss that it expects of random settings."""
        drawn = np.random.default_rng(0)

        def draw(domain: Any) -> Any:
            if isinstance(domain, CategoricalDomain):
                return domain.choices[drawn.integers(len(domain.choices))]
            low, high = (np.log(domain.low), np.log(domain.high)) if domain.log else (domain.low, domain.high)
            value = drawn.uniform(low, high)
            return np.exp(value) if domain.log else value

        points = [{path: draw(domain) for path, domain in self._domains.items()} for _ in range(NUM_DRAWN)]
        for point in points:
            for path, domain in self.space.items():
                if any(point[other] != needed for other, needed in domain.get("when", {}).items()):
                    del point[path]
        return min(self.expected(points))


def search(
    objective: Callable[[Mapping[str, Any]], float],
    space: dict[str, Any],
    sampler: str,
    seed: int,
    trials: int,
    start: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], float]]:
    """Search as a cell does, one trial at a time; yield values and losses."""
    document = {"sampler": {"name": sampler, "seed": seed}, "space": space, "trials": trials, "start": start}
    study = OptunaStudy(
        "benchmark",
        Search.model_validate(document),
        Objective(metric="dev/loss", direction="minimize"),
        None,
    )
    for number in range(trials):
        values = study.propose(number, {})
        value = objective(values)
        metrics = {"dev/loss": value}
        study.tell(number, TrialRecord(fingerprint="", config={}, seed=0, state="finished", metrics=metrics))
        yield values, value


def repetition(
    recorded: Recorded, number: int, *, has_gp: bool
) -> Iterator[tuple[tuple[str, bool], int, float]]:
    """Run each variant once; yield it, the trials, and the distance of their best proposal from the best."""
    noise = np.random.default_rng(number)

    def objective(values: Mapping[str, Any]) -> float:
        return recorded.expected([values])[0] + noise.normal(0, recorded.noise)

    before = search(objective, recorded.space, "random", 777 + number, NUM_BEFORE, [])
    start = min(before, key=lambda tried: tried[1])[0]
    for sampler, has_start in VARIANTS:
        if sampler == "gp" and not has_gp:
            continue
        starts = [start] if has_start else []
        tried = [*search(objective, recorded.space, sampler, number, TRIALS[-1], starts)]
        for num in TRIALS:
            best = min(tried[:num], key=lambda attempt: attempt[1])[0]
            yield (sampler, has_start), num, recorded.expected([best])[0] - recorded.least


def main() -> None:
    """Print a table for each search."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded_searches", description=__doc__)
    parser.add_argument("names", nargs="*", help="recorded searches; default: all")
    parser.add_argument("--num", type=int, default=20, help="repetitions")
    parser.add_argument("--num-gp", type=int, default=5, help="repetitions of the GP, which takes the time")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    searches = []
    for name in options.names or sorted(path.stem for path in RECORDED.glob("*.csv")):
        recorded = Recorded(name)
        model, share, other = recorded.fitted
        half = np.ptp(np.quantile(recorded.losses, (0.25, 0.75)))
        print(
            f"{recorded.name}: {len(recorded.losses)} settings, {recorded.metric}, "
            f"middle half {half:.3g} wide, "
            f"between seeds {recorded.noise:.2g}; "
            f"{type(model).__name__} explains {share:.2f} of the variance (the other model {other:.2f})"
        )
        if share >= LEAST_EXPLAINED:
            searches.append(recorded)
    far: dict[tuple[str, tuple[str, bool], int], list[float]] = defaultdict(list)
    for number in range(1, options.num + 1):
        for recorded in searches:
            for variant, num, value in repetition(recorded, number, has_gp=number <= options.num_gp):
                far[recorded.name, variant, num].append(value)
        is_over = number == options.num or time.monotonic() > end
        # Those with the GP take minutes, the others seconds.
        if is_over or number <= options.num_gp:
            print_tables(far, [recorded.name for recorded in searches], number)
        if is_over:
            return


def print_tables(
    far: Mapping[tuple[str, tuple[str, bool], int], Sequence[float]], names: Sequence[str], num: int
) -> None:
    """Print mean and standard error by variant and number of trials, a table for each search."""
    print(f"\n{num} repetitions")
    for name in names:
        heads = " | ".join(f"{trials} trials" for trials in TRIALS)
        print(f"\n| {name} | {heads} |\n|---|---|---|---|")
        for variant in VARIANTS:
            cells = [far[name, variant, trials] for trials in TRIALS]
            shown = [f"{np.mean(c):.3g} ± {np.std(c) / np.sqrt(max(1, len(c) - 1)):.2g}" for c in cells]
            label = f"{variant[0]}{', started' if variant[1] else ''} ({len(cells[0])})"
            print(f"| {label} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
