"""A simulated store: cells are trained, reports are shown, and verdicts follow the rules over its ledger.

Scores of seeds are normal and independent between cells; tests, looks, corrections and rules are the
platform's own. A report is judged in two ways: ``file``, by the file's own correction, over all that it
declares; ``ledger``, by what a report of the store says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, islice
from typing import Literal

import numpy as np

from nlgraft.analysis.data.ledger import (
    VERSION,
    Entry,
    LedgerQuestion,
    Look,
    NoisePrior,
    Plan,
    Segments,
    Training,
)
from nlgraft.analysis.estimates.noise_prior import (
    Estimate,
    StudyVariance,
    applicable,
    moderated,
    prior_from,
    study_variance,
)
from nlgraft.analysis.estimates.question import SIGNS
from nlgraft.analysis.estimates.resampling import Either
from nlgraft.analysis.policy.rules import FIRST, Rules, corrected, p_of_looks

Judge = Literal["file", "ledger"]

_FEW = 2
_KINDS = ("cell", "cell")
_SEGMENTS = Segments.of([f"segment {number}" for number in range(200)])


@dataclass(frozen=True)
class Trouble:
    """What may go wrong with the trainings of a study.

    Attributes:
        collapse: Share of seeds that end at a trivial score.
        fall: Distance from a cell's mean to that score.
        pretraining: Variance of a cell's score from the one pretraining that all its seeds share.
    """

    collapse: float = 0.0
    fall: float = 20.0
    pretraining: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """What a simulated study declares.

    Attributes:
        questions: The cells of each question of the family, two or four as in a `Question`.
        baseline: Name of the baseline.
        metric: The metric that decides.
        metrics: Further metrics that its reports show.
        looks: Numbers of seeds at which it is tested; all its seeds, twice and four times if none are given.
        num_seeds: Seeds that it declares, if more than those that are finished.
        is_corrected: True with Holm's correction.
        alpha: Level.
        margin: Difference that it declares too small to matter.
        name: Name of the study; the noise of studies of other names is known to it.
    """

    questions: tuple[tuple[str, ...], ...]
    baseline: str = "base"
    metric: str = "score"
    metrics: tuple[str, ...] | None = None
    looks: tuple[int, ...] = ()
    num_seeds: int = 0
    is_corrected: bool = True
    alpha: float = 0.05
    margin: float | None = None
    name: str = "study"

    def plan(self, seeds: Sequence[int]) -> Plan:
        """Say when its questions are answered, as a study with these seeds does."""
        num = max(_FEW, self.num_seeds or len(seeds))
        looks = self.looks or (num, 2 * num, 4 * num)
        following = (seed for seed in count(max(seeds) + 1) if seed not in seeds)
        further = islice(following, max(0, looks[-1] - len(seeds)))
        return Plan(seeds=(*seeds, *further), looks=looks)

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells, the baseline first."""
        return tuple(dict.fromkeys([self.baseline, *(cell for cells in self.questions for cell in cells)]))


@dataclass
class SimulatedStore:
    """A store in which cells are trained and studies are reported.

    Args:
        rng: Draws the scores.
        effects: True means by cell, which variants of it (``cell@1``) share; 0 for those not named.
        metrics: Names of the metrics.
        correlation: Correlation of the metrics.
        seed_variance: Variance of a cell's score between its seeds.
        segment_variance: Variance of a cell's score from the choice of segments.
        trouble: What goes wrong with trainings.
        scales: Factors of the deviation between seeds by cell; 1 for those not named.
        prior: Noise of earlier studies that are not simulated.

    Attributes:
        verdicts: Cells of the questions that were decided in any report, by the way of judging it.
        equalities: Cells that were called equal, and the margin, likewise.
    """

    rng: np.random.Generator
    effects: dict[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("score",)
    correlation: float = 0.5
    seed_variance: float = 1.0
    segment_variance: float = 0.0
    trouble: Trouble = field(default_factory=Trouble)
    scales: dict[str, float] = field(default_factory=dict)
    prior: NoisePrior | None = None
    verdicts: dict[Judge, set[tuple[str, ...]]] = field(default_factory=dict)
    equalities: dict[Judge, set[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    _errors: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _offsets: dict[str, float] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _rules: dict[Segments, Rules] = field(default_factory=dict)

    def twin(self, effects: dict[str, float]) -> SimulatedStore:
        """Return an empty store in which the same trials have the same errors, and other effects."""
        return replace(self, effects=effects, verdicts={}, equalities={}, _entries=[], _rules={})

    def report(
        self,
        file: StudyFile,
        seeds: Iterable[int],
        *,
        run: Collection[str] | None = None,
        lost_trials: Iterable[tuple[str, int]] = (),
        segments: Segments = _SEGMENTS,
    ) -> list[LedgerQuestion]:
        """Show a report; return the file's questions, answered by its own looks and without any correction.

        Args:
            file: What the study declares.
            seeds: Seeds that are finished.
            run: Cells that were run; all if None.
            lost_trials: Cells and seeds that crashed.
            segments: The test segments.
        """
        seeds, lost_trials = tuple(seeds), set(lost_trials)
        own_plan = file.plan(seeds)
        scores = {
            cell: {
                seed: self.score(cell, seed, file.metric)
                for seed in seeds
                if (run is None or cell in run) and (cell, seed) not in lost_trials
            }
            for cell in file.cells
        }
        trainings = {cell: Training(kind=_KINDS[0], weights=cell) for cell in file.cells}

        @cache
        def fresh() -> NoisePrior | None:
            others = [entry for entry in self._entries if entry.study != file.name]
            judged = dict.fromkeys(file.cells, own_plan.seeds)
            return prior_from(others, file.metric, _KINDS, judged) or self.prior

        @cache
        def study_noise(some: Sequence[int]) -> StudyVariance:
            on_some = {
                cell: {n: v for n, v in by_seed.items() if n in some} for cell, by_seed in scores.items()
            }
            return study_variance(trainings, on_some, _KINDS)

        def answer(cells: tuple[str, ...], plan: Plan) -> LedgerQuestion:
            common = [seed for seed in scores[cells[0]] if all(seed in scores[cell] for cell in cells)]
            prior = past.prior(file.metric, cells, fresh)
            looks = {}
            for number in plan.taken(common):
                some = plan.seeds[:number]
                usable = applicable(prior, study_noise(some), number) if prior else None
                looks[number] = _look(self._estimate(cells, scores, some, usable), file.margin)
            return LedgerQuestion(
                metric=file.metric,
                cells=cells,
                family=file.metric,
                seeds=tuple(common),
                looks=looks,
                is_judged=len(common) in (0, len(seeds)),
                difference=looks[max(looks)].difference if looks else None,
                p=p_of_looks(plan, looks, prior)[0],
                equal_margin=file.margin,
                prior=prior,
            )

        past = self._rules_of(segments)
        shown = [answer(cells, own_plan) for cells in file.questions]
        plans = [past.plan(cells, own_plan) for cells in file.questions]
        questions = [
            question if plan == own_plan else answer(question.cells, plan)
            for question, plan in zip(shown, plans, strict=True)
        ]
        self._note("file", file, _by_file(file, own_plan, shown))
        further = self.metrics if file.metrics is None else file.metrics
        entry = Entry(
            version=VERSION,
            time="",
            study=file.name,
            variant=file.name,
            system="system",
            segments=segments,
            baseline=file.baseline,
            cells=file.cells,
            metrics=tuple(dict.fromkeys([file.metric, *further])),
            plan=own_plan,
            alpha=file.alpha,
            asked=tuple(questions),
            scores=scores,
            trainings=trainings,
        )
        self._entries.append(entry)
        for earlier, rules in self._rules.items():
            if earlier.overlaps(segments):
                rules.add(entry)
        answers = [past.answer(entry, question) for question in questions]
        pairs = [
            (judged.p, judged.p_equal) if question.is_judged else (None, None)
            for question, judged in zip(questions, answers, strict=True)
        ]
        self._note("ledger", file, pairs)
        return shown

    def p(self, metric: str, cells: tuple[str, ...], seeds: Iterable[int]) -> float:
        """Look at a p-value without a report."""
        seeds = tuple(seeds)
        scores = {cell: {seed: self.score(cell, seed, metric) for seed in seeds} for cell in cells}
        return self._estimate(cells, scores, seeds, None).p or 0.0

    def score(self, cell: str, seed: int, metric: str) -> float:
        """Train a cell with a seed unless it is trained, and score it."""
        error = self._trained(cell, seed)[self.metrics.index(metric)]
        return error + self._mean(cell) if math.isfinite(error) else -self.trouble.fall

    def has_erred(self, judge: Judge) -> bool:
        """True if any report had a verdict without a true difference, or called a large one equal."""
        is_unequal = [
            abs(self._difference(cells)) >= margin for cells, margin in self.equalities.get(judge, ())
        ]
        return any(is_unequal) or any(self._difference(cells) == 0 for cells in self.verdicts.get(judge, ()))

    def has_found(self, judge: Judge, cells: tuple[str, ...]) -> bool:
        """True if any report, also one of a variant, had a verdict on these cells."""
        return any(tuple(map(_original, decided)) == cells for decided in self.verdicts.get(judge, ()))

    def _rules_of(self, segments: Segments) -> Rules:
        if segments not in self._rules:
            self._rules[segments] = Rules(
                entry for entry in self._entries if entry.segments.overlaps(segments)
            )
        return self._rules[segments]

    def _estimate(
        self,
        cells: tuple[str, ...],
        scores: Mapping[str, Mapping[int, float]],
        seeds: Sequence[int],
        prior: NoisePrior | None,
    ) -> Estimate:
        """Estimate a question's difference; what resampled segments would tell of their choice is known."""
        pairs = list(zip(SIGNS, (scores[cell] for cell in cells), strict=False))
        gains = [sum(sign * by_seed[seed] for sign, by_seed in pairs) for seed in seeds]
        scaled = prior and replace(prior, variance=len(cells) / 2 * prior.variance)
        return replace(moderated(gains, scaled), segment_variance=len(cells) * self.segment_variance)

    def _note(self, judge: Judge, file: StudyFile, p_values: Sequence[Either]) -> None:
        judged = list(zip(file.questions, p_values, strict=True))
        decided = {cells for cells, (p, _) in judged if p is not None and p <= file.alpha}
        self.verdicts[judge] = self.verdicts.get(judge, set()) | decided
        if file.margin is not None:
            equal = {(cells, file.margin) for cells, (_, p) in judged if p is not None and p <= file.alpha}
            self.equalities[judge] = self.equalities.get(judge, set()) | equal

    def _difference(self, cells: tuple[str, ...]) -> float:
        return sum(sign * self._mean(cell) for sign, cell in zip(SIGNS, cells, strict=False))

    def _mean(self, cell: str) -> float:
        return self.effects.get(_original(cell), 0.0)

    def _trained(self, cell: str, seed: int) -> list[float]:
        """Return the errors of a trial's scores by metric; NaN where the training collapses."""
        if (cell, seed) not in self._errors:
            common, own_errors = self.rng.standard_normal(), self.rng.standard_normal(len(self.metrics))
            if cell not in self._offsets:
                shared = self.segment_variance + self.trouble.pretraining
                self._offsets[cell] = self.rng.standard_normal() * math.sqrt(shared)
            mixed = math.sqrt(self.correlation) * common + math.sqrt(1 - self.correlation) * own_errors
            deviation = math.sqrt(self.seed_variance) * self.scales.get(_original(cell), 1.0)
            values = mixed * deviation + self._offsets[cell]
            is_collapsed = self.rng.random() < self.trouble.collapse
            self._errors[cell, seed] = [math.nan] * len(values) if is_collapsed else values.tolist()
        return self._errors[cell, seed]


def _look(estimate: Estimate, margin: float | None) -> Look:
    p_equal = None if margin is None else estimate.equal_p(margin)
    return Look(difference=estimate.difference, p=estimate.p, p_equal=p_equal)


def _by_file(file: StudyFile, plan: Plan, shown: Sequence[LedgerQuestion]) -> list[Either]:
    """Correct p-values over all that a file declares; a question without a look counts as 1."""
    pairs: list[Either] = []
    for question in shown:
        p, p_equal = p_of_looks(plan, question.looks, question.prior)
        is_equal_tested = file.margin is not None
        pairs.append(
            (1.0 if p is None else p, (1.0 if p_equal is None else p_equal) if is_equal_tested else None)
        )
    return corrected(pairs, FIRST * file.alpha, file.alpha) if file.is_corrected else pairs


def _original(cell: str) -> str:
    """Return the cell of which a cell is a variant."""
    return cell.partition("@")[0]
