"""What happens to a study that does not go as declared, by simulation.

Trainings may go wrong (`Trouble`), or the study may be run, and run again, in other ways than its file
says. In half of the simulated studies no cell differs; in the other half one cell of the first
comparison has the effect that the study, as declared, finds in four of five cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nlgraft.analysis.data.ledger import LedgerQuestion, NoisePrior
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.policy.simulated_store import Judge, SimulatedStore, StudyFile, Trouble

RANDOM_SEED = 20261122
_JUDGES: tuple[Judge, ...] = ("file", "ledger")
_Z = 1.96
_FEW = 2
_LEAST = 1e-9

Way = Callable[[SimulatedStore, StudyFile, int], None]
"""Reports a study with so many seeds, or several of its kind."""


@dataclass(frozen=True)
class Design:
    """What a simulation needs to know of a study.

    Attributes:
        weights: Weights of the cells in each comparison, shape (comparisons, cells), the baseline first.
        looks: Numbers of seeds at which results are tested.
        num_seeds: Seeds of the study.
        alpha: Level.
        is_corrected: True with Holm's correction.
        seed_variance: Variance between the seeds' differences of two cells.
        segment_variance: Variance of the difference of two cells from the choice of segments.
        is_assumed: True if the variances are assumed.
        fall: Distance from a cell's mean to the score of a collapsed seed.
        has_margin: True if the study declares a difference too small to matter, which is not simulated.
        prior: Noise of earlier studies.
    """

    weights: Array
    looks: tuple[int, ...]
    num_seeds: int
    alpha: float
    is_corrected: bool
    seed_variance: float
    segment_variance: float
    is_assumed: bool
    fall: float = 20.0
    has_margin: bool = False
    prior: NoisePrior | None = None

    @property
    def changed(self) -> int:
        """Index of the cell that has the effect: of the first comparison, and not the baseline."""
        return 1 + int(np.flatnonzero(self.weights[0, 1:])[0])

    @property
    def run_looks(self) -> list[int]:
        """The looks that a run takes."""
        return [look for look in self.looks if look <= self.num_seeds] or [self.num_seeds]

    def store(self, rng: np.random.Generator, trouble: Trouble) -> SimulatedStore:
        """Make an empty store in which no cell differs."""
        return SimulatedStore(
            rng,
            # The design has the variance of a difference between two cells; each cell carries half of it.
            seed_variance=max(self.seed_variance, _LEAST * self.segment_variance) / 2,
            segment_variance=self.segment_variance / 2,
            trouble=trouble,
            prior=self.prior,
        )


@dataclass(frozen=True)
class Departure:
    """How far a study departs from what it declares.

    Attributes:
        collapse: Share of seeds that end at a trivial score.
        pretraining: Variance of a difference from a pretraining that all seeds share, in units of that
            between seeds.
        tries: Reports of somebody who goes on until something is significant.
    """

    collapse: float = 0.1
    pretraining: float = 1.0
    tries: int = 3


@dataclass(frozen=True)
class Rate:
    """A share of simulated studies.

    Attributes:
        value: The share.
        num: Number of studies.
    """

    value: float
    num: int

    @property
    def error(self) -> float:
        """Half of the 95 % interval of Agresti and Coull (1998), which is not zero for shares of 0 and 1."""
        total = self.num + _Z**2
        middle = (self.value * self.num + _Z**2 / 2) / total
        return _Z * math.sqrt(middle * (1 - middle) / total)

    def to_json(self) -> dict[str, float]:
        """Return the share and its Monte-Carlo error."""
        return {"rate": self.value, "error": self.error}


@dataclass(frozen=True)
class Course:
    """A course of events.

    Attributes:
        name: Its name.
        description: What happens, for a reader without statistics.
        advice: What to do about it.
    """

    name: str
    description: str
    advice: str = ""


@dataclass(frozen=True)
class Outcome:
    """What happens to a study in a course of events.

    Attributes:
        course: The course.
        errs: Share of studies without any effect in which some report has a verdict, by what judges.
        finds: Share of studies in which some report has a verdict on the effect, likewise.
        coverage: Share of intervals that contain the true difference; None where there are several reports.
    """

    course: Course
    errs: Mapping[Judge, Rate]
    finds: Mapping[Judge, Rate]
    coverage: Rate | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the rates as JSON values."""
        return {
            "name": self.course.name,
            "description": self.course.description,
            "advice": self.course.advice,
            "false_verdicts": {judge: rate.to_json() for judge, rate in self.errs.items()},
            "effect_found": {judge: rate.to_json() for judge, rate in self.finds.items()},
            "coverage": None if self.coverage is None else self.coverage.to_json(),
        }


@dataclass(frozen=True)
class Declared:
    """Studies that are run as declared.

    Attributes:
        outcome: What happens to them.
        power: Share of studies that find the effect, by its size.
        single: Share of comparisons, where nothing differs, that are decided.
        mean_seeds: Seeds at which a comparison is decided, or the last, on average.
    """

    outcome: Outcome
    power: Mapping[float, float]
    single: float
    mean_seeds: float


def run_as_declared(
    design: Design, num: int, effects: Sequence[float], course: Course, trouble: Trouble | None = None
) -> Declared:
    """Simulate studies that are run as they are declared, in stores of their own.

    Args:
        design: The design.
        num: Number of simulated studies.
        effects: Sizes of the effect of one cell, that of the outcome first.
        course: What the outcome is called.
        trouble: What goes wrong with trainings.
    """
    file, rng = study_file(design), np.random.default_rng(RANDOM_SEED)
    first, changed = file.questions[0], f"cell{design.changed}"
    erring = np.zeros(num)
    decided, covered, seeds = (np.zeros((num, len(file.questions))) for _ in range(3))
    finds = np.zeros((num, len(effects)))
    for index in range(num):
        store = design.store(rng, trouble or Trouble())
        for look in design.run_looks:
            is_open = decided[index] == 0
            covered[index] = [
                _covers_zero(question, design.alpha) for question in store.report(file, range(look))
            ]
            seeds[index, is_open] = look
            decided[index] = [cells in store.verdicts["ledger"] for cells in file.questions]
        erring[index] = store.has_erred("ledger")
        for place, effect in enumerate(effects):
            other = store.twin({changed: effect})
            for look in design.run_looks:
                other.report(file, range(look))
            finds[index, place] = other.has_found("ledger", first)
    shares = finds.mean(axis=0)
    outcome = Outcome(
        course,
        dict.fromkeys(_JUDGES, Rate(float(erring.mean()), num)),
        dict.fromkeys(_JUDGES, Rate(float(shares[0]), num)),
        Rate(float(covered.mean()), num),
    )
    power = dict(zip(effects, map(float, shares), strict=True))
    return Declared(outcome, power, float(decided.mean()), float(seeds.mean()))


def _covers_zero(question: LedgerQuestion, alpha: float) -> bool:
    """True if the interval at the last look contains zero, which its p-value says."""
    p = question.looks[max(question.looks)].p if question.looks else None
    return p is None or p > alpha


def outcomes(design: Design, num: int, effect: float, departure: Departure) -> list[Outcome]:
    """Simulate the courses of events beside the declared one that a design allows.

    Args:
        design: The design.
        num: Number of simulated studies of each kind.
        effect: Size of the effect, in the unit of the scores.
        departure: How far the study departs.
    """
    trainings = [
        run_as_declared(design, num, [effect], course, trouble).outcome
        for course, trouble in _troubles(design, departure)
    ]
    ways = [_repeated(design, num, effect, *way) for way in _ways(design, departure.tries)]
    return [*ways, *trainings]


def _troubles(design: Design, departure: Departure) -> list[tuple[Course, Trouble]]:
    return [
        (
            Course(
                "collapse",
                f"{100 * departure.collapse:g} % of the seeds collapse to a trivial score",
                "a report names the seeds that diverged; where cells are unstable, plan more seeds",
            ),
            Trouble(collapse=departure.collapse, fall=design.fall),
        ),
        (
            Course(
                "one pretraining",
                "all seeds share one pretraining, which suits some cells "
                f"(variance {departure.pretraining:g} times the seeds')",
                "a report says 'for this one pretraining'; with is_per_seed: true every seed has its own",
            ),
            Trouble(pretraining=departure.pretraining * design.seed_variance / 2),
        ),
    ]


def _repeated(design: Design, num: int, effect: float, course: Course, walk: Way) -> Outcome:
    """Let somebody report studies in a way through the tool, each in a store of its own."""
    file = study_file(design)
    first = file.questions[0]
    errors, hits = dict.fromkeys(_JUDGES, 0), dict.fromkeys(_JUDGES, 0)
    rng = np.random.default_rng(RANDOM_SEED)
    for _ in range(num):
        nothing = design.store(rng, Trouble())
        walk(nothing, file, design.num_seeds)
        something = nothing.twin({f"cell{design.changed}": effect})
        walk(something, file, design.num_seeds)
        for judge in _JUDGES:
            errors[judge] += nothing.has_erred(judge)
            hits[judge] += something.has_found(judge, first)
    return Outcome(course, _shares(errors, num), _shares(hits, num))


def _shares(counts: Mapping[Judge, int], num: int) -> dict[Judge, Rate]:
    return {judge: Rate(count / num, num) for judge, count in counts.items()}


def study_file(design: Design) -> StudyFile:
    """Write a design as the file of a simulated store, whose cells are ``cell0``, the baseline, and so on."""
    questions = []
    for row in design.weights:
        added, subtracted = (
            [f"cell{index}" for index, weight in enumerate(sign * row) for _ in range(int(max(weight, 0)))]
            for sign in (1, -1)
        )
        questions.append((added[0], *subtracted, *added[1:]))
    return StudyFile(
        questions=tuple(questions),
        baseline="cell0",
        looks=design.looks,
        is_corrected=design.is_corrected,
        alpha=design.alpha,
    )


def _ways(design: Design, tries: int) -> Iterator[tuple[Course, Way]]:
    if np.count_nonzero(design.weights[:, 1:].any(axis=0)) > 1:
        yield (
            Course(
                "only",
                "cells run one by one (--only), a report after each",
                "costs nothing, since the correction counts all cells of the file from the start",
            ),
            _only,
        )
        yield (
            Course(
                "cells added",
                "cells added to the file, a report after each",
                "declare all of them first and run them with --only",
            ),
            _added,
        )
    if following := [look for look in design.looks if look > design.num_seeds]:
        yield (
            Course(
                "next looks",
                f"undecided questions continued (--next-look): {', '.join(map(str, following))} seeds",
                "what a study should do that is undecided",
            ),
            partial(_next_looks, following),
        )
    seeds = ", ".join(str(design.num_seeds + number) for number in range(1, tries + 1))
    yield (
        Course(
            "more seeds",
            f"seeds added after looking, beside the looks: {seeds}",
            "only seeds of a look count; run --next-look takes them",
        ),
        partial(_more_seeds, tries),
    )
    yield (
        Course(
            "variants",
            f"overrides tried until one is significant: {tries} variants",
            "declare them as levels of a factor of one study",
        ),
        partial(_variants, tries),
    )


def _only(store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    for last in range(_FEW, len(file.cells) + 1):
        store.report(file, range(num_seeds), run=file.cells[:last])


def _added(store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    """Add the cell with the effect last."""
    last = next(cell for cell in file.questions[0] if cell != file.baseline)
    reported_cells = {file.baseline}
    for cell in (*(cell for cell in file.cells[1:] if cell != last), last):
        reported_cells.add(cell)
        questions = tuple(cells for cells in file.questions if reported_cells.issuperset(cells))
        if questions:
            store.report(replace(file, questions=questions), range(num_seeds))


def _next_looks(following: Sequence[int], store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    for number in (num_seeds, *following):
        store.report(file, range(number))


def _more_seeds(tries: int, store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    """Write the number of seeds into the file each time, as if nothing had been planned."""
    for number in range(num_seeds, num_seeds + tries + 1):
        store.report(replace(file, looks=()), range(number))


def _variants(tries: int, store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    for number in range(tries):
        questions = tuple(tuple(f"{cell}@{number}" for cell in cells) for cells in file.questions)
        variant = replace(file, questions=questions, baseline=f"{file.baseline}@{number}")
        store.report(variant, range(num_seeds))
