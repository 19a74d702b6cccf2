"""What is asked of cells on one metric, and the answer: a difference and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

from nlgraft.analysis.data.ledger import Basis, Look, NoisePrior
from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates import power
from nlgraft.analysis.estimates.noise_prior import Estimate
from nlgraft.analysis.estimates.power import likely_look
from nlgraft.basics.wording import count

Standing = Literal["better", "worse", "equal", "open"]
"""A verdict on a cell against another; ``open`` is undecided."""

_SHOWN = (
    *("difference", "ci", "p", "p_holm", "p_segments", "margin", "p_equal", "p_equal_holm"),
    *("standing", "is_within_margin", "verdict", "level", "basis", "smallest_detectable", "detectable_ci"),
    *("seeds_more", "seeds_needed", "equal_within", "num_seeds", "num_segments", "scope", "trained_once"),
    *("open_because", "is_exact", "notes"),
)
"""Attributes of a comparison that JSON has by their names."""

_ROUNDING = 1e-9
ONE_SEED = "one seed: the interval and p cover test-set sampling only, not training noise"


SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Weights of cells that are no effect: a difference of two cells, or of two such differences."""


@dataclass(frozen=True)
class Term:
    """A cell's part in a comparison: its weight, and the metric on which it counts."""

    weight: float
    cell: CellResult
    metric: str


@dataclass(frozen=True)
class Question:
    """A weighted sum of cells, which is a difference: of two cells, of two gains, or an effect.

    Attributes:
        metric: The metric that it is in the unit of.
        a: Meaning of the positive weights.
        b: Meaning of the negative weights.
        terms: The cells with their weights.
        null: The sum under the null hypothesis.
        margin: Difference that the study declares too small to matter.
        second_metric: The metric of the second of two cells where it is another; may be the same cell.
        is_effect: True for the effect of a factor or an interaction.
    """

    metric: str
    a: str
    b: str
    terms: tuple[Term, ...]
    null: float = 0.0
    margin: float | None = None
    second_metric: str | None = None
    is_effect: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the cells; of an effect, those with positive weights first, which tells effects apart."""
        terms = self.terms
        if self.is_effect:
            terms = tuple(sorted(terms, key=lambda term: (-term.weight, term.cell.label)))
        return tuple(term.cell.label for term in terms)

    @property
    def key(self) -> Hashable:
        """The hypothesis, which two cells share from either side."""
        is_symmetric = len(self.terms) == 2 and self.null == 0
        return frozenset((term.metric, term.cell.label) for term in self.terms) if is_symmetric else self


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Cell ``a`` minus cell ``b`` on one metric, or minus a published figure.

    Attributes:
        metric: Name of the metric, e.g. ``test/bleu``.
        a: Label of the first cell.
        b: Label of the second cell, or the published value in its place.
        seeds: Seeds that finished in both cells, over which the comparison is paired.
        null: Difference under the null hypothesis: 0, or that of a claim with a margin.
        num_segments: Segments of the test set, paired too; None when only the seeds could be used.
        difference: Mean over seeds of ``a`` minus ``b``.
        ci: Ends of the 1 - alpha interval of the difference.
        p: Two-sided p-value of this comparison alone, as the interval is: without other looks or questions.
        p_segments: By paired bootstrap over segments alone: these trained models, as papers report it.
        p_holm: ``p`` adjusted for the looks, the study's family of comparisons and, where there is a ledger,
            for what was asked before of the same test segments.
        margin: Difference too small to matter; None where the study sets none.
        p_equal: p-value of a difference of at least the margin: a small one says that the two are equal.
        p_equal_holm: The same, adjusted as ``p_holm`` is.
        family: Size of the family that ``p_holm`` is adjusted for, and how many of its questions were tested.
        level: Level that a p-value must reach at the last look to decide, by what the family leaves open.
        looks: Answers by number of seeds, at the looks that were taken.
        later_levels: Levels of the looks that were not taken yet, by number of seeds.
        basis: Whether the question was declared; None without a ledger.
        estimate: The difference from that under the null hypothesis, with its noise; None below two seeds or
            for constants.
        prior: Noise of earlier studies.
        is_unlike: True if this study's noise is far from the prior's: its other cells moderate instead.
        scope: Sources of variation in the interval and the p-value.
        trained_once: Names of stages that all seeds and cells share; the interval excludes their variance.
        open_because: Reason why no verdict may rest on the comparison, whatever its p-value; else empty.
        is_exact: True for a difference of constants, which no seed changes.
        is_same: True if every seed has the same score in both cells, item by item.
        unit: Unit of the metric.
        standing: The verdict on the first cell; None where none was asked for.
        is_within_margin: True if the difference certainly is smaller than the margin; not exclusive of
            ``better`` and ``worse``.
        notes: Reasons why figures are missing or limited.
    """

    metric: str
    a: str
    b: str
    seeds: tuple[int, ...] = ()
    null: float = 0.0
    num_segments: int | None = None
    difference: float | None = None
    ci: tuple[float, float] | None = None
    p: float | None = None
    p_segments: float | None = None
    p_holm: float | None = None
    margin: float | None = None
    p_equal: float | None = None
    p_equal_holm: float | None = None
    family: tuple[int, int] = (0, 0)
    level: float = 0.05
    looks: Mapping[int, Look] = field(default_factory=dict)
    later_levels: Mapping[int, float] = field(default_factory=dict)
    basis: Basis | None = None
    estimate: Estimate | None = None
    prior: NoisePrior | None = None
    is_unlike: bool = False
    scope: Literal["seeds and segments", "seeds", "segments", "nothing"] = "nothing"
    trained_once: tuple[str, ...] = ()
    open_because: str = ""
    is_exact: bool = False
    is_same: bool = False
    unit: str = ""
    standing: Standing | None = None
    is_within_margin: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Summarise the comparison: verdict, difference with its uncertainty, and limitations."""
        lines = [f"{self.a} against {self.b} on {self.metric}: {self.verdict}"]
        if self.difference is not None:
            ends = "" if self.ci is None else f", interval [{self.ci[0]:+.4g}, {self.ci[1]:+.4g}]"
            over = "" if self.scope == "nothing" else f" over {self.scope}"
            among = f" ({count(self.num_seeds, 'seed')})"
            lines.append(f"difference {self.difference:+.4g} {self.unit}{ends}{over}{among}")
        if self.p is not None:
            lines.append(f"p {self.p:.3g}{_holm_text(self.p_holm, self.family)}")
        if self.margin is not None and self.p_equal is not None:
            corrected = _holm_text(self.p_equal_holm, self.family)
            lines.append(f"p of a difference of {self._amount(self.margin)} {self.p_equal:.3g}{corrected}")
        return "\n  ".join([*lines, *self.notes])

    @property
    def verdict(self) -> str:
        """The verdict in words, with what an open one lacks."""
        if self.difference is None:
            return "no result"
        if self.standing is None:
            return "judged as a claim"
        if self.standing in ("better", "worse"):
            within = ", by less than the margin" if self.is_within_margin else ""
            return f"{' '.join(filter(None, (self.standing, self.condition)))}{within}"
        if self.standing == "equal":
            return " ".join(filter(None, (f"equal within {self._amount(self.margin)}", self.condition)))
        if self.basis == "exploratory":
            return "exploratory"
        lacking = self._lacking
        return f"{'undecided' if self.margin is None else 'not known yet'}{lacking and f' ({lacking})'}"

    @property
    def _lacking(self) -> str:
        """Say what an open verdict lacks."""
        if self.open_because:
            return self.open_because
        if self.is_same:
            return "every score is the same"
        if self.is_constant and self.num_seeds >= 2:
            what = "difference" if self.difference else "result"
            return f"the same {what} for every seed, so there is nothing to test"
        parts = []
        if self.margin is None and self.equal_within is not None:
            parts.append(f"equal within {self._amount(self.equal_within)}")
        if self.seeds_more is not None:
            parts.append(f"{count(self.seeds_more, 'seed')} more")
        elif self.looks and not parts:
            parts.append("its looks will hardly decide it")
        return "; ".join(parts)

    def _amount(self, value: float | None) -> str:
        return f"{value:g} {self.unit}".strip()

    @property
    def seeds_more(self) -> int | None:
        """Further seeds up to the first look that decides with a probability of 0.8; None if no look does.

        The probability is predicted from what the seeds show, at the level that the look will have.
        """
        # Where not even an item differs, further seeds tell nothing.
        if self.open_because or self.basis == "exploratory" or self.difference is None or self.is_same:
            return None
        # Without noise to predict from, the next look is the only advice.
        first = min(self.later_levels, default=None)
        if not self.looks or self.estimate is None:
            return first - self.num_seeds if first is not None and first > self.num_seeds else None
        likely = likely_look(self.estimate, self.later_levels, self.margin)
        return None if likely is None else likely - self.num_seeds

    @property
    def seeds_needed(self) -> int | None:
        """Seeds up to that look; None where the verdict is given."""
        is_given = self.standing not in (None, "open")
        return None if is_given or self.seeds_more is None else self.num_seeds + self.seeds_more

    @property
    def noise(self) -> str:
        """What tells the noise between seeds, with degrees of freedom; empty without a prior."""
        if self.prior is None or self.estimate is None:
            return ""
        num = self.num_seeds - 1
        origin = "published" if self.prior.is_published else "earlier"
        earlier = count(len(self.prior.studies), f"{origin} one")
        further = f"{self.estimate.df - num:.1f} of "
        if self.is_unlike:
            others = f" + {further}its other cells" if self.estimate.df > num else ""
            return f"noise: {num} df of this comparison{others}, as the study's is far from that of {earlier}"
        return f"noise: {num} df of this study + {further}{earlier}"

    @property
    def equal_within(self) -> float | None:
        """Smallest margin within which the interval shows the two to be equivalent, rounded up to two digits.

        None with fewer than two seeds, without an interval or any difference, or where ``open_because`` gives
        a reason.
        """
        if self.ci is None or self.num_seeds < 2 or self.open_because or self.is_exact:
            return None
        # Two one-sided tests at half of alpha support a margin as wide as the farther end.
        farthest = max(map(abs, self.ci))
        if farthest == 0:
            return None
        unit = 10.0 ** (math.floor(math.log10(farthest)) - 1)
        return float(f"{math.ceil(farthest / unit - _ROUNDING) * unit:.2g}")

    @property
    def num_seeds(self) -> int:
        """Number of paired seeds."""
        return len(self.seeds)

    @property
    def condition(self) -> str:
        """The condition on a verdict: ``for this one pretraining (upstream)``; empty if there is none."""
        if not self.trained_once:
            return ""
        return f"for this one pretraining ({', '.join(self.trained_once)})"

    @property
    def is_constant(self) -> bool:
        """True if neither seeds nor segments change the difference, which leaves nothing to test."""
        return self.ci is not None and self.ci[0] == self.ci[1]

    @cached_property
    def smallest_detectable(self) -> float | None:
        """True difference that this many seeds detect at ``level`` with probability 0.8."""
        return None if self.estimate is None else power.smallest_detectable(self.estimate, self.level)

    @cached_property
    def detectable_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of ``smallest_detectable``: wide where few seeds estimate the noise."""
        return None if self.estimate is None else power.detectable_interval(self.estimate, self.level)

    def noted(self, *notes: str, **changes: Any) -> Comparison:
        """Return the comparison with further notes and other values."""
        return replace(self, notes=(*self.notes, *notes), **changes)

    def negated(self) -> Comparison:
        """Return the same comparison from the other side."""
        difference = None if self.difference is None else 0.0 - self.difference  # no negative zero
        ci = self.ci and (0.0 - self.ci[1], 0.0 - self.ci[0])
        estimate = self.estimate and replace(self.estimate, difference=0.0 - self.estimate.difference)
        return replace(self, null=-self.null, difference=difference, ci=ci, estimate=estimate)

    def judged(self, alpha: float, *, is_up: bool) -> Comparison:
        """Write in the verdict on the first cell; *different* takes precedence over *equal*.

        Args:
            alpha: Level.
            is_up: True if more is better.
        """
        is_equal, standing = self.is_equal(alpha), "open"
        # Seeds beside the looks are shown, but decide nothing.
        if self.difference is not None and (self.looks or self.is_exact):
            if self.is_significant(alpha):
                standing = "better" if (self.difference > 0) == is_up else "worse"
            elif is_equal:
                standing = "equal"
        return replace(self, standing=standing, is_within_margin=is_equal)

    def is_significant(self, alpha: float) -> bool:
        """True if the sign of the difference is certain at level alpha, given training and test noise.

        Always true for an exact difference; never with fewer than two seeds, whose p-value says nothing about
        training, nor where ``open_because`` gives a reason.
        """
        if self.open_because:
            return False
        if self.is_exact:
            return True
        return self.num_seeds >= 2 and self.p_holm is not None and self.p_holm <= alpha

    def is_equal(self, alpha: float) -> bool:
        """True if the difference is certain at level alpha to be smaller than the margin.

        Whatever leaves a difference open leaves this open, too.
        """
        if self.margin is None or self.difference is None or self.open_because or self.num_seeds < 2:
            return False
        if self.is_exact:
            return abs(self.difference) < self.margin
        return self.p_equal_holm is not None and self.p_equal_holm <= alpha

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON values, rounded to ten significant digits."""
        document = {name: getattr(self, name) for name in _SHOWN} | {
            "family": {"declared": self.family[0], "tested": self.family[1]},
            "looks": {number: look.p for number, look in self.looks.items()},
            "noise_df": self.estimate.df if self.estimate else 0.0,
            "prior": self.prior,
        }
        return rounded_all(document)


def _holm_text(p: float | None, family: tuple[int, int]) -> str:
    return "" if p is None or not family[0] else f", Holm {p:.3g} in a family of {family[0]}"


def rounded_all(value: Any) -> Any:
    """Turn nested values and objects into JSON values, with every float rounded to ten significant digits.

    They do not depend on the order of summation. Floats that JSON cannot express become None.
    """
    if hasattr(value, "to_json"):
        value = value.to_json()
    elif is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "tolist"):  # an array
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: rounded_all(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded_all(part) for part in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.10g}") if math.isfinite(value) else None
