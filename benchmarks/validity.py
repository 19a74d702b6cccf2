"""Error rates of verdicts under workflows that look at results before asking a question.

``python -m benchmarks.validity --num 10000`` simulates each workflow without any effect, or with effects as
large as a margin, which must not be called equal. Scores of seeds are normal and independent between cells;
comparisons and corrections are those of the platform. An error is a false verdict in any report of the
workflow. Without the ledger a report corrects what its file declares.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.simulated_store import SimulatedStore, StudyFile
from nlgraft.analysis.data.ledger import Segments

ALPHA = 0.05
RANDOM_SEED = 20261123
MARGIN = 2.5
METRICS = ("test/bleu", "test/chrf", "test/ter", "test/exact")
TEXT = [f"line {number}" for number in range(200)]
PAIR = ("arm", "base")
Way = Callable[[SimulatedStore], None]


def _file(
    *arms: str,
    baseline: str = "base",
    metric: str = METRICS[0],
    looks: tuple[int, ...] = (),
    margin: float | None = None,
) -> StudyFile:
    questions = tuple((arm, baseline) for arm in arms)
    return StudyFile(questions=questions, baseline=baseline, metric=metric, looks=looks, margin=margin)


def _gain(store: SimulatedStore, seed: int) -> float:
    return store.score("arm", seed, METRICS[0]) - store.score("base", seed, METRICS[0])


def _arms(num: int) -> list[str]:
    return [f"arm{number}" for number in range(num)]


def _arms_one_by_one(num: int) -> Way:
    def walk(store: SimulatedStore) -> None:
        for arm in range(num):
            store.report(_file(f"arm{arm}"), range(3))

    return walk


def _once(num_arms: int, num_seeds: int) -> Way:
    def walk(store: SimulatedStore) -> None:
        store.report(_file(*_arms(num_arms)), range(num_seeds))

    return walk


def _only(store: SimulatedStore) -> None:
    for arm in _arms(2):
        store.report(_file(*_arms(2)), range(3), run=["base", arm])


def _new_seeds(num: int) -> Way:
    def walk(store: SimulatedStore) -> None:
        for first in range(0, 3 * num, 3):
            store.report(_file("arm"), range(first, first + 3))

    return walk


def _more_seeds(store: SimulatedStore) -> None:
    for last in range(3, 31, 3):
        store.report(_file("arm"), range(last))


def _worst_seed_replaced(store: SimulatedStore) -> None:
    seeds, following = [0, 1, 2], 3
    store.report(_file("arm"), seeds)
    for _ in range(3):
        gains = {seed: _gain(store, seed) for seed in seeds}
        seeds.remove(min(gains, key=gains.__getitem__))
        seeds.append(following)
        following += 1
        store.report(_file("arm"), seeds)


def _variants(num: int) -> Way:
    def walk(store: SimulatedStore) -> None:
        for number in range(num):
            store.report(_file(f"arm@{number}", baseline=f"base@{number}"), range(3))

    return walk


def _uncorrected(store: SimulatedStore) -> None:
    store.report(replace(_file(*_arms(4)), is_corrected=False), range(3))


def _best_claim(store: SimulatedStore) -> None:
    shown = store.report(_file(*_arms(4)), range(3))
    store.report(_file(_arms(4)[int(np.argmin([comparison.p for comparison in shown]))]), range(3))


def _worst_baseline(store: SimulatedStore) -> None:
    store.report(_file(*_arms(4)), range(3))
    cells = ["base", *_arms(4)]
    means = [np.mean([store.score(cell, seed, METRICS[0]) for seed in range(3)]) for cell in cells]
    worst = cells[int(np.argmin(means))]
    store.report(_file(*(cell for cell in cells if cell != worst), baseline=worst), range(3))


def _best_objective(store: SimulatedStore) -> None:
    store.report(_file("arm"), range(3))
    best = min(METRICS, key=lambda name: store.p(name, PAIR, range(3)))
    store.report(_file("arm", metric=best), range(3))


def _looks_again(store: SimulatedStore) -> None:
    for last in (5, 10, 15, 20):
        looks = tuple(look for look in (3, 5, 10, 15, 20) if look <= last)
        for look in looks:
            store.report(_file("arm", looks=looks), range(look))


def _next_looks(*arms: str) -> Way:
    def walk(store: SimulatedStore) -> None:
        for num in (3, 6, 12):
            store.report(_file(*arms, looks=(3, 6, 12)), range(num))

    return walk


def _anything_added(store: SimulatedStore) -> None:
    """Arms, looks and a study with a baseline of its own, one after the other, on the same lines."""
    for num, arms in ((3, 1), (3, 2), (6, 2), (6, 4), (12, 4)):
        store.report(_file(*_arms(arms), looks=(3, 6, 12)), range(num))
    for num in (3, 6, 12):
        store.report(_file("other0", "other1", baseline="other", looks=(3, 6, 12)), range(num))


def _when_base_is_low(store: SimulatedStore) -> None:
    """An arm is added when the baseline looks worse than the arms that were seen."""
    store.report(_file(*_arms(3)), range(3))
    means = [np.mean([store.score(cell, seed, METRICS[0]) for seed in range(3)]) for cell in _arms(3)]
    if np.mean([store.score("base", seed, METRICS[0]) for seed in range(3)]) < min(means):
        for arm in ("arm3", "arm4"):
            store.report(_file(*_arms(3), arm), range(3))


def _seeds_by_baseline(store: SimulatedStore) -> None:
    """The baseline is run alone with twelve seeds; arms get the three on which it is lowest."""
    store.report(_file("arm", looks=(12,)), range(12), run=["base"])
    lowest = sorted(range(12), key=lambda seed: store.score("base", seed, METRICS[0]))[:3]
    for arm in _arms(3):
        store.report(_file(arm), sorted(lowest))


def _metric_added(store: SimulatedStore) -> None:
    """Metrics that were not scored before are added to a finished study, for its best arm and for all."""
    shown = store.report(_metric_file(0, *_arms(4)), range(3))
    best = _arms(4)[int(np.argmin([comparison.p for comparison in shown]))]
    for number in (1, 2, 3):
        store.report(_metric_file(number, best), range(3))
        store.report(_metric_file(number, *_arms(4)), range(3))


def _metric_file(number: int, *arms: str) -> StudyFile:
    return replace(_file(*arms, metric=METRICS[number]), metrics=METRICS[: number + 1])


def _other_baseline_and_arm(store: SimulatedStore) -> None:
    """The worst of the seen cells becomes the baseline of arms that nobody has seen."""
    store.report(_file(*_arms(4)), range(3))
    means = {cell: np.mean([store.score(cell, seed, METRICS[0]) for seed in range(3)]) for cell in _arms(4)}
    worst = min(means, key=means.__getitem__)
    for arm in ("new0", "new1"):
        store.report(_file(arm, baseline=worst), range(3))
    store.report(_file("new2", "new3", baseline=worst), range(3))


def _plan_deleted(store: SimulatedStore) -> None:
    store.report(_file("arm", looks=(3, 5)), range(3))
    store.report(_file("arm", looks=(3, 5)), range(5))
    store.report(_file("arm"), range(5))


def _trials_one_by_one(store: SimulatedStore) -> None:
    for num in (3, 5, 8, 10):
        store.report(replace(_file("arm"), num_seeds=10), range(num))


def _trials_and_file(store: SimulatedStore) -> None:
    for num in (3, 5, 8, 10):
        store.report(_file("arm"), range(num))


def _crash(store: SimulatedStore) -> None:
    worst = min(range(3), key=lambda seed: store.score("arm", seed, METRICS[0]))
    store.report(_file("arm"), range(3), lost_trials=[("arm", worst)])


def _line_dropped(store: SimulatedStore) -> None:
    for number in range(4):  # every time another network is trained, and scored on one line less
        file = _file(f"arm@{number}", baseline=f"base@{number}")
        store.report(file, range(3), segments=Segments.of(TEXT[number:]))


def _best_subset(store: SimulatedStore) -> None:
    store.report(_file("arm"), range(3))
    subsets = itertools.combinations(range(6), 3)
    store.report(_file("arm"), min(subsets, key=lambda seeds: store.p(METRICS[0], PAIR, seeds)))


def _best_moment(store: SimulatedStore) -> None:
    store.report(_file("arm"), range(3))
    best = min(range(4, 21), key=lambda num: store.p(METRICS[0], PAIR, range(num)))
    store.report(_file("arm"), range(best))


def _anything(store: SimulatedStore) -> None:
    """After a report of two arms the pair and metric that look best, at ever more seeds; then new arms."""
    store.report(_file(*_arms(2)), range(3))
    for num in (3, 5, 8):
        pairs = itertools.combinations(["base", *_arms(2)], 2)
        choices = itertools.product(pairs, METRICS)
        (a, b), name = min(choices, key=lambda choice: store.p(choice[1], choice[0], range(num)))
        store.report(_file(a, baseline=b, metric=name), range(num))
    store.report(_file(*_arms(4)), range(3))


def _real_then_more(store: SimulatedStore) -> None:
    """An arm with a huge effect frees its budget; the arms after it have none."""
    store.effects["real"] = 1000.0
    store.report(_file("real"), range(3))
    for number in range(4):
        store.report(_file("real", *_arms(number + 1)), range(3))


def _margin_declared(looks: tuple[int, ...]) -> Way:
    """Two arms differ by exactly the margin and two not at all: each verdict can be false."""

    def walk(store: SimulatedStore) -> None:
        store.effects |= {"arm0": MARGIN, "arm1": -MARGIN}
        for num in looks or (10,):
            store.report(_file(*_arms(4), looks=looks, margin=MARGIN), range(num))

    return walk


def _margin_afterwards(store: SimulatedStore) -> None:
    """The margin is the smallest of some that a report supports, at ever more seeds; all are too small."""
    store.effects["arm"] = MARGIN
    store.report(_file("arm"), range(3))
    for num in (3, 5, 8, 10, 15):
        for share in (0.6, 0.8, 1.0):
            store.report(_file("arm", margin=share * MARGIN), range(num))


def _margin_and_arms(store: SimulatedStore) -> None:
    """Arms that differ by the margin are added one by one until one looks equal."""
    store.effects |= dict.fromkeys(_arms(5), MARGIN)
    for arm in _arms(5):
        store.report(_file(arm, margin=MARGIN), range(10))


WAYS: dict[str, Way] = {
    "one study, run once, 1 arm": _once(1, 3),
    "one study, run once, 4 arms": _once(4, 5),
    "`--only`: one arm at a time of two": _only,
    "arms added to the file, 2": _arms_one_by_one(2),
    "arms swapped in the file, 4": _arms_one_by_one(4),
    "`correction: none`, 4 arms": _uncorrected,
    "seeds 1-3, then 4-6": _new_seeds(2),
    "seeds 1-3, ..., 7-9": _new_seeds(3),
    "seeds 1-3, ..., 13-15": _new_seeds(5),
    "seeds 1-3, 1-6, ..., 1-30": _more_seeds,
    "worst seed replaced, three times": _worst_seed_replaced,
    "2 variants": _variants(2),
    "3 variants": _variants(3),
    "4 variants": _variants(4),
    "5 variants": _variants(5),
    "claims cut to the best-looking arm": _best_claim,
    "baseline switched to the worst of five": _worst_baseline,
    "objective chosen afterwards of four": _best_objective,
    "continued with --next-look: 3, 6, 12 seeds, 1 arm": _next_looks("arm"),
    "continued with --next-look: 3, 6, 12 seeds, 4 arms": _next_looks(*_arms(4)),
    "arms, looks and a second study added": _anything_added,
    "arms added when the baseline looks low": _when_base_is_low,
    "baseline run alone, seeds chosen by it": _seeds_by_baseline,
    "unseen metrics added, best arm and all": _metric_added,
    "the worst cell as baseline of new arms": _other_baseline_and_arm,
    "planned looks planned again": _looks_again,
    "the plan deleted": _plan_deleted,
    "`trial` per seed, report at 3, 5, 8, 10 of 10": _trials_one_by_one,
    "the same, `seeds` cut to what is there": _trials_and_file,
    "the worst seed crashes": _crash,
    "own: a test line dropped per variant, 4": _line_dropped,
    "own: best three of six seeds": _best_subset,
    "own: number of seeds chosen afterwards": _best_moment,
    "own: best pair, metric and number, then new arms": _anything,
    "a margin declared, 4 arms, 10 seeds": _margin_declared(()),
    "a margin declared, 4 arms, looks 3, 5, 10": _margin_declared((3, 5, 10)),
    "a margin chosen afterwards, more seeds": _margin_afterwards,
    "a margin, arms added until one is equal, 5": _margin_and_arms,
    "own: a real effect, then four arms without, one by one": _real_then_more,
}


def rates(walk: Way, num: int, test_set: float = 0.0, seed: int = RANDOM_SEED) -> tuple[float, float]:
    """Simulate a way; return the share of stores with a false verdict, before the ledger and over it."""
    rng = np.random.default_rng(seed)
    errors = np.zeros((num, 2))
    for row in errors:
        store = SimulatedStore(rng, metrics=METRICS, segment_variance=test_set)
        walk(store)
        row[:] = store.has_erred("file"), store.has_erred("ledger")
    before, after = errors.mean(axis=0)
    return float(before), float(after)


def main() -> None:
    """Print the rates as a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validity", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TEXT", help="ways whose name has this text; all without")
    parser.add_argument("--num", type=int, default=10_000, help="stores of each way")
    parser.add_argument("--test-set", type=float, default=0.0, help="variance of a score from the segments")
    arguments = parser.parse_args()
    error = 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / arguments.num)
    print(f"{arguments.num} stores of each way; 95 % Monte-Carlo error of a rate of .05: {error:.4f}\n")
    print("| way | own file only | over the ledger |\n|---|---|---|", flush=True)
    for name, walk in WAYS.items():
        if not arguments.names or any(text in name for text in arguments.names):
            before, after = rates(walk, arguments.num, arguments.test_set)
            print(f"| {name} | {before:.4f} | {after:.4f} |", flush=True)


if __name__ == "__main__":
    main()
