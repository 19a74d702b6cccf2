"""Comparison of any systems by their output alone: files of hypotheses, several seeds each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nlgraft.analysis.data.ledger import (
    VERSION,
    Entry,
    History,
    LedgerQuestion,
    Plan,
    Segments,
    history,
    record,
    scored_lines,
)
from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison, rounded_all
from nlgraft.analysis.policy.planned import Test, by_rules, exploratory, over_looks
from nlgraft.analysis.policy.rules import ALPHA, Rules, answered
from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import timestamp
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.text.files import has_text, read_lines

_MAX_CHARS = 100_000
_SAMPLES = 1000
_FAMILY = "compare"
NO_LEDGER = (
    "no ledger, so no verdict: nothing tells what was compared on these lines before; --ledger STORE "
    "remembers it (a new directory, if there is none yet)"
)


@dataclass(frozen=True)
class SystemScores:
    """One system on one metric.

    Attributes:
        name: The system.
        metric: The metric.
        values: Its score with every seed.
        signature: How the scores were computed.
        is_up: True if more is better.
        comparison: It minus the first system; None for the first.
    """

    name: str
    metric: str
    values: tuple[float, ...]
    signature: str
    is_up: bool
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        named = {"system": self.name, "metric": self.metric, "signature": self.signature}
        compared = None if self.comparison is None else self.comparison.to_json()
        return {**named, "values": rounded_all(self.values), "comparison": compared}


@dataclass(frozen=True)
class _System:
    """Hypotheses of one system: lines and digest of each seed's file."""

    name: str
    lines: Sequence[Sequence[str]]
    digests: Sequence[str]

    def scores(self, metric: str, references: Sequence[str]) -> tuple[SystemScores, dict[int, Measured]]:
        """Score every seed, counted from 1."""
        evaluations = [evaluate_text(hypotheses, references, [metric]) for hypotheses in self.lines]
        scores = [evaluation.scores[metric] for evaluation in evaluations]
        measured = {
            seed: Measured(score.value, evaluation.statistics[metric], score.signature)
            for seed, (score, evaluation) in enumerate(zip(scores, evaluations, strict=True), start=1)
        }
        values, first = tuple(score.value for score in scores), scores[0]
        is_up = first.direction == "maximize"
        return SystemScores(self.name, metric, values, first.signature, is_up), measured


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    reference: str,
    metrics: Sequence[str] = ("bleu",),
    store: ArtifactStore | None = None,
) -> list[SystemScores]:
    """Compare every system with the first one, paired by segment and by the order of the seeds.

    Seeds are drawn independently of each other, so any order pairs them. All comparisons of a call are one
    family. A system is known again by its first file, and every file counts as seen: the same call with twice
    or four times the files is its next look.

    Args:
        systems: Files of hypotheses by system, one for each seed.
        reference: File of references.
        metrics: Names of text metrics; the first decides.
        store: Its ledger says what was asked of these lines before, and takes this; None gives no verdicts.

    Raises:
        DataError: A file is unreadable or has another number of lines, or there is nothing to compare.
        StoreError: The ledger cannot be read or written.
    """
    references, read = _read(systems, reference)
    base, *others = read
    segments = Segments.of(scored_lines([], references))
    past = History({}) if store is None else history(store, segments)
    past_rules = Rules(past.entries.values())
    # The system with the fewest files sets the first look, which all pairs can then take.
    num_seeds = max(2, min(len(system.lines) for system in read))
    own_plan = Plan(seeds=tuple(range(1, 4 * num_seeds + 1)), looks=(num_seeds, 2 * num_seeds, 4 * num_seeds))
    comparer = Comparer(samples=_SAMPLES, alpha=ALPHA)
    scores: list[SystemScores] = []
    questions: dict[tuple[str, str], tuple[LedgerQuestion, Plan, Test]] = {}
    for metric in metrics:
        base_scores, base_measured = base.scores(metric, references)
        scores.append(base_scores)
        for system in others:
            system_scores, measured = system.scores(metric, references)
            cells = (system.digests[0], base.digests[0])
            plan = past_rules.plan(cells, own_plan)
            test = partial(_tested, comparer, metric, {system.name: measured, base.name: base_measured})
            compared = over_looks(plan, test)
            scores.append(replace(system_scores, comparison=compared))
            question = LedgerQuestion(
                metric=metric,
                cells=cells,
                labels=(system.name, base.name),
                signature=system_scores.signature,
                family=_FAMILY,
                seeds=compared.seeds,
                looks=compared.looks,
                difference=compared.difference,
                p=compared.p,
            )
            questions[metric, system.name] = question, plan, test
    if store is None:
        return [_without_verdict(system) for system in scores]
    name = f"compare with {Path(reference).name}"
    decisive = {system.name: system.values for system in scores if system.metric == metrics[0]}
    entry = Entry(
        version=VERSION,
        time=timestamp(),
        study=name,
        variant=name,
        system="hypotheses",
        segments=segments,
        baseline=base.digests[0],
        cells=tuple(dict.fromkeys(digest for system in read for digest in system.digests)),
        metrics=tuple(metrics),
        plan=own_plan,
        alpha=ALPHA,
        asked=tuple(question for question, _, _ in questions.values()),
        scores={system.digests[0]: dict(enumerate(decisive[system.name], start=1)) for system in read},
    )
    rules = Rules([*past.entries.values(), entry])
    entry = answered(entry, rules)
    record(store, entry, past)
    return [
        _judged(system, entry, rules, *questions[system.metric, system.name]) if system.comparison else system
        for system in scores
    ]


def _read(systems: Mapping[str, Sequence[str]], reference: str) -> tuple[Sequence[str], list[_System]]:
    if len(systems) < 2:
        raise DataError(f"one system, {', '.join(systems)}: name at least two, by --sys-name for each file")
    references = read_lines(reference, _MAX_CHARS).lines
    if not has_text(references):
        raise DataError(f"{reference}: no line has text; give references, a line for each hypothesis")
    lines = {name: [read_lines(path, _MAX_CHARS).lines for path in paths] for name, paths in systems.items()}
    wrong = [
        f"{path}: {len(hypotheses)} lines, {Path(reference).name} has {len(references)}"
        for name, paths in systems.items()
        for path, hypotheses in zip(paths, lines[name], strict=True)
        if len(hypotheses) != len(references)
    ]
    if wrong:
        raise DataError("\n".join(wrong))
    read = [
        _System(name, seeds, [Segments.of(scored_lines([], seed)).digest for seed in seeds])
        for name, seeds in lines.items()
    ]
    by_first: dict[str, str] = {}
    for system in read[1:]:
        alike = by_first.setdefault(system.digests[0], system.name)
        if alike != system.name:
            raise DataError(
                f"the first files of {alike} and {system.name} say the same, and a system is known again "
                "by its first file; leave one of the two out"
            )
    return references, read


def _tested(
    comparer: Comparer, metric: str, sides: Mapping[str, Mapping[int, Measured]], seeds: Sequence[int] | None
) -> Comparison:
    """Compare two systems, whose scores are given by name, over some seeds."""
    a, b = sides
    terms = [
        (sign, {seed: score for seed, score in scores.items() if seeds is None or seed in seeds})
        for sign, scores in zip((1.0, -1.0), sides.values(), strict=True)
    ]
    return comparer.contrast(metric, a, b, terms)


def _without_verdict(system: SystemScores) -> SystemScores:
    if system.comparison is None:
        return system
    return replace(system, comparison=replace(exploratory(system.comparison, NO_LEDGER), standing="open"))


def _judged(
    system: SystemScores, entry: Entry, rules: Rules, question: LedgerQuestion, plan: Plan, test: Test
) -> SystemScores:
    """Put in the ledger's answer, as for a cell of a study."""
    assert system.comparison is not None
    answer = rules.answer(entry, question)
    if answer.basis == "exploratory":
        advice = "compare it on test lines that nobody has scored"
        compared = exploratory(test(None), f"exploratory, no verdict: {answer.reason}; {advice}")
    else:
        size = (len(entry.asked), sum(other.p is not None for other in entry.asked))
        compared = by_rules(replace(system.comparison, family=size), answer, plan, entry.alpha)
    return replace(system, comparison=compared.judged(entry.alpha, is_up=system.is_up))
