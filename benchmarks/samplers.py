"""TPE, GP and searches that start from known settings, by the trials that they get.

``python -m benchmarks.samplers`` searches three small trainings, each trial with random numbers of its own,
and prints what the best proposal is worth on further seeds. They are trained here and now: no search of a
published study is on record. ``--seconds`` ends it after the repetition that is running.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from benchmarks.agent_loop import SCRIPT, edited, loss
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.study import Objective, Search

TRIALS = (12, 24, 60)
NUM_JUDGED = 5
SMALL_SEED = 777


def _range(kind: str, low: float, high: float, is_log: bool = True) -> dict[str, Any]:
    return {"type": kind, "low": low, "high": high, "log": is_log}


def language_model(values: Mapping[str, Any], seed: int, is_small: bool) -> float:
    """Held-out loss of the small language model of ``agent_script``; the small one has half the steps."""
    source = edited(SCRIPT.read_text(), "steps = 75") if is_small else SCRIPT.read_text()
    for name, value in values.items():
        source = edited(source, f"{name} = {value}")
    with np.errstate(all="ignore"):
        return min(loss(source, seed), 10.0)


@cache
def _digits(seed: int, is_small: bool) -> Any:
    images, labels = load_digits(return_X_y=True)
    num = 100 if is_small else 300
    return train_test_split(images / 16, labels, train_size=num, test_size=600, random_state=seed)


def digits(values: Mapping[str, Any], seed: int, is_small: bool) -> float:
    """Share of digits that a classifier takes for others; the small one sees a third of the training set."""
    settings = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
    classifier = {"svc": SVC, "neighbours": KNeighborsClassifier, "ridge": RidgeClassifier}
    train, test, train_labels, test_labels = _digits(seed, is_small)
    fitted = classifier[values.get("kind", "svc")](**settings).fit(train, train_labels)
    return 100 * float(1 - fitted.score(test, test_labels))


SVC_SPACE = {"svc.C": _range("float", 1e-2, 1e3), "svc.gamma": _range("float", 1e-4, 10.0)}
SEARCHES: dict[str, tuple[Callable[[Mapping[str, Any], int, bool], float], dict[str, Any]]] = {
    "language model, 6 settings": (
        language_model,
        {
            "learning_rate": _range("float", 0.01, 3.0),
            "width": _range("int", 4, 64),
            "context": _range("int", 1, 6, is_log=False),
            "batch": _range("int", 4, 64),
            "output_scale": _range("float", 0.01, 10.0),
            "decay": _range("float", 0.0, 1.0, is_log=False),
        },
    ),
    "digits, SVC, 2 settings": (digits, SVC_SPACE),
    "digits, 3 classifiers, 6 settings of which 5 have conditions": (
        digits,
        {
            "kind": {"type": "categorical", "choices": ["svc", "neighbours", "ridge"]},
            **{path: domain | {"when": {"kind": "svc"}} for path, domain in SVC_SPACE.items()},
            "neighbours.n_neighbors": _range("int", 1, 30) | {"when": {"kind": "neighbours"}},
            "neighbours.p": _range("float", 1.0, 4.0, is_log=False) | {"when": {"kind": "neighbours"}},
            "ridge.alpha": _range("float", 1e-3, 1e3) | {"when": {"kind": "ridge"}},
        },
    ),
}


@dataclass(frozen=True)
class Variant:
    """A sampler, and whether it starts from the best of a small search."""

    sampler: str
    has_start: bool = False


VARIANTS = {
    "random": Variant("random"),
    "tpe": Variant("tpe"),
    "gp": Variant("gp"),
    "tpe, started": Variant("tpe", True),
    "gp, started": Variant("gp", True),
}


def search(
    objective: Callable[[Mapping[str, Any], int], float],
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
        value = objective(values, 1000 * seed + number)
        metrics = {"dev/loss": value}
        study.tell(number, TrialRecord(fingerprint="", config={}, seed=0, state="finished", metrics=metrics))
        yield values, value


def repetition(name: str, number: int) -> Iterator[tuple[str, int, float]]:
    """Run each variant once; yield its name, the trials, and the worth of the best proposal among these."""
    train, space = SEARCHES[name]

    def judged(values: Mapping[str, Any]) -> float:
        return float(np.mean([train(values, 10**6 + seed, False) for seed in range(NUM_JUDGED)]))

    small = search(lambda v, s: train(v, s, True), space, "random", SMALL_SEED + number, 24, [])
    start = min(small, key=lambda tried: tried[1])[0]
    for label, variant in VARIANTS.items():
        tried = [
            *search(
                lambda v, s: train(v, s, False),
                space,
                variant.sampler,
                number,
                TRIALS[-1],
                [start] if variant.has_start else [],
            )
        ]
        for num in TRIALS:
            yield label, num, judged(min(tried[:num], key=lambda attempt: attempt[1])[0])


def main() -> None:
    """Print a table for each search."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=__doc__)
    parser.add_argument("--num", type=int, default=10, help="repetitions")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    worth: dict[str, dict[tuple[str, int], list[float]]] = {name: defaultdict(list) for name in SEARCHES}
    for number in range(1, options.num + 1):
        for name in SEARCHES:
            for label, num, value in repetition(name, number):
                worth[name][label, num].append(value)
        print(f"{number} repetitions")
        for name, values in worth.items():
            print(f"\n| {name} | " + " | ".join(f"{num} trials" for num in TRIALS) + " |\n|---|---|---|---|")
            for label in VARIANTS:
                cells = [values[label, num] for num in TRIALS]
                shown = [f"{np.mean(c):.3f} ± {np.std(c) / np.sqrt(max(1, len(c) - 1)):.3f}" for c in cells]
                print(f"| {label} | " + " | ".join(shown) + " |", flush=True)
        if time.monotonic() > end:
            return


if __name__ == "__main__":
    main()
