"""Comparison of systems that were not trained here, by their hypotheses or by their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from nlgraft.analysis.data.ledger import (
    SCORED_ELSEWHERE,
    VERSION,
    Entry,
    History,
    LedgerQuestion,
    Plan,
    Segments,
    history,
    is_recorded,
    output_digest,
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
_FEW_ITEMS = 20
"""Below so many items resamples of them understate their noise."""
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
        signature: How the scores were computed; None where nobody says.
        is_up: True if more is better.
        comparison: It minus the first system; None for the first.
    """

    name: str
    metric: str
    values: tuple[float, ...]
    signature: str | None
    is_up: bool
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        named = {"system": self.name, "metric": self.metric, "signature": self.signature}
        compared = None if self.comparison is None else self.comparison.to_json()
        return {**named, "values": rounded_all(self.values), "comparison": compared}


@dataclass(frozen=True)
class System:
    """A system that was not trained here.

    Attributes:
        name: Its name.
        measured: Its scores by metric and by seed, counted from 1.
        digests: Digest of each seed's output; by the first it is known again.
    """

    name: str
    measured: Mapping[str, Mapping[int, Measured]]
    digests: Sequence[str]


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
    references, lines = _read(systems, reference)
    read, is_up = [], {}
    for name, seeds in lines.items():
        evaluations = [evaluate_text(hypotheses, references, metrics) for hypotheses in seeds]
        measured: dict[str, dict[int, Measured]] = {metric: {} for metric in metrics}
        for (seed, evaluation), metric in product(enumerate(evaluations, 1), metrics):
            score = evaluation.scores[metric]
            is_up[metric] = score.direction == "maximize"
            measured[metric][seed] = Measured(score.value, evaluation.statistics[metric], score.signature)
        read.append(System(name, measured, [*map(output_digest, seeds)]))
    segments = Segments.of(scored_lines([], references))
    return compare_measured(read, is_up, segments, f"compare with {Path(reference).name}", store)


def compare_measured(
    systems: Sequence[System],
    is_up: Mapping[str, bool],
    segments: Segments,
    name: str,
    store: ArtifactStore | None,
    scored_as: str | None = None,
    name_of: Callable[[int], str] = str,
) -> list[SystemScores]:
    """Compare every system with the first one, as `compare_systems` does, by its scores.

    Args:
        systems: The systems.
        is_up: By metric whether more is better; the first metric decides.
        segments: What they are scored on.
        name: Name of the comparison in the ledger.
        store: As of `compare_systems`.
        scored_as: The metric whose statistics the scores hold; the metric itself if left out.
        name_of: What notes call a seed, which is counted from 1.

    Raises:
        DataError: There is nothing to compare.
        StoreError: The ledger cannot be read or written.
    """
    if len(systems) < 2:
        raise DataError(f"one system, {', '.join(system.name for system in systems)}: give at least two")
    _refuse_twins(systems)
    base, *others = systems
    past = History({}) if store is None else history(store, segments)
    past_rules = Rules(past.entries.values())
    # A study's baseline was declared before anything was seen: new systems may be compared with it.
    variant_of = {
        digest: earlier.variant
        for earlier in past.entries.values()
        for cell, digests in earlier.outputs.items()
        if cell != earlier.baseline
        for digest in digests
        # An arm may say what the baseline says.
        if digest not in earlier.outputs.get(earlier.baseline, ())
    }
    # The system with the fewest files sets the first look, which all pairs can then take.
    num_seeds = max(2, min(len(system.digests) for system in systems))
    own_plan = Plan(seeds=tuple(range(1, 4 * num_seeds + 1)), looks=(num_seeds, 2 * num_seeds, 4 * num_seeds))
    comparer = Comparer(samples=_SAMPLES, alpha=ALPHA, name_of=name_of)
    scores: list[SystemScores] = []
    questions: dict[tuple[str, str], tuple[LedgerQuestion, Plan, Test, str]] = {}
    for metric in is_up:
        scores.append(_scores(base, metric, is_up[metric]))
        for system in others:
            system_scores = _scores(system, metric, is_up[metric])
            cells = (system.digests[0], base.digests[0])
            plan = past_rules.plan(cells, own_plan)
            test = partial(_tested, comparer, metric, scored_as or metric, [system, base])
            compared = over_looks(plan, test, name_of=name_of)
            scores.append(replace(system_scores, comparison=compared))
            outputs = (*system.digests, *base.digests)
            variant = next((variant_of[digest] for digest in outputs if digest in variant_of), "")
            question = LedgerQuestion(
                metric=metric,
                cells=cells,
                labels=(system.name, base.name),
                signature=system_scores.signature,
                family=None if variant else _FAMILY,
                seeds=compared.seeds,
                looks=compared.looks,
                difference=compared.difference,
                p=compared.p,
                is_judged=not compared.open_because,
            )
            questions[metric, system.name] = question, plan, test, variant
    if store is None:
        return [_without_verdict(system) for system in scores]
    decisive = next(iter(is_up))
    entry = Entry(
        version=VERSION,
        time=timestamp(),
        study=name,
        variant=name,
        system=SCORED_ELSEWHERE,
        segments=segments,
        baseline=base.digests[0],
        cells=tuple(dict.fromkeys(digest for system in systems for digest in system.digests)),
        metrics=tuple(is_up),
        plan=own_plan,
        alpha=ALPHA,
        asked=tuple(question for question, *_ in questions.values()),
        scores={
            system.digests[0]: {seed: trial.value for seed, trial in system.measured[decisive].items()}
            for system in systems
        },
    )
    rules = Rules([*past.entries.values(), entry])
    entry = answered(entry, rules)
    if not is_recorded(entry, past):
        record(store, entry, past)
    return [
        _judged(system, entry, rules, name_of, *questions[system.metric, system.name])
        if system.comparison
        else system
        for system in scores
    ]


def _read(
    systems: Mapping[str, Sequence[str]], reference: str
) -> tuple[Sequence[str], dict[str, list[Sequence[str]]]]:
    """Read the references, and the hypotheses of each system and seed."""
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
    return references, lines


def _refuse_twins(systems: Sequence[System]) -> None:
    by_first: dict[str, str] = {}
    for system in systems[1:]:
        alike = by_first.setdefault(system.digests[0], system.name)
        if alike != system.name:
            raise DataError(
                f"the first files of {alike} and {system.name} say the same, and a system is known again "
                "by its first file; leave one of the two out"
            )


def _scores(system: System, metric: str, is_up: bool) -> SystemScores:
    trials = [*system.measured[metric].values()]
    values = tuple(trial.value for trial in trials)
    return SystemScores(system.name, metric, values, trials[0].signature, is_up)


def _tested(
    comparer: Comparer,
    metric: str,
    scored_as: str,
    systems: Sequence[System],
    seeds: Sequence[int] | None,
) -> Comparison:
    """Compare two systems over some seeds."""
    first, second = systems
    terms = [
        (sign, {seed: score for seed, score in scores.items() if seeds is None or seed in seeds})
        for sign, scores in zip((1.0, -1.0), (first.measured[metric], second.measured[metric]), strict=True)
    ]
    compared = comparer.contrast(scored_as, first.name, second.name, terms)
    if compared.scope == "seeds" and compared.estimate is not None:
        # Without items nothing needs to be drawn: the paired t test.
        compared = replace(compared, p=compared.estimate.p)
    if scored_as != metric and (compared.num_segments or _FEW_ITEMS) < _FEW_ITEMS:
        compared = replace(compared, open_because=f"fewer than {_FEW_ITEMS} items")
    return replace(compared, metric=metric)


def _without_verdict(system: SystemScores) -> SystemScores:
    if system.comparison is None:
        return system
    return replace(system, comparison=replace(exploratory(system.comparison, NO_LEDGER), standing="open"))


def _judged(
    system: SystemScores,
    entry: Entry,
    rules: Rules,
    name_of: Callable[[int], str],
    question: LedgerQuestion,
    plan: Plan,
    test: Test,
    variant: str,
) -> SystemScores:
    """Put in the ledger's answer, as for a cell of a study."""
    assert system.comparison is not None
    answer = rules.answer(entry, question)
    if answer.basis == "exploratory":
        reason = f"{answer.reason}; compare it on test lines that nobody has scored"
        if variant:
            reason = f"outputs of {variant}, whose report judges them"
        compared = exploratory(test(None), f"exploratory, no verdict: {reason}")
    else:
        if answer.reason and not question.looks:
            first = plan.seeds[: plan.looks[0]]
            reason = f"{len(first)} seeds of both systems; they share {len(question.seeds)}"
            if len(question.seeds) >= len(first):
                reason = f"seeds {', '.join(map(name_of, first))}, and not both systems have all of them"
            answer = replace(answer, reason=f"the first look needs {reason}")
        size = (len(entry.asked), sum(other.p is not None for other in entry.asked))
        compared = by_rules(replace(system.comparison, family=size), answer, plan, entry.alpha)
    return replace(system, comparison=compared.judged(entry.alpha, is_up=system.is_up))
