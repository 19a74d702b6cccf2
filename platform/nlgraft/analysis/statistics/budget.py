"""The error budget of a set of test segments: the level left for each verdict, replayed from the ledger.

The rule is that of ``docs/validity.md``. What is declared before anything is seen is *frozen* and judged at
the declared level by Holm's procedure; a frozen family that is decided gives its level back (the fallback
procedure of Wiens and Dmitrienko 2005; online: Tian and Ramdas 2021). All other questions share a tenth of
alpha in parts that are fixed when cells first appear, and are judged by a test that holds at every number of
seeds, so that nobody gains by choosing what to ask, or when.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from nlgraft.analysis.data.ledger import Asked, Basis, Entry, History, history, open_ledger
from nlgraft.analysis.statistics.resampling import Either, holm_either
from nlgraft.pipeline.store import ArtifactStore

ALPHA = 0.05
"""Level that all frozen families of a set of segments share, unless the first declares a higher one."""

AFTERTHOUGHTS = 0.1
"""Level that all other questions share, as a fraction of that."""

_FAVOURED = Fraction(3, 4)
"""Share of the metric that decides among metrics, and of comparisons with the baseline among pairs of
cells."""

_TINY = 1e-9

_UNDECLARED = "not declared before results were seen"

Slot = tuple[Hashable, ...]
"""A question together with its plan."""


@dataclass(frozen=True)
class LedgerAnswer:
    """The answer to a question over the ledger.

    Attributes:
        p: To be compared with the study's alpha; None where no verdict is possible.
        basis: ``declared``: frozen before anything was seen; ``afterthought``; ``described``: not judged.
        share: Level that a single p-value has to reach, as a share of the study's alpha.
        reason: Why it is not judged, or by what; a clause.
        p_equal: As ``p``, for a difference of at least the margin; None without a margin.
        equal_reason: Why its margin is judged otherwise; a clause, or empty.
    """

    p: float | None
    basis: Basis
    share: float = 1.0
    reason: str = ""
    p_equal: float | None = None
    equal_reason: str = ""


@dataclass
class Frozen:
    """Families that were declared before their results were seen.

    Attributes:
        number: Number of the entry that declared them.
        entry: That entry.
        level: Level of each family.
        families: Questions by the name of their family.
        margins: Margins of the questions that have one.
        p_values: p-values of the questions that have all their seeds.
        p_equal: The same of differences of at least the margin.
        certain: Questions whose answer needs no test, and which do not count.
        unjudged: Questions on which no verdict may rest, whatever their p-value.
    """

    number: int
    entry: Entry
    level: float
    families: Mapping[str, tuple[Slot, ...]]
    margins: Mapping[Slot, float] = field(default_factory=dict)
    p_values: dict[Slot, float] = field(default_factory=dict)
    p_equal: dict[Slot, float] = field(default_factory=dict)
    certain: set[Slot] = field(default_factory=set)
    unjudged: set[Slot] = field(default_factory=set)

    def adjusted(self, alpha: float) -> dict[Slot, Either]:
        """Adjust p-values after Holm, for comparison with ``alpha``; one that is missing counts as 1."""
        found = {}
        for slots in self.families.values():
            factor = alpha / self.level
            for slot, (p, equal) in zip(slots, holm_either(list(map(self._either, slots))), strict=True):
                p_equal = None if equal is None else min(1.0, equal * factor)
                found[slot] = (min(1.0, (p or 0.0) * factor), p_equal)
        return found

    def _either(self, slot: Slot) -> Either:
        if slot in self.certain:
            return None, None
        return self.p_values.get(slot, 1.0), self.p_equal.get(slot, 1.0) if slot in self.margins else None

    @cached_property  # asked again for every later entry
    def is_decided(self) -> bool:
        """True if every question is, one with a margin in both ways: else an error is still possible."""
        alpha = self.entry.alpha
        is_low = all(max(p or 0.0, equal or 0.0) <= alpha for p, equal in self.adjusted(alpha).values())
        return is_low and not self.unjudged

    def take(self, slot: Slot, asked: Asked) -> None:
        """Take the present answer to one of the questions."""
        self.__dict__.pop("is_decided", None)
        self.certain.discard(slot)  # what never varied may vary with the next seed
        if asked.is_certain:
            self.certain.add(slot)
        elif asked.is_complete and asked.p is not None:
            self.p_values[slot] = asked.p
            if asked.p_equal is not None and asked.equal_margin == self.margins.get(slot):
                self.p_equal[slot] = asked.p_equal
        if asked.is_judged:
            self.unjudged.discard(slot)
        else:
            self.unjudged.add(slot)


@dataclass(frozen=True)
class _Arrival:
    """Cells that were seen first in one entry."""

    order: int
    new: frozenset[str]
    num_known: int
    baseline: str
    metrics: tuple[str, ...]

    def share(self, pair: frozenset[str], metric: str) -> Fraction | None:
        """Part of the afterthoughts' budget that a pair of cells, one of them new, owns on a metric."""
        if metric not in self.metrics:
            return None
        first, num_others = metric == self.metrics[0], len(self.metrics) - 1
        by_metric = _split(first, 1, num_others)
        num_new, num_known = len(self.new), self.num_known
        num_pairs = num_new * num_known + num_new * (num_new - 1) // 2
        with_baseline = num_new + num_known - 1 if self.baseline in self.new else num_new
        by_pair = _split(self.baseline in pair, with_baseline, num_pairs - with_baseline)
        # 1 / (k (k + 1)) sums to one over k = 1, 2, ..., however many entries bring new cells.
        return Fraction(1, self.order * (self.order + 1)) * by_metric * by_pair


class Budget:
    """The error budget of one set of test segments.

    Args:
        entries: The ledger's entries on these segments, by number, ascending.
    """

    def __init__(self, entries: Mapping[int, Entry]) -> None:
        self.frozen: list[Frozen] = []
        self._of_slot: dict[Slot, Frozen] = {}
        self._num_arrivals = 0
        self._arrived: dict[str, _Arrival] = {}
        self._signatures: dict[str, str] = {}
        self._seen: dict[tuple[str, ...], set[int]] = {}
        for number, entry in entries.items():
            self.add(number, entry)

    @property
    def alpha(self) -> float:
        """Level that the frozen families share."""
        return max(ALPHA, self.frozen[0].entry.alpha) if self.frozen else ALPHA

    @property
    def free(self) -> float:
        """Level left for the next declaration; decided families have given theirs back."""
        return self.alpha - sum(one.level for one in self.frozen if not one.is_decided)

    def add(self, number: int, entry: Entry) -> None:
        """Take the next entry into account."""
        if all(one.difference is None for one in entry.asked):
            return  # nothing was seen
        # In this order: whether a question is fresh depends on what was seen before this entry.
        self._freeze(number, entry)
        self._place(entry)
        for one in entry.asked:
            slot = _slot(entry, one)
            if slot in self._of_slot and not self._is_other(one):
                self._of_slot[slot].take(slot, one)
            self._seen.setdefault(_cells(one), set()).update(one.seeds)

    def answer(self, entry: Entry, asked: Asked) -> LedgerAnswer:
        """Answer a question of an entry that has been added."""
        slot = _slot(entry, asked)
        frozen = self._of_slot.get(slot)
        if self._is_other(asked):
            return LedgerAnswer(
                None, "described", reason=f"{asked.metric} was computed in another way before"
            )
        if frozen is not None:
            if slot not in frozen.p_values and slot not in frozen.certain:
                return LedgerAnswer(None, "declared", reason="not all declared seeds have finished")
            p, p_equal = frozen.adjusted(entry.alpha)[slot]
            share, reason = frozen.level / entry.alpha, f"as declared by {frozen.entry.variant}"
            found = LedgerAnswer(p, "declared", share, reason, p_equal)
            if asked.equal_margin is None or frozen.margins.get(slot, math.inf) <= asked.equal_margin:
                return found  # what is within the declared margin is within a wider one
            late = self._afterthought(entry, asked)
            return replace(found, p_equal=late.p_equal, equal_reason=f"the margin was {_UNDECLARED}")
        if asked.difference is None:
            return LedgerAnswer(None, "described", reason="no seed has finished in both cells")
        return self._afterthought(entry, asked)

    def _afterthought(self, entry: Entry, asked: Asked) -> LedgerAnswer:
        share = self._share(asked)
        if share is None:
            return LedgerAnswer(None, "described", reason=_UNDECLARED)
        missing = {*asked.left_out, *self._seen[_cells(asked)]} - set(asked.seeds)
        if missing:
            listed = ", ".join(map(str, sorted(missing)))
            return LedgerAnswer(None, "described", reason=f"seeds that were seen are left out: {listed}")
        level = float(share) * AFTERTHOUGHTS * self.alpha / entry.alpha
        if asked.p_anytime is None:
            return LedgerAnswer(None, "described", level, _UNDECLARED)
        p_equal = None if asked.p_equal_anytime is None else min(1.0, asked.p_equal_anytime / level)
        return LedgerAnswer(min(1.0, asked.p_anytime / level), "afterthought", level, _UNDECLARED, p_equal)

    def _share(self, asked: Asked) -> Fraction | None:
        if len(asked.cells) != 2 or asked.second_metric is not None:
            return None
        if not self._arrived.keys() >= set(asked.cells):
            return None  # an entry in which no question has a difference is not added: its cells are unknown
        # A pair exists since the later of its two cells was seen.
        later = max((self._arrived[cell] for cell in asked.cells), key=lambda arrival: arrival.order)
        return later.share(frozenset(asked.cells), asked.metric)

    def _is_other(self, asked: Asked) -> bool:
        """True if the metric is computed in another way than when it was first seen."""
        return asked.signature not in (None, self._signatures.get(asked.metric, asked.signature))

    def _freeze(self, number: int, entry: Entry) -> None:
        families: dict[str, list[Slot]] = {}
        margins: dict[Slot, float] = {}
        for one in entry.asked:
            slot = _slot(entry, one)
            if one.family is not None and slot not in self._of_slot and self._is_fresh(entry, one):
                families.setdefault(one.family, []).append(slot)
                if one.equal_margin is not None:
                    margins[slot] = one.equal_margin
        if not families:
            return
        level = min(entry.alpha, self.free if self.frozen else entry.alpha)
        if level < _TINY:
            return
        unique = {name: tuple(dict.fromkeys(slots)) for name, slots in families.items()}
        frozen = Frozen(number, entry, level, unique, margins)
        self.frozen.append(frozen)
        self._of_slot |= {slot: frozen for slots in unique.values() for slot in slots}

    def _is_fresh(self, entry: Entry, asked: Asked) -> bool:
        """True if nothing that was seen can have led to the question, its plan or its metric."""
        if asked.left_out:
            return False
        seen = [cell for cell in asked.cells if cell in self._arrived]
        if not self._arrived:
            return True
        if not self.frozen or asked.metric != self.frozen[0].entry.metrics[0]:
            return False
        shared = [one.entry for one in self.frozen if [one.entry.baseline] == seen]
        return not seen or any(one.plan == entry.plan for one in shared)

    def _place(self, entry: Entry) -> None:
        """Assign to the pairs of new cells their share of the afterthoughts' budget."""
        for one in entry.asked:
            if one.signature is not None:
                self._signatures.setdefault(one.metric, one.signature)
        new = frozenset(cell for cell in entry.cells if cell not in self._arrived)
        if new:
            self._num_arrivals += 1
            arrival = _Arrival(self._num_arrivals, new, len(self._arrived), entry.baseline, entry.metrics)
            self._arrived |= dict.fromkeys(new, arrival)


def corrected(entry: Entry, past: History) -> list[LedgerAnswer]:
    """Answer the questions of an analysis over everything that was asked of its segments before."""
    budget = Budget(past.entries)
    budget.add(past.last + 1, entry)
    return [budget.answer(entry, one) for one in entry.asked]


def record(store: ArtifactStore, entry: Entry) -> tuple[Entry, History]:
    """Answer the questions of an analysis and write it to the ledger, before it is shown.

    An analysis that says nothing new is not written again.

    Returns:
        The entry with its answers, and the entries before it.
    """
    ledger = open_ledger(store)
    # Another driver may take the number first; its entry then belongs to the past of this one.
    while True:
        past = history(store, entry.segments)
        answer = answered(entry, past)
        is_known = any(replace(one, time=entry.time) == answer for one in past.entries.values())
        if is_known or ledger.append(past.last + 1, answer):
            return answer, past


def answered(entry: Entry, past: History) -> Entry:
    """Put the answers into an entry."""
    asked = []
    for one, answer in zip(entry.asked, corrected(entry, past), strict=True):
        verdict = _verdict(entry, one, answer)
        asked.append(
            replace(
                one, p_ledger=answer.p, p_equal_ledger=answer.p_equal, basis=answer.basis, verdict=verdict
            )
        )
    return replace(entry, asked=tuple(asked))


def _verdict(entry: Entry, asked: Asked, answer: LedgerAnswer) -> Literal["significant", "equal", "open"]:
    if asked.is_judged and answer.p is not None and answer.p <= entry.alpha:
        return "significant"
    is_equal = asked.is_judged and answer.p_equal is not None and answer.p_equal <= entry.alpha
    return "equal" if is_equal and asked.equal_margin is not None else "open"


def _slot(entry: Entry, asked: Asked) -> Slot:
    return (*asked.hypothesis, entry.plan)


def _cells(asked: Asked) -> tuple[str, ...]:
    return tuple(sorted(asked.cells))


def _split(is_favoured: bool, num_favoured: int, num_others: int) -> Fraction:
    """Share of one of several, of which some are favoured together."""
    if num_others == 0 or num_favoured == 0:
        return Fraction(1, num_favoured or num_others)
    return _FAVOURED / num_favoured if is_favoured else (1 - _FAVOURED) / num_others
