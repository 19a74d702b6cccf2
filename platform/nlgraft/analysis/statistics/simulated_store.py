"""A simulated store: cells are trained, reports are shown, and verdicts are corrected over its ledger.

Scores of seeds are normal and independent between cells; comparisons and corrections are the platform's. A
report is judged in three ways: ``finished``, corrected over what has finished in it; ``file``, by the file's
own correction, over all that it declares; ``ledger``, by what a report of the store says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from nlgraft.analysis.data.ledger import Asked, Entry, History, Segments
from nlgraft.analysis.data.trials import Array, Measured
from nlgraft.analysis.statistics.anytime import anytime_p
from nlgraft.analysis.statistics.budget import corrected
from nlgraft.analysis.statistics.comparer import Comparer
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.equivalence import equal_p, equal_p_at_any_time, equal_p_over_looks
from nlgraft.analysis.statistics.question import SIGNS
from nlgraft.analysis.statistics.resampling import Either, holm_either, normal_p
from nlgraft.analysis.statistics.spending import overall_p

Judge = Literal["finished", "file", "ledger"]

_FEW = 2
_SEGMENTS = Segments.of([f"segment {number}" for number in range(200)])


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """What a simulated study declares.

    Attributes:
        questions: The cells of each question of the family, two or four as in a `Question`.
        baseline: Name of the baseline.
        metric: The metric that decides.
        looks: Planned looks, as numbers of seeds.
        is_anytime: True if its tests hold at every number of seeds.
        num_seeds: Seeds that it declares, if more than those that are finished.
        is_corrected: True with Holm's correction.
        alpha: Level.
        margin: Difference that it declares too small to matter.
    """

    questions: tuple[tuple[str, ...], ...]
    baseline: str = "base"
    metric: str = "score"
    looks: tuple[int, ...] = ()
    is_anytime: bool = False
    num_seeds: int = 0
    is_corrected: bool = True
    alpha: float = 0.05
    margin: float | None = None

    def plan(self, seeds: Sequence[int]) -> str:
        """Say what determines a p-value apart from the question."""
        if self.is_anytime:
            return "any time"
        if self.looks:
            return f"looks {self.looks}"
        return f"seeds {sorted(seeds)[: self.num_seeds or None]} {self.num_seeds}"

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
    verdicts: dict[Judge, set[tuple[str, ...]]] = field(default_factory=dict)
    equalities: dict[Judge, set[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    _drawn: dict[tuple[str, int], Array] = field(default_factory=dict)
    _scores: dict[tuple[str, int], dict[str, Measured]] = field(default_factory=dict)
    _offsets: dict[str, float] = field(default_factory=dict)
    _compared: dict[tuple[object, ...], Comparison] = field(default_factory=dict)
    _entries: dict[int, Entry] = field(default_factory=dict)
    _comparer: Comparer = field(default_factory=Comparer)

    def twin(self, effects: dict[str, float]) -> SimulatedStore:
        """Return an empty store in which the same trials have the same errors, and other effects."""
        return replace(self, effects=effects, verdicts={}, equalities={}, _scores={}, _entries={})

    def report(
        self,
        file: StudyFile,
        seeds: Iterable[int],
        *,
        run: Collection[str] | None = None,
        lost: Iterable[tuple[str, int]] = (),
        segments: Segments = _SEGMENTS,
    ) -> list[float]:
        """Show a report; return the p-values of the file's questions before any correction.

        Args:
            file: What the study declares.
            seeds: Seeds that are finished.
            run: Cells that were run; all if None.
            lost: Cells and seeds that crashed.
            segments: The test segments.
        """
        seeds, lost = tuple(seeds), set(lost)
        asked = []
        for cells in file.questions:
            kept = [one for one in seeds if not {(cell, one) for cell in cells} & lost]
            shown = kept if run is None or set(cells) <= set(run) else []
            is_uneven = len(shown) < len(seeds) and bool(shown)
            asked.append(replace(self._ask(file, cells, shown, len(seeds)), is_judged=not is_uneven))
        raw: list[Either] = [(one.p, one.p_equal) for one in asked]
        self._note("finished", file, asked, holm_either(raw) if file.is_corrected else raw)
        # By the file's own correction an unfinished question counts as 1, and one that lost seeds stays open.
        is_open = [one.p is None or not one.is_judged for one in asked]
        unknown = (1.0, None if file.margin is None else 1.0)
        own = [unknown if left else pair for left, pair in zip(is_open, raw, strict=True)]
        self._note("file", file, asked, holm_either(own) if file.is_corrected else own)
        self._note("ledger", file, asked, self._over_ledger(file, seeds, asked, segments))
        return [1.0 if p is None else p for p, _ in raw]

    def p(self, metric: str, cells: tuple[str, ...], seeds: Iterable[int]) -> float:
        """Look at a p-value without a report."""
        found = self._compare(metric, cells, tuple(seeds))
        return 1.0 if found.p is None else found.p

    def score(self, cell: str, seed: int, metric: str) -> float:
        """Train a cell with a seed unless it is trained, and score it."""
        return self._measured(cell, seed)[metric].value

    def has_erred(self, judge: Judge) -> bool:
        """True if any report had a verdict without a true difference, or called a large one equal."""
        is_unequal = [abs(self._difference(one)) >= margin for one, margin in self.equalities.get(judge, ())]
        return any(is_unequal) or any(self._difference(one) == 0 for one in self.verdicts.get(judge, ()))

    def has_found(self, judge: Judge, cells: tuple[str, ...]) -> bool:
        """True if any report, also one of a variant, had a verdict on these cells."""
        return any(tuple(map(_original, known)) == cells for known in self.verdicts.get(judge, ()))

    def _over_ledger(
        self, file: StudyFile, seeds: Sequence[int], asked: Sequence[Asked], segments: Segments
    ) -> list[Either]:
        entry = Entry(
            time="",
            study="study",
            variant="study",
            system="system",
            segments=segments,
            baseline=file.baseline,
            cells=file.cells,
            metrics=tuple(dict.fromkeys([file.metric, *self.metrics])),
            plan=file.plan(seeds),
            alpha=file.alpha,
            asked=tuple(asked),
        )
        related = {n: one for n, one in self._entries.items() if one.segments.overlaps(segments)}
        answers = corrected(entry, History(related, len(self._entries)))
        self._entries[len(self._entries) + 1] = entry
        return [
            (answer.p, answer.p_equal) if one.is_judged else (None, None)
            for one, answer in zip(asked, answers, strict=True)
        ]

    def _note(
        self, judge: Judge, file: StudyFile, asked: Sequence[Asked], p_values: Sequence[Either]
    ) -> None:
        found = list(zip(asked, p_values, strict=True))
        decided = {one.cells for one, (p, _) in found if p is not None and p <= file.alpha}
        self.verdicts[judge] = self.verdicts.get(judge, set()) | decided
        if file.margin is not None:
            equal = {(one.cells, file.margin) for one, (_, p) in found if p is not None and p <= file.alpha}
            self.equalities[judge] = self.equalities.get(judge, set()) | equal

    def _difference(self, cells: tuple[str, ...]) -> float:
        return sum(sign * self._mean(cell) for sign, cell in zip(SIGNS, cells, strict=False))

    def _mean(self, cell: str) -> float:
        return self.effects.get(_original(cell), 0.0)

    def _ask(self, file: StudyFile, cells: tuple[str, ...], seeds: Sequence[int], num_seeds: int) -> Asked:
        blank = Asked(
            metric=file.metric, cells=cells, family=file.metric, is_complete=False, equal_margin=file.margin
        )
        if len(seeds) < _FEW:
            return blank
        found = self._compare(file.metric, cells, seeds)
        assert found.difference is not None
        assert found.seed_variance is not None
        noise = (found.seed_variance, found.segment_variance)
        p_anytime = anytime_p(found.difference, *noise, len(seeds))
        is_look = bool(file.looks) and len(seeds) in file.looks
        planned = self._planned_p(file, cells, seeds) if file.looks else found.p
        left_out = tuple(self._trained(cells) - set(seeds))
        is_complete = not left_out if file.is_anytime else len(seeds) == (file.num_seeds or num_seeds)
        return replace(
            blank,
            **self._equal_p_values(file, cells, seeds),
            seeds=tuple(seeds),
            left_out=left_out,
            is_complete=is_complete or is_look,
            difference=found.difference,
            p=p_anytime if file.is_anytime else planned,
            p_anytime=p_anytime,
        )

    def _equal_p_values(
        self, file: StudyFile, cells: tuple[str, ...], seeds: Sequence[int]
    ) -> dict[str, float | None]:
        """Test whether the cells are equal within the margin, if there is one."""
        if file.margin is None:
            return {}
        numbers = [look for look in file.looks if look <= len(seeds)] or [len(seeds)]
        known = {
            number: replace(self._compare(file.metric, cells, seeds[:number]), margin=file.margin)
            for number in numbers
        }
        now = known[numbers[-1]]
        at_any_time = equal_p_at_any_time(now)
        planned = equal_p_over_looks(file.looks, known) if file.looks else equal_p(now)
        return {"p_equal": at_any_time if file.is_anytime else planned, "p_equal_anytime": at_any_time}

    def _planned_p(self, file: StudyFile, cells: tuple[str, ...], seeds: Sequence[int]) -> float:
        """Combine the looks taken, as the platform does for a study with planned looks."""
        taken = {}
        for look in (one for one in file.looks if one <= len(seeds)):
            one = self._compare(file.metric, cells, seeds[:look])
            assert one.difference is not None
            assert one.seed_variance is not None
            noise = (one.seed_variance, one.segment_variance)
            taken[look] = float(normal_p(np.array(one.difference), *noise, look))
        return float(overall_p(file.looks, taken)) if taken else 1.0

    def _compare(self, metric: str, cells: tuple[str, ...], seeds: Sequence[int]) -> Comparison:
        key = (metric, cells, *map(self._mean, cells), *sorted(seeds))
        if key not in self._compared:
            sides = [{one: self._measured(cell, one)[metric] for one in seeds} for cell in cells]
            if len(cells) == _FEW:
                found = self._comparer.compare(metric, cells[0], sides[0], cells[1], sides[1])
            else:
                terms = list(zip(SIGNS, sides, strict=True))
                found = self._comparer.contrast(metric, cells[0], cells[1], terms)
            self._compared[key] = self._with_segments(found, len(cells))
        return self._compared[key]

    def _with_segments(self, found: Comparison, num_cells: int) -> Comparison:
        """Put in the variance from the choice of segments, which a bootstrap over them would estimate."""
        if not self.segment_variance or found.seed_variance is None or found.difference is None:
            return found
        noise = num_cells * self.segment_variance
        p = float(normal_p(np.array(found.difference), found.seed_variance, noise, found.num_seeds))
        return replace(found, p=p, segment_variance=noise)

    def _measured(self, cell: str, seed: int) -> dict[str, Measured]:
        if (cell, seed) not in self._scores:
            values = self._noise(cell, seed) + self._mean(cell)
            self._scores[cell, seed] = {
                name: Measured(float(one)) for name, one in zip(self.metrics, values, strict=True)
            }
        return self._scores[cell, seed]

    def _noise(self, cell: str, seed: int) -> Array:
        """Draw the errors of a trial's scores, shape (metrics,)."""
        if (cell, seed) not in self._drawn:
            common, own = self.rng.standard_normal(), self.rng.standard_normal(len(self.metrics))
            if cell not in self._offsets:
                self._offsets[cell] = self.rng.standard_normal() * math.sqrt(self.segment_variance)
            values = math.sqrt(self.correlation) * common + math.sqrt(1 - self.correlation) * own
            self._drawn[cell, seed] = values * math.sqrt(self.seed_variance) + self._offsets[cell]
        return self._drawn[cell, seed]

    def _trained(self, cells: tuple[str, ...]) -> set[int]:
        seeds = [{seed for cell, seed in self._scores if cell == name} for name in cells]
        return set.intersection(*seeds)


def _original(cell: str) -> str:
    """Return the cell of which a cell is a variant."""
    return cell.partition("@")[0]
