"""What happens to a study that does not go as declared, by simulation.

Trainings may go wrong (`Trouble`), or the study may be run, and run again, in other ways than its file
says. In half of the simulated studies no cell differs; in the other half one cell of the first
comparison has the effect that the study, as declared, finds in four of five cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nlgraft.analysis.statistics.simulated_store import Judge, SimulatedStore, StudyFile
from nlgraft.analysis.statistics.simulated_studies import RANDOM_SEED, Design, SimulatedStudies, Trouble

_JUDGES: tuple[Judge, ...] = ("file", "ledger")
_Z = 1.96
_FEW = 2
_LEAST = 1e-9

Way = Callable[[SimulatedStore, StudyFile, int], None]
"""Reports a study with so many seeds, or several of its kind."""


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


def outcomes(design: Design, num: int, effect: float, departure: Departure | None) -> list[Outcome]:
    """Simulate the courses of events that a design allows, the declared one first.

    Args:
        design: The design.
        num: Number of simulated studies of each kind.
        effect: Size of the effect, in the unit of the scores.
        departure: How far the study departs; None for the declared course alone.
    """
    declared = _with_trouble(design, num, effect, Course("as declared", "run once, as declared"), Trouble())
    if departure is None:
        return [declared]
    trainings = [_with_trouble(design, num, effect, *one) for one in _troubles(departure)]
    ways = [_repeated(design, num, effect, *one) for one in _ways(design, departure.tries)]
    return [declared, *ways, *trainings]


def _troubles(departure: Departure) -> list[tuple[Course, Trouble]]:
    return [
        (
            Course(
                "collapse",
                f"{100 * departure.collapse:g} % of the seeds collapse to a trivial score",
                "a report names the seeds that diverged; where cells are unstable, plan more seeds",
            ),
            Trouble(collapse=departure.collapse),
        ),
        (
            Course(
                "one pretraining",
                "all seeds share one pretraining, which suits some cells "
                f"(variance {departure.pretraining:g} times the seeds')",
                "a report says 'for this one pretraining'; with is_per_seed: true every seed has its own",
            ),
            Trouble(pretraining=departure.pretraining),
        ),
    ]


def _with_trouble(design: Design, num: int, effect: float, course: Course, trouble: Trouble) -> Outcome:
    nothing, something = (SimulatedStudies(design, num, size, trouble) for size in (0.0, effect))
    errs = Rate(float(nothing.is_significant.any(axis=1).mean()), num)
    finds = Rate(float(something.is_significant[:, 0].mean()), num)
    # A study that is analysed once, as declared, keeps its p-values over the ledger.
    coverage = Rate(float(nothing.is_covered.mean()), num)
    return Outcome(course, dict.fromkeys(_JUDGES, errs), dict.fromkeys(_JUDGES, finds), coverage)


def _repeated(design: Design, num: int, effect: float, course: Course, walk: Way) -> Outcome:
    """Let somebody report studies in a way through the tool, each in a store of its own."""
    file, num_seeds = study_file(design), design.looks[-1]
    first = file.questions[0]
    errors, hits = dict.fromkeys(_JUDGES, 0), dict.fromkeys(_JUDGES, 0)
    rng = np.random.default_rng(RANDOM_SEED)
    for _ in range(num):
        nothing = SimulatedStore(
            rng,
            seed_variance=max(design.seed_variance, _LEAST * design.segment_variance) / 2,
            segment_variance=design.segment_variance / 2,
        )
        walk(nothing, file, num_seeds)
        something = nothing.twin({f"cell{design.changed}": effect})
        walk(something, file, num_seeds)
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
    is_planned = len(design.looks) > 1 and not design.is_anytime
    return StudyFile(
        questions=tuple(questions),
        baseline="cell0",
        looks=design.looks if is_planned else (),
        is_anytime=design.is_anytime,
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
    seeds = ", ".join(str(design.looks[-1] * number) for number in range(1, tries + 1))
    yield (
        Course(
            "more seeds",
            f"seeds added after looking: {seeds}",
            "allowed, its tests hold at every number of seeds"
            if design.is_anytime
            else "plan looks, or use sequential: {kind: anytime}, which allows it",
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
    known = {file.baseline}
    for cell in (*(cell for cell in file.cells[1:] if cell != last), last):
        known.add(cell)
        questions = tuple(cells for cells in file.questions if known.issuperset(cells))
        if questions:
            store.report(replace(file, questions=questions), range(num_seeds))


def _more_seeds(tries: int, store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    for number in range(1, tries + 1):
        looks = tuple(range(2 * num_seeds, number * num_seeds + 1, num_seeds)) if file.looks else ()
        store.report(replace(file, looks=(*file.looks, *looks)), range(number * num_seeds))


def _variants(tries: int, store: SimulatedStore, file: StudyFile, num_seeds: int) -> None:
    for number in range(tries):
        questions = tuple(tuple(f"{cell}@{number}" for cell in cells) for cells in file.questions)
        variant = replace(file, questions=questions, baseline=f"{file.baseline}@{number}")
        store.report(variant, range(num_seeds))
