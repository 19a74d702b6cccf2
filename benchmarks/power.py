"""Power and error of what people do next, with and without earlier studies that tell the noise.

``python -m benchmarks.power --num 400`` reports studies through simulated stores: comparisons, looks, rules
and priors are the platform's. Seeds are normal; the logarithm of their deviation varies between studies, and
between cells, with deviation `SPREAD`. Earlier studies were on other test lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from benchmarks.simulated_store import SimulatedStore, StudyFile
from nlgraft.analysis.data.ledger import Segments

RANDOM_SEED = 20261127
SPREAD = 0.3
LOOKS = (3, 6, 12)
CERTAIN = 50.0
"""An effect that three seeds show."""

Way = Callable[[SimulatedStore], StudyFile]
"""Reports what comes before the study in question; returns the study, whose last arm may have an effect."""


def declare(store: SimulatedStore, name: str, num_arms: int, noise: float = SPREAD) -> StudyFile:
    """Declare a study whose cells have noise of their own."""
    arms = [f"{name}-arm{number}" for number in range(num_arms)]
    baseline = f"{name}-base"
    common = store.rng.standard_normal()
    for cell in (baseline, *arms):
        store.scales[cell] = float(np.exp(noise * (common + store.rng.standard_normal())))
    questions = tuple((arm, baseline) for arm in arms)
    return StudyFile(questions=questions, baseline=baseline, looks=LOOKS, name=name)


def store_after(rng: np.random.Generator, num_studies: int, noise: float = SPREAD) -> SimulatedStore:
    """Return a store with earlier studies of four arms and three seeds, each on test lines of its own."""
    store = SimulatedStore(rng, seed_variance=0.5)
    for number in range(num_studies):
        file = declare(store, f"earlier{number}", 4, noise)
        store.report(file, range(3), segments=Segments.of([f"{number} {line}" for line in range(9)]))
    store.verdicts["ledger"].clear()
    return store


def give_effect(store: SimulatedStore, file: StudyFile, effect: float) -> None:
    """Give the last arm an effect, in deviations of its paired differences."""
    arm, base = file.questions[-1]
    store.effects[arm] = effect * float(np.hypot(store.scales[arm], store.scales[base]) * 0.5**0.5)


def _first(store: SimulatedStore) -> StudyFile:
    return declare(store, "first", 4)


def _arm_added(effect: float) -> Way:
    def walk(store: SimulatedStore) -> StudyFile:
        whole = declare(store, "first", 5)
        begun = replace(whole, questions=whole.questions[:-1])
        for arm, _ in begun.questions:
            store.effects[arm] = effect
        store.report(begun, range(3))
        return whole

    return walk


def _another_study(effect: float) -> Way:
    def walk(store: SimulatedStore) -> StudyFile:
        before = declare(store, "before", 4)
        for arm, _ in before.questions:
            store.effects[arm] = effect
        store.report(before, range(3))
        return declare(store, "next", 1)

    return walk


WAYS: dict[str, Way] = {
    "one of four arms of a first study": _first,
    "an arm added to a decided study": _arm_added(CERTAIN),
    "another study after a decided one": _another_study(CERTAIN),
    "an arm added to an undecided study": _arm_added(0.0),
    "another study after an undecided one": _another_study(0.0),
}


def found(
    name: str, effect: float, num_studies: int, num: int, noise: float = SPREAD
) -> tuple[list[float], float]:
    """Return the share of stores that find an effect by each look, and of those with a false verdict."""
    rng = np.random.default_rng(RANDOM_SEED)
    hits, errors = np.zeros(len(LOOKS)), 0
    for _ in range(num):
        store = store_after(rng, num_studies, noise)
        file = WAYS[name](store)
        give_effect(store, file, effect)
        for place, look in enumerate(LOOKS):
            store.report(file, range(look))
            hits[place] += file.questions[-1] in store.verdicts["ledger"]
        errors += store.has_erred("ledger")
    return list(hits / num), errors / num


def report(num: int, names: Iterable[str]) -> Iterable[str]:
    """Yield the rows of a Markdown table."""
    yield "| | earlier studies | at 3 seeds | by 6 | by 12 | error |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        for num_studies in (5, 0):
            (large, _), (small, _) = (found(name, effect, num_studies, num) for effect in (2.0, 1.0))
            _, error = found(name, 0.0, num_studies, num)
            shares = " | ".join("{:.2f} ({:.2f})".format(*pair) for pair in zip(large, small, strict=True))
            yield f"| {name} | {num_studies} | {shares} | {error:.3f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.power", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TEXT", help="rows whose name has this text; all without")
    parser.add_argument("--num", type=int, default=400, help="stores of each row")
    arguments = parser.parse_args()
    names = [name for name in WAYS if not arguments.names or any(t in name for t in arguments.names)]
    for line in report(arguments.num, names):
        print(line, flush=True)


if __name__ == "__main__":
    main()
