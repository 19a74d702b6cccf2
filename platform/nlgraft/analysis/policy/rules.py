"""The rules of verdicts: which questions of an analysis are judged, at which level, replayed from the ledger.

- **Declared.** The first analysis that is shown on a set of test segments freezes its families of questions,
  their seeds and looks, its level and its margins: `FIRST` of alpha, by Holm's procedure in each family.
- **Declared later.** Questions about trials that nobody has seen, in later analyses. The k-th such
  declaration has a share 1 / (k (k + 1)) of what the first left. A declaration that is wholly decided passes
  its level on to the next one (the fallback procedure of Wiens and Dmitrienko 2005).
- **Exploratory.** Everything else: no verdict.

Until the first false verdict no declaration with a true null hypothesis passes anything on, so the levels of
those declarations add up to alpha at most, whatever the questions have in common.

Comparisons come under the rules by `over_looks`, `by_rules` and `exploratory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from nlgraft.analysis.data.ledger import (
    Basis,
    Entry,
    Hypothesis,
    LedgerQuestion,
    Look,
    NoisePrior,
    Plan,
)
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.looks import look_levels, p_over_looks
from nlgraft.analysis.estimates.resampling import Either, holm_either, open_as_one
from nlgraft.basics.wording import grouped

ALPHA = 0.05
"""Level that all declarations on a set of segments share, unless the first declares a higher one."""

FIRST = 0.8
"""Share of alpha that the first declaration has."""


@dataclass(frozen=True)
class Answer:
    """What the rules say of a question.

    Attributes:
        basis: Whether it was declared.
        p: To be compared with the study's alpha; None where there is no verdict.
        p_equal: As ``p``, for a difference of at least the margin; None without a margin.
        level: Level that the smallest open p-value of its family must reach, over all looks.
        share: Level of its family, as a share of the study's alpha.
        number: Which declaration it belongs to, from 1; 0 for none.
        reason: Why there is no verdict; a clause, or empty.
    """

    basis: Basis
    p: float | None = None
    p_equal: float | None = None
    level: float = 0.0
    share: float = 0.0
    number: int = 0
    reason: str = ""


def p_of_looks(
    plan: Plan,
    looks: Mapping[int, Look],
    prior: NoisePrior | None = None,
) -> tuple[float | None, float | None]:
    """Combine the answers at looks: p-values of no difference, and of a difference of at least the margin.

    Looks whose difference has the other sign than the last one count as 1, so that a verdict agrees with the
    figures that are shown.
    """
    if not looks:
        return None, None
    last = looks[max(looks)].difference
    p_values = {
        number: look.p if look.difference * last >= 0 else 1.0
        for number, look in looks.items()
        if look.p is not None
    }
    # The levels of looks are two-sided; of the two one-sided tests the larger p-value counts.
    equal = {number: min(1.0, 2 * look.p_equal) for number, look in looks.items() if look.p_equal is not None}
    df = prior.df if prior else 0.0
    return (
        float(p_over_looks(p_values, plan.looks, df)) if p_values else None,
        float(p_over_looks(equal, plan.looks, df)) / 2 if equal else None,
    )


@dataclass
class DeclaredQuestion:
    """A question that was declared before anything of it was seen.

    Attributes:
        plan: When it is answered.
        margin: Difference too small to matter; None without one.
        prior: Noise of earlier studies.
        looks: Answers by number of seeds; the first answer at a look is the answer.
        is_certain: True if its answer needs no test; then it does not count.
        is_judged: False if no verdict may rest on it, whatever its p-value.
    """

    plan: Plan
    margin: float | None = None
    prior: NoisePrior | None = None
    looks: dict[int, Look] = field(default_factory=dict)
    is_certain: bool = False
    is_judged: bool = True

    @property
    def either(self) -> Either:
        """The p-values with which it counts in its family."""
        if self.is_certain:
            return None, None
        return open_as_one(p_of_looks(self.plan, self.looks, self.prior), self.margin)


@dataclass
class Declaration:
    """Families of questions that were declared before anything of them was seen.

    Attributes:
        entry: The entry that declared them.
        questions: The questions.
        families: Their hypotheses by the name of the family.
    """

    entry: Entry
    questions: dict[Hypothesis, DeclaredQuestion] = field(default_factory=dict)
    families: dict[str, list[Hypothesis]] = field(default_factory=dict)

    @cached_property
    def holm(self) -> dict[Hypothesis, Either]:
        """p-values after Holm; a question that is not answered yet counts as 1."""
        adjusted = {}
        for family in self.families.values():
            pairs = holm_either([self.questions[hypothesis].either for hypothesis in family])
            adjusted |= dict(zip(family, pairs, strict=True))
        return adjusted

    def take(self, answers: LedgerQuestion) -> None:
        """Take the answers to one of its questions, at looks that were not taken before."""
        self.__dict__.pop("holm", None)
        question = self.questions[answers.hypothesis]
        # What never varied may vary with the next seed.
        question.is_certain, question.is_judged = answers.is_certain, answers.is_judged
        for number, look in answers.oriented_looks.items():
            if number in question.plan.looks:
                has_margin = answers.equal_margin == question.margin
                question.looks.setdefault(number, look if has_margin else replace(look, p_equal=None))

    def is_decided(self, level: float) -> bool:
        """True if every question is, one with a margin in both ways: else an error is still possible."""
        are_judged = all(question.is_judged for question in self.questions.values())
        is_low = all(max(p or 0.0, equal or 0.0) <= level for p, equal in self.holm.values())
        return bool(self.questions) and is_low and are_judged

    def num_open(self, hypothesis: Hypothesis, level: float) -> int:
        """Count the open questions of a question's family; at least 1."""
        family = next(members for members in self.families.values() if hypothesis in members)
        pairs = [self.holm[member] for member in family]
        return max(1, sum(p is not None and max(p, equal or 0.0) > level for p, equal in pairs))


class Rules:
    """The rules on one set of test segments.

    Args:
        entries: The ledger's entries on these segments, in their order.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.declarations: list[Declaration] = []
        self.seen: dict[str, Plan] = {}
        self.priors: dict[tuple[str, tuple[str, ...]], NoisePrior | None] = {}
        self._levels: list[float] = []
        self._declared: dict[Hypothesis, int] = {}
        self._baselines: dict[str, set[str]] = {}
        self._metrics: set[str] = set()
        self._winners: set[str] = set()
        self._signatures: dict[str, str] = {}
        for entry in entries:
            self.add(entry)

    def plan(self, cells: Sequence[str], own_plan: Plan) -> Plan:
        """Say when a question is answered: with the seeds and looks by which one of its cells was seen."""
        return next((self.seen[cell] for cell in cells if cell in self.seen), own_plan)

    def add(self, entry: Entry) -> None:
        """Take the next entry into account."""
        # What declared nothing and showed nothing can have led to no question.
        if not (any(entry.scores.values()) or entry.has_compared):
            return
        self._levels = []
        if isinstance(entry.plan, str):
            # What version 0.1 asked, of whatever lines, is the first declaration, and is not asked again.
            self.declarations = self.declarations or [Declaration(entry)]
            return
        for question in entry.asked:
            self.priors.setdefault(question.compared, question.prior)
        declaration = Declaration(entry)
        for question in self.declarable(entry):
            hypothesis = question.hypothesis
            if hypothesis not in declaration.questions:
                declaration.families.setdefault(question.family or "", []).append(hypothesis)
                plan, prior = self.plan(question.cells, entry.plan), self.priors[question.compared]
                declaration.questions[hypothesis] = DeclaredQuestion(plan, question.equal_margin, prior)
        if declaration.questions:
            self._declared |= dict.fromkeys(declaration.questions, len(self.declarations))
            self.declarations.append(declaration)
        if entry.baseline not in self.seen:
            metrics = {str(question[0]) for question in declaration.questions}
            self._baselines[entry.baseline] = {entry.metrics[0], *metrics}
        for question in entry.asked:
            index = self._declared.get(question.hypothesis)
            if index is not None and not self._is_other(question):
                self.declarations[index].take(question)
            if question.signature is not None:
                self._signatures.setdefault(question.metric, question.signature)
        # Cells of one study are seen together, so that arms keep the seeds of their baseline.
        plan = self.plan([entry.baseline], entry.plan)
        for cell in entry.cells:
            self.seen.setdefault(cell, plan)
        self._metrics.update(entry.metrics)
        self._winners.update(entry.winners)

    def answer(self, entry: Entry, question: LedgerQuestion) -> Answer:
        """Judge a question of an entry that has been added."""
        index = self._declared.get(question.hypothesis)
        if self._is_other(question):
            return Answer("exploratory", reason=f"{question.metric} was computed in another way before")
        if index is None:
            seen = "scores of its cells had been seen when it was first asked"
            return Answer("exploratory", reason=seen if question.family else "the study does not declare it")
        declaration = self.declarations[index]
        basis: Basis = "declared later" if index else "declared"
        number, level = index + 1, self.levels[index]
        share = level / entry.alpha
        open_level = level / declaration.num_open(question.hypothesis, level)
        declared = declaration.questions[question.hypothesis]
        answer = Answer(basis, None, None, open_level, share, number)
        if declared.is_certain:
            return replace(answer, p=0.0)
        if not declared.looks or not question.looks:
            if declared.plan.taken(question.seeds):  # with nothing to test
                return answer
            num = declared.plan.looks[0]
            return replace(
                answer, reason=f"{num} seeds were declared, and not all have finished in its cells"
            )
        last = max(declared.looks)
        if declared.looks[last].difference * question.oriented_looks[max(question.looks)].difference < 0:
            reason = f"an earlier report, at {last} seeds, shows a difference of the other sign"
            return replace(answer, reason=reason)
        p, p_equal = declaration.holm[question.hypothesis]
        margin = math.inf if declared.margin is None else declared.margin
        if question.equal_margin is not None and margin > question.equal_margin:
            # What is within the declared margin is within a wider one, not within a narrower.
            p_equal = None
            answer = replace(answer, reason="the margin was not declared before results were seen")
        scaled = [None if p_value is None else min(1.0, p_value / share) for p_value in (p, p_equal)]
        return replace(answer, p=scaled[0], p_equal=scaled[1])

    @property
    def levels(self) -> list[float]:
        """The level of each declaration: its share, and what decided ones before it have passed on."""
        if self._levels or not self.declarations:
            return self._levels
        first = self.declarations[0].entry.alpha * FIRST
        rest = max(ALPHA, self.declarations[0].entry.alpha) - first
        passed_on = 0.0
        for index, declaration in enumerate(self.declarations):
            # 1 / (k (k + 1)) sums to one: however many declarations follow, something is left for each.
            budget = passed_on + (rest / (index * (index + 1)) if index else first)
            self._levels.append(min(budget, declaration.entry.alpha))
            passed_on = budget if declaration.is_decided(self._levels[-1]) else 0.0
        return self._levels

    def declarable(self, entry: Entry) -> list[LedgerQuestion]:
        """List the questions of an entry that may be declared now: nothing of them has been seen."""
        pairs = grouped(question.compared for question in entry.asked)
        return [
            question
            for question in entry.asked
            if question.family is not None and question.hypothesis not in self._declared
            if not self.seen or self._is_unseen(question, {*pairs[question.metric]})
        ]

    def _is_unseen(self, question: LedgerQuestion, pairs: set[tuple[str, ...]]) -> bool:
        """True if nothing that was seen can have led to the question."""
        seen = {cell for cell in question.cells if cell in self.seen}
        if self._is_other(question):
            return False
        # Two winners of searches were seen side by side, whatever the seeds; one beside a new arm was not.
        if (winners := self._winners.intersection(question.cells)) and winners | seen >= {*question.cells}:
            return False
        if not seen:
            return True
        if question.metric not in self._metrics:
            # A metric that nobody has seen, of all pairs that a declaration asked about.
            for earlier in self.declarations:
                main = earlier.entry.metrics[0]
                declared = {
                    tuple(sorted(cells)) for metric, _, _, cells, _ in earlier.questions if metric == main
                }
                if earlier.questions and pairs >= declared:
                    return True
            return False
        # One arm that nobody has seen, against a baseline that was declared before anything was.
        return (
            len(seen) == 1
            and not question.is_effect
            and question.metric in self._baselines.get(seen.pop(), ())
        )

    def _is_other(self, question: LedgerQuestion) -> bool:
        """True if the metric is computed in another way than when it was first seen."""
        return question.signature not in (None, self._signatures.get(question.metric, question.signature))


def answered(entry: Entry, rules: Rules) -> Entry:
    """Put the answers by the rules, to which the entry was added, into it."""
    questions = []
    for question in entry.asked:
        answer = rules.answer(entry, question)
        verdict: Literal["significant", "equal", "open"] = "open"
        if question.is_judged and answer.p is not None and answer.p <= entry.alpha:
            verdict = "significant"
        elif question.is_judged and answer.p_equal is not None and answer.p_equal <= entry.alpha:
            verdict = "open" if question.equal_margin is None else "equal"
        decided = {"p_ledger": answer.p, "p_equal_ledger": answer.p_equal, "basis": answer.basis}
        questions.append(replace(question, **decided, verdict=verdict))
    return replace(entry, asked=tuple(questions))


Test = Callable[[Sequence[int] | None], Comparison]
"""Compares over some seeds, or over all that have finished."""


def over_looks(
    plan: Plan,
    test: Test,
    name_of: Callable[[int], str] = str,
) -> Comparison:
    """Compare at the looks whose seeds have all finished.

    Args:
        plan: Seeds and looks.
        test: The comparison.
        name_of: What notes call a seed.

    Returns:
        The comparison at the last look that was taken, with the answers at all; that over all finished
        seeds, without ``looks``, where none was.
    """
    latest = test(None)
    taken = plan.taken(latest.seeds)
    if latest.p is None:
        return latest
    if not taken:
        return latest.noted(f"looks taken: none, the first is at {plan.looks[0]} seeds")
    at_looks = {number: test(plan.seeds[:number]) for number in taken}
    last, margin = taken[-1], latest.margin
    if {*plan.seeds[:last]} == {*latest.seeds}:  # it says which seeds some cells alone have
        at_looks[last] = latest
    looks = {
        number: Look(
            at_look.difference - at_look.null,
            at_look.p,
            at_look.estimate.equal_p(margin) if margin is not None and at_look.estimate else None,
        )
        for number, at_look in at_looks.items()
        if at_look.difference is not None
    }
    notes = [f"looks taken: {', '.join(map(str, taken))}"] if len(taken) > 1 else []
    if waiting := [seed for seed in latest.seeds if seed not in plan.seeds[:last]]:
        following = next((look for look in plan.looks if look > last), None)
        when = "are beyond the last look" if following is None else f"count at the look of {following} seeds"
        shown = f"difference, interval and p are those of the first {last}"
        notes.append(f"seeds {', '.join(map(name_of, waiting))} {when}; {shown}")
    return at_looks[last].noted(*notes, p_equal=looks[last].p_equal, looks=looks)


def by_rules(
    comparison: Comparison,
    answer: Answer,
    plan: Plan,
    alpha: float,
) -> Comparison:
    """Put the answer by the rules into a comparison.

    Args:
        comparison: The comparison at its looks.
        answer: The answer.
        plan: Seeds and looks of the question.
        alpha: Level of its study.
    """
    notes = [answer.reason] if answer.reason else []
    if answer.basis == "declared later":
        level = answer.share * alpha
        notes.append(f"declaration {answer.number} on these test lines, which has a level of {level:.2g}")
    prior_df = comparison.prior.df if comparison.prior else 0.0
    levels = dict(zip(plan.looks, look_levels(plan.looks, answer.level, prior_df), strict=True))
    last = max(comparison.looks, default=0)
    return comparison.noted(
        *notes,
        p_holm=answer.p,
        p_equal_holm=answer.p_equal,
        basis=answer.basis,
        level=levels.get(last, levels[plan.looks[0]]),
        later_levels={look: level for look, level in levels.items() if look > last},
    )


def exploratory(comparison: Comparison, note: str) -> Comparison:
    """Mark a comparison as one without a verdict; the note says why, and what would give one."""
    notes = () if comparison.difference is None else (note,)
    return comparison.noted(*notes, basis="exploratory")
