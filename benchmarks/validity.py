"""Error rates of verdicts under workflows that look at results before asking a question.

``python -m benchmarks.validity --num 10000`` simulates each workflow without any effect, or with effects as
large as a margin, which must not be called equal. Scores of seeds are normal and independent between cells;
comparisons and corrections are those of the platform. An error is a false verdict in any report of the
workflow. *Today* is the verdict of a report that considers only its own file.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nlgraft.analysis.data.ledger import Asked, Entry, History, Segments
from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.statistics.anytime import anytime_p
from nlgraft.analysis.statistics.budget import corrected
from nlgraft.analysis.statistics.comparer import Comparer
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.equivalence import equal_p, equal_p_at_any_time, equal_p_over_looks
from nlgraft.analysis.statistics.resampling import holm_either, normal_p
from nlgraft.analysis.statistics.spending import overall_p

ALPHA = 0.05
RANDOM_SEED = 20261123
MARGIN = 2.5
METRICS = ("test/bleu", "test/chrf", "test/ter", "test/exact")
TEXT = [f"segment {number}" for number in range(200)]


@dataclass
class Lab:
    """A store in which cells are trained and studies are reported.

    Args:
        rng: Draws the scores.
        effects: True means by cell; 0 for those not named.
        correlation: Correlation of the metrics.
        test_set: Variance of a cell's score from the choice of segments, beside 1 between its seeds.

    Attributes:
        today: True if a report on the way had a false verdict, of either kind, after its own correction.
        is_significant: True if one had after the ledger's.
    """

    rng: np.random.Generator
    effects: dict[str, float] = field(default_factory=dict)
    correlation: float = 0.5
    test_set: float = 0.0
    segments: Segments = field(default_factory=lambda: SEGMENTS)
    today: bool = False
    is_significant: bool = False
    _scores: dict[tuple[str, int], dict[str, Measured]] = field(default_factory=dict)
    _offsets: dict[str, float] = field(default_factory=dict)
    _compared: dict[tuple[object, ...], Comparison] = field(default_factory=dict)
    _entries: dict[int, Entry] = field(default_factory=dict)
    _comparer: Comparer = field(default_factory=lambda: COMPARER)

    def score(self, cell: str, seed: int, metric: str = METRICS[0]) -> float:
        """Train a cell with a seed unless it is trained, and score it."""
        return self._measured(cell, seed)[metric].value

    def report(
        self,
        arms: Sequence[str],
        seeds: Iterable[int],
        *,
        baseline: str = "base",
        metric: str = METRICS[0],
        plan: str = "",
        looks: Sequence[int] = (),
        declared: Sequence[str] = (),
        num_declared: int = 0,
        is_holm: bool = True,
        lost: Iterable[tuple[str, int]] = (),
        segments: Segments | None = None,
        margin: float | None = None,
    ) -> list[float]:
        """Show a report; return each arm's p-value by the study's own correction.

        Args:
            arms: Arms that are run, in the order of the file.
            seeds: Seeds that are finished.
            baseline: The baseline.
            metric: The metric that decides; the others are in the report's tables.
            plan: Whatever else determines a p-value.
            looks: Planned looks, as numbers of seeds.
            declared: All arms of the file, if more than those that are run.
            num_declared: Seeds that the file declares, if more than those that are finished.
            is_holm: Whether the study corrects.
            lost: Cells and seeds that crashed.
            segments: The test segments, if not the usual.
            margin: Difference that the file declares too small to matter.
        """
        seeds, lost = tuple(seeds), set(lost)
        all_arms = (*arms, *(arm for arm in declared if arm not in arms))
        plan += (
            f" looks {looks}" if looks else f" seeds {sorted(seeds)[: num_declared or None]} {num_declared}"
        )
        asked = []
        for name, arm in itertools.product(METRICS, all_arms):
            kept = [one for one in seeds if not {(arm, one), (baseline, one)} & lost]
            shown = kept if arm in arms else []
            is_complete = len(shown) == (num_declared or len(seeds)) or (bool(looks) and len(shown) in looks)
            one = self._ask(name, arm, baseline, shown, looks, is_complete, name == metric)
            asked.append(self._with_margin(one, looks, margin) if name == metric else one)
        self._judge(asked, arms, is_holm)
        own = [one for one in asked if one.family]
        ordered = (metric, *(name for name in METRICS if name != metric))
        entry = Entry(
            time="",
            study="study",
            variant="study",
            system="system",
            segments=segments or self.segments,
            baseline=baseline,
            cells=(baseline, *all_arms),
            metrics=ordered,
            plan=plan,
            alpha=ALPHA,
            asked=tuple(asked),
        )
        related = {n: one for n, one in self._entries.items() if one.segments.overlaps(entry.segments)}
        answers = corrected(entry, History(related, len(self._entries)))
        self._entries[len(self._entries) + 1] = entry
        self.is_significant |= any(
            one.family and self._is_false(one, answer.p, answer.p_equal)
            for one, answer in zip(asked, answers, strict=True)
        )
        return [1.0 if one.p is None else one.p for one in own]

    def p(self, arm: str, seeds: Sequence[int], baseline: str = "base", metric: str = METRICS[0]) -> float:
        """Look at a p-value without a report."""
        found = self._compare(metric, arm, baseline, seeds)
        return 1.0 if found.p is None else found.p

    def _judge(self, asked: Sequence[Asked], arms: Sequence[str], is_holm: bool) -> None:
        """Note whether today's report has a false verdict: corrected over what has finished."""
        own = [one for one in asked if one.family and one.cells[0] in arms]
        raw = [(one.p, one.p_equal) for one in own]
        self.today |= any(
            self._is_false(one, *pair)
            for one, pair in zip(own, holm_either(raw) if is_holm else raw, strict=True)
        )

    def _is_false(self, asked: Asked, p: float | None, p_equal: float | None) -> bool:
        """True for a difference where there is none, and for equality where the difference is too large."""
        arm, baseline = asked.cells
        truth = abs(self.effects.get(arm, 0.0) - self.effects.get(baseline, 0.0))
        is_different = p is not None and p <= ALPHA
        is_equal = p_equal is not None and p_equal <= ALPHA and asked.equal_margin is not None
        return (is_different and truth == 0) or (is_equal and truth >= (asked.equal_margin or 0.0))

    def _with_margin(self, asked: Asked, looks: Sequence[int], margin: float | None) -> Asked:
        """Ask whether the cells are equal within a margin, too."""
        if margin is None or not asked.seeds:
            return replace(asked, equal_margin=margin)
        (arm, baseline), seeds = asked.cells, asked.seeds
        numbers = [look for look in looks if look <= len(seeds)] or [len(seeds)]
        known = {
            number: replace(self._compare(asked.metric, arm, baseline, seeds[:number]), margin=margin)
            for number in numbers
        }
        now = known[numbers[-1]]
        return replace(
            asked,
            equal_margin=margin,
            p_equal=equal_p_over_looks(looks, known) if looks else equal_p(now),
            p_equal_anytime=equal_p_at_any_time(now),
        )

    def _ask(
        self,
        metric: str,
        arm: str,
        baseline: str,
        seeds: Sequence[int],
        looks: Sequence[int],
        is_complete: bool,
        is_own: bool,
    ) -> Asked:
        blank = Asked(
            metric=metric, cells=(arm, baseline), family=metric if is_own else None, is_complete=False
        )
        if len(seeds) < 2:
            return blank
        if not is_own:  # its p-value is in the tables, and counts when somebody asks for it
            return Asked(metric=metric, cells=(arm, baseline), seeds=tuple(seeds), difference=0.0)
        found = self._compare(metric, arm, baseline, seeds)
        assert found.difference is not None
        assert found.seed_variance is not None
        return Asked(
            metric=metric,
            cells=(arm, baseline),
            family=metric,
            seeds=tuple(seeds),
            left_out=tuple(self._trained(arm, baseline) - set(seeds)),
            is_complete=is_complete,
            difference=found.difference,
            p=self._planned_p(metric, arm, baseline, seeds, looks) if looks else found.p,
            p_anytime=anytime_p(found.difference, found.seed_variance, found.segment_variance, len(seeds)),
        )

    def _planned_p(
        self, metric: str, arm: str, baseline: str, seeds: Sequence[int], looks: Sequence[int]
    ) -> float:
        """Combine the looks taken, as the platform does for a study with planned looks."""
        taken = {}
        for look in looks:
            if look <= len(seeds):
                one = self._compare(metric, arm, baseline, seeds[:look])
                assert one.difference is not None
                assert one.seed_variance is not None
                noise = (one.seed_variance, one.segment_variance)
                taken[look] = float(normal_p(np.array(one.difference), *noise, look))
        return float(overall_p(looks, taken)) if taken else 1.0

    def _compare(self, metric: str, arm: str, baseline: str, seeds: Sequence[int]) -> Comparison:
        key = (metric, arm, baseline, *sorted(seeds))
        if key not in self._compared:
            sides = [{one: self._measured(cell, one)[metric] for one in seeds} for cell in (arm, baseline)]
            found = self._comparer.compare(metric, arm, sides[0], baseline, sides[1])
            self._compared[key] = self._with_test_set(found)
        return self._compared[key]

    def _with_test_set(self, found: Comparison) -> Comparison:
        """Put in the variance from the choice of segments, which a bootstrap over them would estimate."""
        if not self.test_set or found.seed_variance is None or found.difference is None:
            return found
        noise = 2 * self.test_set
        p = float(normal_p(np.array(found.difference), found.seed_variance, noise, found.num_seeds))
        return replace(found, p=p, segment_variance=noise)

    def _measured(self, cell: str, seed: int) -> dict[str, Measured]:
        if (cell, seed) not in self._scores:
            common, own = self.rng.standard_normal(), self.rng.standard_normal(len(METRICS))
            values = math.sqrt(self.correlation) * common + math.sqrt(1 - self.correlation) * own
            if cell not in self._offsets:
                self._offsets[cell] = self.rng.standard_normal() * math.sqrt(self.test_set)
            values += self.effects.get(cell, 0.0) + self._offsets[cell]
            self._scores[cell, seed] = {
                name: Measured(float(one)) for name, one in zip(METRICS, values, strict=True)
            }
        return self._scores[cell, seed]

    def _trained(self, arm: str, baseline: str) -> set[int]:
        seeds = [{seed for cell, seed in self._scores if cell == name} for name in (arm, baseline)]
        return seeds[0] & seeds[1]


SEGMENTS = Segments.of(TEXT)
COMPARER = Comparer()
Path = Callable[[Lab], None]


def _arms_one_by_one(num: int) -> Path:
    def walk(lab: Lab) -> None:
        for arm in range(num):
            lab.report([f"arm{arm}"], range(3))

    return walk


def _once(num_arms: int, num_seeds: int) -> Path:
    def walk(lab: Lab) -> None:
        lab.report([f"arm{number}" for number in range(num_arms)], range(num_seeds))

    return walk


def _only(lab: Lab) -> None:
    arms = [f"arm{number}" for number in range(2)]
    for arm in arms:
        lab.report([arm], range(3), declared=arms)


def _new_seeds(num: int) -> Path:
    def walk(lab: Lab) -> None:
        for first in range(0, 3 * num, 3):
            lab.report(["arm"], range(first, first + 3))

    return walk


def _more_seeds(lab: Lab) -> None:
    for last in range(3, 31, 3):
        lab.report(["arm"], range(last))


def _worst_seed_replaced(lab: Lab) -> None:
    seeds, following = [0, 1, 2], 3
    lab.report(["arm"], seeds)
    for _ in range(3):
        gains = {seed: lab.score("arm", seed) - lab.score("base", seed) for seed in seeds}
        seeds.remove(min(gains, key=gains.__getitem__))
        seeds.append(following)
        following += 1
        lab.report(["arm"], seeds)


def _variants(num: int) -> Path:
    def walk(lab: Lab) -> None:
        for number in range(num):
            lab.report([f"arm@{number}"], range(3), baseline=f"base@{number}")

    return walk


def _uncorrected(lab: Lab) -> None:
    lab.report([f"arm{number}" for number in range(4)], range(3), is_holm=False)


def _best_claim(lab: Lab) -> None:
    arms = [f"arm{number}" for number in range(4)]
    p_values = lab.report(arms, range(3))
    lab.report([arms[int(np.argmin(p_values))]], range(3))


def _worst_baseline(lab: Lab) -> None:
    arms = [f"arm{number}" for number in range(4)]
    lab.report(arms, range(3))
    cells = ["base", *arms]
    means = [np.mean([lab.score(cell, seed) for seed in range(3)]) for cell in cells]
    worst = cells[int(np.argmin(means))]
    lab.report([cell for cell in cells if cell != worst], range(3), baseline=worst)


def _best_objective(lab: Lab) -> None:
    lab.report(["arm"], range(3))
    best = min(METRICS, key=lambda name: lab.p("arm", range(3), metric=name))
    lab.report(["arm"], range(3), metric=best)


def _looks_again(lab: Lab) -> None:
    for last in (5, 10, 15, 20):
        looks = [one for one in (3, 5, 10, 15, 20) if one <= last]
        for look in looks:
            lab.report(["arm"], range(look), looks=looks)


def _plan_deleted(lab: Lab) -> None:
    lab.report(["arm"], range(3), looks=[3, 5])
    lab.report(["arm"], range(5), looks=[3, 5])
    lab.report(["arm"], range(5))


def _trials_one_by_one(lab: Lab) -> None:
    for num in (3, 5, 8, 10):
        lab.report(["arm"], range(num), num_declared=10)


def _trials_and_file(lab: Lab) -> None:
    for num in (3, 5, 8, 10):
        lab.report(["arm"], range(num))


def _crash(lab: Lab) -> None:
    worst = min(range(3), key=lambda seed: lab.score("arm", seed))
    lab.report(["arm"], range(3), lost=[("arm", worst)])


def _line_dropped(lab: Lab) -> None:
    for number in range(4):  # every time another network is trained, and scored on one line less
        text = TEXT[number:]
        lab.report([f"arm@{number}"], range(3), baseline=f"base@{number}", segments=Segments.of(text))


def _best_subset(lab: Lab) -> None:
    lab.report(["arm"], range(3))
    subsets = itertools.combinations(range(6), 3)
    lab.report(["arm"], min(subsets, key=lambda seeds: lab.p("arm", seeds)))


def _best_moment(lab: Lab) -> None:
    lab.report(["arm"], range(3))
    lab.report(["arm"], range(min(range(4, 21), key=lambda num: lab.p("arm", range(num)))))


def _anything(lab: Lab) -> None:
    """After a report of two arms the pair and metric that look best, at ever more seeds; then new arms."""
    arms = ["arm0", "arm1"]
    lab.report(arms, range(3))
    for num in (3, 5, 8):
        pairs = itertools.combinations(["base", *arms], 2)
        choices = [(name, *pair) for pair in pairs for name in METRICS]
        name, a, b = min(choices, key=lambda one: lab.p(one[1], range(num), one[2], one[0]))
        lab.report([a], range(num), baseline=b, metric=name)
    lab.report([*arms, "arm2", "arm3"], range(3))


def _real_then_more(lab: Lab) -> None:
    """An arm with a huge effect frees its budget; the arms after it have none."""
    lab.effects["real"] = 1000.0
    lab.report(["real"], range(3))
    for number in range(4):
        lab.report(["real", *(f"arm{one}" for one in range(number + 1))], range(3))


def _margin_declared(looks: Sequence[int]) -> Path:
    """Two arms differ by exactly the margin and two not at all: each verdict can be false."""

    def walk(lab: Lab) -> None:
        lab.effects |= {"arm0": MARGIN, "arm1": -MARGIN}
        for num in looks or (10,):
            lab.report([f"arm{one}" for one in range(4)], range(num), looks=looks, margin=MARGIN)

    return walk


def _margin_afterwards(lab: Lab) -> None:
    """The margin is the smallest of some that a report supports, at ever more seeds; all are too small."""
    lab.effects["arm"] = MARGIN
    lab.report(["arm"], range(3))
    for num in (3, 5, 8, 10, 15):
        for share in (0.6, 0.8, 1.0):
            lab.report(["arm"], range(num), margin=share * MARGIN)


def _margin_and_arms(lab: Lab) -> None:
    """Arms that differ by the margin are added one by one until one looks equal."""
    lab.effects |= {f"arm{one}": MARGIN for one in range(5)}
    for one in range(5):
        lab.report([f"arm{one}"], range(10), margin=MARGIN)


WAYS: dict[str, Path] = {
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


def rates(walk: Path, num: int, test_set: float = 0.0, seed: int = RANDOM_SEED) -> tuple[float, float]:
    """Simulate a way; return the share of stores with a false verdict, today and over the ledger."""
    labs = _walked(walk, num, test_set, seed)
    found = np.array([(lab.today, lab.is_significant) for lab in labs], dtype=float)
    today, after = found.mean(axis=0)
    return float(today), float(after)


def _walked(walk: Path, num: int, test_set: float, seed: int) -> Iterator[Lab]:
    rng = np.random.default_rng(seed)
    for _ in range(num):
        lab = Lab(rng, test_set=test_set)
        walk(lab)
        yield lab


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
            today, after = rates(walk, arguments.num, arguments.test_set)
            print(f"| {name} | {today:.4f} | {after:.4f} |", flush=True)


if __name__ == "__main__":
    main()
