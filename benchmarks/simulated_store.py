"""A simulated store: cells are trained, reports are shown, and verdicts follow the rules over its ledger.

Scores of seeds are normal and independent between cells; tests, looks, corrections and rules are the
platform's own. A report is judged in two ways: ``file``, by the file's own correction, over all that it
declares; ``ledger``, by what a report of the store says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from typing import Literal

import numpy as np

from nlgraft.analysis.data.ledger import (
    VERSION,
    Entry,
    LedgerQuestion,
    NoisePrior,
    Plan,
    Segments,
    Training,
)
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.noise_prior import applicable, moderated, prior_from, study_variance
from nlgraft.analysis.estimates.resampling import Either, holm_either, open_as_one
from nlgraft.analysis.policy.rules import FIRST, Rules, over_looks, p_of_looks

Judge = Literal["file", "ledger"]
Pair = tuple[str, str]
"""A cell and the baseline."""

_FEW = 2
_KINDS = ("cell", "cell")
_SEGMENTS = Segments.of([f"segment {number}" for number in range(200)])


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """What a simulated study declares.

    Attributes:
        questions: The cells of each question of the family.
        baseline: Name of the baseline.
        metric: The metric that decides.
        metrics: All metrics that its reports show; those of the store if None.
        looks: Numbers of seeds at which it is tested; all its seeds, twice and four times if none are given.
        num_seeds: Seeds that it declares, if more than those that are finished.
        is_corrected: True with Holm's correction.
        alpha: Level.
        margin: Difference that it declares too small to matter.
        name: Name of the study; the noise of studies of other names is known to it.
    """

    questions: tuple[Pair, ...]
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
        metrics: Names of the metrics, which correlate at .5.
        seed_variance: Variance of a cell's score between its seeds.
        segment_variance: Variance of a cell's score from the choice of segments.
        scales: Factors of the deviation between seeds by cell; 1 for those not named.

    Attributes:
        verdicts: Questions that were decided in any report, by the way of judging it.
        equalities: Questions whose cells were called equal, and the margin, likewise.
    """

    rng: np.random.Generator
    effects: dict[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("score",)
    seed_variance: float = 1.0
    segment_variance: float = 0.0
    scales: dict[str, float] = field(default_factory=dict)
    verdicts: dict[Judge, set[Pair]] = field(default_factory=lambda: {"file": set(), "ledger": set()})
    equalities: dict[Judge, set[tuple[Pair, float]]] = field(
        default_factory=lambda: {"file": set(), "ledger": set()}
    )
    _errors: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _offsets: dict[str, float] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _rules: dict[Segments, Rules] = field(default_factory=dict)

    def report(
        self,
        file: StudyFile,
        seeds: Iterable[int],
        *,
        run: Collection[str] | None = None,
        lost_trials: Collection[tuple[str, int]] = (),
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
        seeds = tuple(seeds)
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
        rules = self._rules_of(segments)

        @cache
        def fresh_prior() -> NoisePrior | None:
            others = [entry for entry in self._entries if entry.study != file.name]
            return prior_from(others, file.metric, _KINDS, dict.fromkeys(file.cells, own_plan.seeds))

        def test(cells: Pair, prior: NoisePrior | None, some: Sequence[int] | None) -> Comparison:
            usable = prior
            common = [seed for seed in scores[cells[0]] if seed in scores[cells[1]]]
            used = common if some is None else list(some)
            if prior and len(used) >= _FEW:
                of_used = {
                    cell: {seed: by_seed[seed] for seed in used if seed in by_seed}
                    for cell, by_seed in scores.items()
                }
                usable = applicable(prior, study_variance(trainings, of_used, _KINDS), len(used))
            compared = self._compare(cells, scores, used, file.metric, usable)
            return replace(compared, prior=prior, margin=file.margin)

        def answer(cells: Pair, plan: Plan) -> LedgerQuestion:
            compared_cells = file.metric, tuple(sorted(cells))
            prior = rules.priors[compared_cells] if compared_cells in rules.priors else fresh_prior()
            compared = over_looks(plan, partial(test, cells, prior))
            return LedgerQuestion(
                metric=file.metric,
                cells=cells,
                family=file.metric,
                seeds=compared.seeds,
                looks=compared.looks,
                is_judged=len(scores[cells[0]].keys() & scores[cells[1]].keys()) in (0, len(seeds)),
                difference=compared.difference if compared.looks else None,
                p=compared.p if compared.looks else None,
                equal_margin=file.margin,
                prior=prior,
            )

        shown = [answer(cells, own_plan) for cells in file.questions]
        self._note("file", file, _by_file(file, own_plan, shown))
        plans = [rules.plan(cells, own_plan) for cells in file.questions]
        questions = [
            question if plan == own_plan else answer(cells, plan)
            for cells, question, plan in zip(file.questions, shown, plans, strict=True)
        ]
        entry = Entry(
            version=VERSION,
            time="",
            study=file.name,
            variant=file.name,
            system="system",
            segments=segments,
            baseline=file.baseline,
            cells=file.cells,
            metrics=tuple(dict.fromkeys([file.metric, *(file.metrics or self.metrics)])),
            plan=own_plan,
            alpha=file.alpha,
            asked=tuple(questions),
            scores=scores,
            trainings=trainings,
        )
        self._entries.append(entry)
        for earlier, earlier_rules in self._rules.items():
            if earlier.overlaps(segments):
                earlier_rules.add(entry)
        answers = [rules.answer(entry, question) for question in questions]
        pairs = [
            (judged.p, judged.p_equal) if question.is_judged else (None, None)
            for question, judged in zip(questions, answers, strict=True)
        ]
        self._note("ledger", file, pairs)
        return shown

    def p(self, metric: str, cells: Pair, seeds: Iterable[int]) -> float:
        """Look at a p-value without a report."""
        seeds = tuple(seeds)
        scores = {cell: {seed: self.score(cell, seed, metric) for seed in seeds} for cell in cells}
        return self._compare(cells, scores, seeds, metric, None).p or 0.0

    def score(self, cell: str, seed: int, metric: str) -> float:
        """Train a cell with a seed unless it is trained, and score it."""
        if (cell, seed) not in self._errors:
            common, own_errors = self.rng.standard_normal(), self.rng.standard_normal(len(self.metrics))
            if cell not in self._offsets:
                self._offsets[cell] = self.rng.standard_normal() * math.sqrt(self.segment_variance)
            deviation = math.sqrt(self.seed_variance) * self.scales.get(_original(cell), 1.0)
            errors = math.sqrt(0.5) * (common + own_errors) * deviation + self._offsets[cell]
            self._errors[cell, seed] = errors.tolist()
        return self._errors[cell, seed][self.metrics.index(metric)] + self._mean(cell)

    def has_erred(self, judge: Judge) -> bool:
        """True if any report had a verdict without a true difference, or called a large one equal."""
        is_unequal = [abs(self._difference(cells)) >= margin for cells, margin in self.equalities[judge]]
        return any(is_unequal) or any(self._difference(cells) == 0 for cells in self.verdicts[judge])

    def _rules_of(self, segments: Segments) -> Rules:
        if segments not in self._rules:
            self._rules[segments] = Rules(
                entry for entry in self._entries if entry.segments.overlaps(segments)
            )
        return self._rules[segments]

    def _compare(
        self,
        cells: Pair,
        scores: Mapping[str, Mapping[int, float]],
        seeds: Sequence[int],
        metric: str,
        prior: NoisePrior | None,
    ) -> Comparison:
        """Compare two cells; what resampled segments would tell of their choice is known."""
        empty = Comparison(metric=metric, a=cells[0], b=cells[1], seeds=tuple(seeds))
        if len(seeds) < _FEW:
            return empty
        estimate = moderated([scores[cells[0]][seed] - scores[cells[1]][seed] for seed in seeds], prior)
        estimate = replace(estimate, segment_variance=2 * self.segment_variance)
        return replace(
            empty,
            difference=estimate.difference,
            p=estimate.p,
            estimate=estimate,
        )

    def _note(self, judge: Judge, file: StudyFile, p_values: Sequence[Either]) -> None:
        for cells, (p, p_equal) in zip(file.questions, p_values, strict=True):
            if p is not None and p <= file.alpha:
                self.verdicts[judge].add(cells)
            if file.margin is not None and p_equal is not None and p_equal <= file.alpha:
                self.equalities[judge].add((cells, file.margin))

    def _difference(self, cells: Pair) -> float:
        return self._mean(cells[0]) - self._mean(cells[1])

    def _mean(self, cell: str) -> float:
        return self.effects.get(_original(cell), 0.0)


def _by_file(file: StudyFile, plan: Plan, shown: Sequence[LedgerQuestion]) -> list[Either]:
    """Correct p-values over all that a file declares; a question without a look counts as 1."""
    pairs = [open_as_one(p_of_looks(plan, question.looks, question.prior), file.margin) for question in shown]
    if not file.is_corrected:
        return pairs
    # The families of a first declaration have a share of the level.
    return [(p and p / FIRST, equal and equal / FIRST) for p, equal in holm_either(pairs)]


def _original(cell: str) -> str:
    """Return the cell of which a cell is a variant."""
    return cell.partition("@")[0]
