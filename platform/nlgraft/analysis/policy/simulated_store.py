"""A simulated store: cells are trained, reports are shown, and verdicts follow the rules over its ledger.

Scores of seeds are normal and independent between cells; comparisons, looks, corrections and rules are the
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

from nlgraft.analysis.data.ledger import VERSION, Asked, Entry, NoisePrior, Plan, Segments, Training
from nlgraft.analysis.data.trials import Array, Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.noise_prior import applicable, prior_from, study_variance, tail
from nlgraft.analysis.estimates.question import SIGNS
from nlgraft.analysis.estimates.resampling import Either
from nlgraft.analysis.policy.planned import over_looks
from nlgraft.analysis.policy.rules import FIRST, Rules, corrected

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
    _drawn: dict[tuple[str, int], Array] = field(default_factory=dict)
    _scores: dict[tuple[str, int], dict[str, Measured]] = field(default_factory=dict)
    _offsets: dict[str, float] = field(default_factory=dict)
    _compared: dict[tuple[object, ...], Comparison] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _comparer: Comparer = field(default_factory=Comparer)

    def twin(self, effects: dict[str, float]) -> SimulatedStore:
        """Return an empty store in which the same trials have the same errors, and other effects."""
        return replace(self, effects=effects, verdicts={}, equalities={}, _scores={}, _entries=[])

    def report(
        self,
        file: StudyFile,
        seeds: Iterable[int],
        *,
        run: Collection[str] | None = None,
        lost_trials: Iterable[tuple[str, int]] = (),
        segments: Segments = _SEGMENTS,
    ) -> list[Comparison]:
        """Show a report; return the comparisons of the file's questions before any correction.

        Args:
            file: What the study declares.
            seeds: Seeds that are finished.
            run: Cells that were run; all if None.
            lost_trials: Cells and seeds that crashed.
            segments: The test segments.
        """
        seeds, lost_trials = tuple(seeds), set(lost_trials)
        own_plan = file.plan(seeds)
        past = Rules(past_entry for past_entry in self._entries if past_entry.segments.overlaps(segments))
        trials = [(cell, seed) for cell in file.cells for seed in seeds if run is None or cell in run]
        scores: dict[str, dict[int, float]] = {cell: {} for cell in file.cells}
        for cell, seed in trials:
            if (cell, seed) not in lost_trials:
                scores[cell][seed] = self.score(cell, seed, file.metric)

        @cache
        def fresh() -> NoisePrior | None:
            others = [entry for entry in self._entries if entry.study != file.name]
            judged = dict.fromkeys(file.cells, own_plan.seeds)
            return prior_from(others, file.metric, _KINDS, judged) or self.prior

        shown: list[Comparison] = []
        questions: list[Asked] = []
        for cells in file.questions:
            common = set.intersection(*(set(scores[cell]) for cell in cells))
            is_even = len(common) in (0, len(seeds))
            prior = past.prior(file.metric, cells, fresh)
            shown.append(self._over_looks(file, cells, scores, own_plan, prior))
            plan = past.plan(cells, own_plan)
            by_rules = shown[-1] if plan == own_plan else self._over_looks(file, cells, scores, plan, prior)
            questions.append(self._asked(file, cells, by_rules, is_even))
        self._note("file", file, self._by_file(file, shown))
        entry = self._entry(file, scores, segments, tuple(questions), own_plan)
        past.add(entry)
        answers = [past.answer(entry, question) for question in questions]
        self._entries.append(entry)
        judged = zip(questions, answers, strict=True)
        pairs = [
            (answer.p, answer.p_equal) if question.is_judged else (None, None) for question, answer in judged
        ]
        self._note("ledger", file, pairs)
        return shown

    def p(self, metric: str, cells: tuple[str, ...], seeds: Iterable[int]) -> float:
        """Look at a p-value without a report."""
        compared = self._compare(metric, cells, tuple(seeds))
        return 1.0 if compared.p is None else compared.p

    def score(self, cell: str, seed: int, metric: str) -> float:
        """Train a cell with a seed unless it is trained, and score it."""
        return self._measured(cell, seed)[metric].value

    def has_erred(self, judge: Judge) -> bool:
        """True if any report had a verdict without a true difference, or called a large one equal."""
        is_unequal = [
            abs(self._difference(cells)) >= margin for cells, margin in self.equalities.get(judge, ())
        ]
        return any(is_unequal) or any(self._difference(cells) == 0 for cells in self.verdicts.get(judge, ()))

    def has_found(self, judge: Judge, cells: tuple[str, ...]) -> bool:
        """True if any report, also one of a variant, had a verdict on these cells."""
        return any(tuple(map(_original, decided)) == cells for decided in self.verdicts.get(judge, ()))

    def _over_looks(
        self,
        file: StudyFile,
        cells: tuple[str, ...],
        scores: Mapping[str, Mapping[int, float]],
        plan: Plan,
        prior: NoisePrior | None,
    ) -> Comparison:
        finished = [seed for seed in scores[cells[0]] if all(seed in scores[cell] for cell in cells)]

        def test(seeds: Sequence[int] | None) -> Comparison:
            some = finished if seeds is None else [seed for seed in finished if seed in seeds]
            usable = None
            if prior is not None:
                on_some = {
                    cell: {seed: value[seed] for seed in some if seed in value}
                    for cell, value in scores.items()
                }
                usable = applicable(prior, study_variance(_trainings(file), on_some, _KINDS), len(some))
            return replace(self._compare(file.metric, cells, some, usable), prior=prior)

        return over_looks(plan, test, file.margin, float)

    def _by_file(self, file: StudyFile, shown: Sequence[Comparison]) -> list[Either]:
        pairs = [comparison.either for comparison in shown]
        return corrected(pairs, FIRST * file.alpha, file.alpha) if file.is_corrected else pairs

    @staticmethod
    def _asked(file: StudyFile, cells: tuple[str, ...], compared: Comparison, is_even: bool) -> Asked:
        return Asked(
            metric=file.metric,
            cells=cells,
            family=file.metric,
            seeds=compared.seeds,
            looks=compared.looks,
            is_judged=is_even,
            difference=compared.difference,
            p=compared.p,
            equal_margin=file.margin,
            prior=compared.prior,
        )

    def _entry(
        self,
        file: StudyFile,
        scores: Mapping[str, Mapping[int, float]],
        segments: Segments,
        questions: tuple[Asked, ...],
        plan: Plan,
    ) -> Entry:
        further = self.metrics if file.metrics is None else file.metrics
        return Entry(
            version=VERSION,
            time="",
            study=file.name,
            variant=file.name,
            system="system",
            segments=segments,
            baseline=file.baseline,
            cells=file.cells,
            metrics=tuple(dict.fromkeys([file.metric, *further])),
            plan=plan,
            alpha=file.alpha,
            asked=questions,
            scores=scores,
            trainings=_trainings(file),
        )

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

    def _compare(
        self, metric: str, cells: tuple[str, ...], seeds: Sequence[int], prior: NoisePrior | None = None
    ) -> Comparison:
        key = (metric, cells, prior, *map(self._mean, cells), *sorted(seeds))
        if key not in self._compared:
            sides = [{seed: self._measured(cell, seed)[metric] for seed in seeds} for cell in cells]
            terms = list(zip(SIGNS, sides, strict=False))
            compared = self._comparer.contrast(metric, cells[0], cells[1], terms, prior=prior)
            self._compared[key] = self._with_segments(compared, len(cells))
        return self._compared[key]

    def _with_segments(self, compared: Comparison, num_cells: int) -> Comparison:
        """Put in the variance from the choice of segments, which a bootstrap over them would estimate."""
        if not self.segment_variance or compared.seed_variance is None or compared.difference is None:
            return compared
        noise = num_cells * self.segment_variance
        over_seeds = compared.seed_variance / compared.num_seeds
        p = 2 * float(tail(abs(compared.difference), over_seeds, compared.df, noise))
        return replace(compared, p=p, segment_variance=noise)

    def _measured(self, cell: str, seed: int) -> dict[str, Measured]:
        if (cell, seed) not in self._scores:
            noise = self._noise(cell, seed)
            values = (
                noise + self._mean(cell)
                if np.isfinite(noise).all()
                else np.full_like(noise, -self.trouble.fall)
            )
            self._scores[cell, seed] = {
                name: Measured(float(value)) for name, value in zip(self.metrics, values, strict=True)
            }
        return self._scores[cell, seed]

    def _noise(self, cell: str, seed: int) -> Array:
        """Draw the errors of a trial's scores, shape (metrics,); NaN where the training collapses."""
        if (cell, seed) not in self._drawn:
            common, own_errors = self.rng.standard_normal(), self.rng.standard_normal(len(self.metrics))
            if cell not in self._offsets:
                shared = self.segment_variance + self.trouble.pretraining
                self._offsets[cell] = self.rng.standard_normal() * math.sqrt(shared)
            values = math.sqrt(self.correlation) * common + math.sqrt(1 - self.correlation) * own_errors
            deviation = math.sqrt(self.seed_variance) * self.scales.get(_original(cell), 1.0)
            values = values * deviation + self._offsets[cell]
            is_collapsed = self.rng.random() < self.trouble.collapse
            self._drawn[cell, seed] = np.full_like(values, math.nan) if is_collapsed else values
        return self._drawn[cell, seed]


def _trainings(file: StudyFile) -> dict[str, Training]:
    return {cell: Training(kind=_KINDS[0], weights=cell) for cell in file.cells}


def _original(cell: str) -> str:
    """Return the cell of which a cell is a variant."""
    return cell.partition("@")[0]
