"""Comparison of systems that were not trained here, by their hypotheses or by their scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from nlgraft.analysis.data.ledger import (
    SCORED_ELSEWHERE,
    VERSION,
    Entry,
    LedgerQuestion,
    Plan,
    Segments,
    history,
    output_digest,
    record,
    scored_lines,
)
from nlgraft.analysis.data.score_tables import Runs, ScoreTable, endings
from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.policy.rules import ALPHA, Rules, Test, answered, by_rules, exploratory, over_looks
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import count, name_some, timestamp
from nlgraft.evaluation.overlap import mean_rows
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.text.files import has_text, read_lines

_MAX_CHARS = 100_000
_FAMILY = "compare"
_FEW_ITEMS = 20
"""Below so many items resamples of them understate their noise."""
_LESS_IS_BETTER = re.compile(
    r"(^|[^a-z])(loss|ter|ppl|perplexity|error|[cw]er|nll|bits_per_byte|bpb|ma?e|r?mse|brier|ece)([^a-z]|$)",
    re.IGNORECASE,
)
"""Words in the names of metrics of which less is better."""

NO_LEDGER = (
    "no ledger, so no verdict: nothing tells what was compared on these lines before; --ledger STORE "
    "remembers it (a new directory, if there is none yet)"
)


@dataclass(frozen=True)
class SystemScores:
    """One system on one metric.

    Attributes:
        system: Its name.
        metric: The metric.
        signature: How the scores were computed; None where nobody says.
        values: Its score with every seed.
        comparison: It minus the first system; None for the first.
    """

    system: str
    metric: str
    signature: str | None
    values: tuple[float, ...]
    comparison: Comparison | None


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

    def signature(self, metric: str) -> str | None:
        """How its first score was computed."""
        return next(iter(self.measured[metric].values())).signature


_Case = tuple[Comparison, LedgerQuestion, Plan, Test, str]
"""A comparison, how it is entered, when and how it is made, and the variant that its outputs are of."""


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
    read, is_up = [], {}
    for name, seeds in lines.items():
        measured = {metric: {} for metric in metrics}
        for seed, hypotheses in enumerate(seeds, 1):
            evaluation = evaluate_text(hypotheses, references, metrics)
            for metric, score in evaluation.scores.items():
                is_up[metric] = score.direction == "maximize"
                statistics = evaluation.statistics[metric]
                measured[metric][seed] = Measured(score.value, statistics, score.signature)
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
    base, *others = systems
    by_first = {}
    for system in others:
        alike = by_first.setdefault(system.digests[0], system.name)
        if alike != system.name:
            raise DataError(
                f"the first files of {alike} and {system.name} say the same, and a system is known again "
                "by its first file; leave one of the two out"
            )
    past = history(store, segments)
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
    own_plan = Plan(tuple(range(1, 4 * num_seeds + 1)), (num_seeds, 2 * num_seeds, 4 * num_seeds))
    comparer = Comparer(alpha=ALPHA, name_of=name_of)
    cases: dict[tuple[str, str], _Case] = {}
    for metric, system in product(is_up, others):
        cells = (system.digests[0], base.digests[0])
        plan = past_rules.plan(cells, own_plan)
        test = partial(_tested, comparer, metric, scored_as or metric, [system, base])
        compared = over_looks(plan, test, name_of=name_of)
        outputs = (*system.digests, *base.digests)
        variant = next((variant_of[digest] for digest in outputs if digest in variant_of), "")
        question = LedgerQuestion(
            metric=metric,
            cells=cells,
            labels=(system.name, base.name),
            signature=system.signature(metric),
            family=None if variant else _FAMILY,
            seeds=compared.seeds,
            looks=compared.looks,
            difference=compared.difference,
            p=compared.p,
            is_judged=not compared.open_because,
        )
        cases[metric, system.name] = compared, question, plan, test, variant
    if store is None:
        judged = {
            key: replace(exploratory(compared, NO_LEDGER), standing="open")
            for key, (compared, *_) in cases.items()
        }
    else:
        metrics = tuple(is_up)
        entry = Entry(
            version=VERSION,
            time=timestamp(),
            study=name,
            variant=name,
            system=SCORED_ELSEWHERE,
            segments=segments,
            baseline=base.digests[0],
            cells=tuple(dict.fromkeys(digest for system in systems for digest in system.digests)),
            metrics=metrics,
            plan=own_plan,
            alpha=ALPHA,
            asked=tuple(question for _, question, *_ in cases.values()),
            scores={
                system.digests[0]: {seed: trial.value for seed, trial in system.measured[metrics[0]].items()}
                for system in systems
            },
        )
        rules = Rules([*past.entries.values(), entry])
        entry = answered(entry, rules)
        if entry not in past.entries.values():
            record(store, entry)
        judged = {
            key: _answer(case, entry, rules, name_of).judged(ALPHA, is_up=is_up[key[0]])
            for key, case in cases.items()
        }
    return [
        SystemScores(
            system.name,
            metric,
            system.signature(metric),
            tuple(trial.value for trial in system.measured[metric].values()),
            judged.get((metric, system.name)),
        )
        for metric, system in product(is_up, systems)
    ]


def _tested(
    comparer: Comparer,
    metric: str,
    scored_as: str,
    systems: Sequence[System],
    seeds: Sequence[int] | None,
) -> Comparison:
    """Compare two systems over some seeds."""
    terms = [
        (sign, {n: score for n, score in system.measured[metric].items() if seeds is None or n in seeds})
        for sign, system in zip((1.0, -1.0), systems, strict=True)
    ]
    compared = comparer.contrast(scored_as, systems[0].name, systems[1].name, terms)
    if compared.scope == "seeds" and compared.estimate is not None:
        # Without items nothing needs to be drawn: the paired t test.
        compared = replace(compared, p=compared.estimate.p)
    if scored_as != metric and (compared.num_segments or _FEW_ITEMS) < _FEW_ITEMS:
        compared = replace(compared, open_because=f"fewer than {_FEW_ITEMS} items")
    return replace(compared, metric=metric)


def _answer(
    case: _Case,
    entry: Entry,
    rules: Rules,
    name_of: Callable[[int], str],
) -> Comparison:
    """Put in the ledger's answer, as for a cell of a study."""
    compared, question, plan, test, variant = case
    answer = rules.answer(entry, question)
    if answer.basis == "exploratory":
        reason = f"{answer.reason}; compare it on test lines that nobody has scored"
        if variant:
            reason = f"outputs of {variant}, whose report judges them"
        return exploratory(test(None), f"exploratory, no verdict: {reason}")
    if answer.reason and not question.looks:
        first = plan.seeds[: plan.looks[0]]
        reason = f"{len(first)} seeds of both systems; they share {len(question.seeds)}"
        if len(question.seeds) >= len(first):
            reason = f"seeds {', '.join(map(name_of, first))}, and not both systems have all of them"
        answer = replace(answer, reason=f"the first look needs {reason}")
    size = (len(entry.asked), sum(other.p is not None for other in entry.asked))
    return by_rules(replace(compared, family=size), answer, plan, entry.alpha)


def compare_scores(
    table: ScoreTable,
    name: str,
    baseline: str | None = None,
    store: ArtifactStore | None = None,
    *,
    is_lower_better: bool = False,
) -> tuple[list[SystemScores], list[str]]:
    """Compare every system of a table with the baseline; a system's score is its mean over the items.

    Seeds count in the order of the table, those that all systems have first. In a ledger a system is known
    again by the scores of its first seed, and items by their names.

    Args:
        table: The scores; the first of its metrics decides.
        name: Name of the comparison in the ledger.
        baseline: The system that the others are compared with; the first of the table if left out.
        store: As of `compare_systems`.
        is_lower_better: Less is better, whatever the metrics' names say.

    Returns:
        The comparisons, and how the scores were paired.

    Raises:
        DataError: A score cannot be read, there is no such metric or baseline, only one system, or nothing
            that can be paired.
    """
    runs_of = table.runs()
    main, *_ = runs_of.values()
    systems, seeds = (list(dict.fromkeys(labels)) for labels in zip(*main, strict=True))
    if baseline is not None and baseline not in systems:
        raise DataError(f"no system {baseline!r}. {nearest(baseline, systems)}")
    for metric, runs in runs_of.items():
        if without := [system for system in systems if system not in {scored for scored, _ in runs}]:
            raise DataError(f"{metric}: no score of {', '.join(without)}")
    first = baseline or systems[0]
    systems.sort(key=lambda system: system != first)
    lacking = {seed: [system for system in systems if (system, seed) not in main] for seed in seeds}
    seeds.sort(key=lambda seed: len(lacking[seed]))
    num_common = sum(not without for without in lacking.values())
    notes = [f"{count(len(systems), 'system')}, {count(num_common, 'seed')} in common"]
    notes += [f"seed {seed}: not of {', '.join(without)}" for seed, without in lacking.items() if without]
    measured: dict[str, dict[str, dict[int, Measured]]] = {system: {} for system in systems}
    is_up = {}
    for metric, runs in runs_of.items():
        directions = [up for name, up in table.is_up.items() if metric in endings(name)]
        is_up[metric] = not is_lower_better and all(directions or [not _LESS_IS_BETTER.search(metric)])
        items = _common_items(metric, runs, is_up[metric], notes)
        for system, (number, seed) in product(systems, enumerate(seeds, 1)):
            trials = measured[system].setdefault(metric, {})
            if run := runs.get((system, seed)):
                values = np.array([run[item].value for item in items])
                rows = mean_rows(values) if any(items) else None
                trials[number] = Measured(float(values.mean()), rows)
    digests = {system: [] for system in systems}
    for system, seed in sorted(main, key=lambda labels: seeds.index(labels[1])):
        run = main[system, seed]
        lines = [repr((item, score.value)) for item, score in sorted(run.items())]
        # One number of a run may well be that of another system.
        digests[system].append(Segments.of(lines if any(run) else [*lines, system]).digest)
    all_items = sorted({item for run in main.values() for item in run if item})
    compared = compare_measured(
        [System(system, measured[system], digests[system]) for system in systems],
        is_up,
        Segments.of(all_items or [name]),
        name,
        store,
        scored_as="item",
        name_of=lambda number: seeds[number - 1],
    )
    return compared, [*notes, *table.notes]


def _common_items(
    metric: str,
    runs: Runs,
    is_up: bool,
    notes: list[str],
) -> list[str]:
    """List the items that all runs have, in the order of the files, and note which are missing where."""
    items = dict.fromkeys(item for run in runs.values() for item in run)
    common = [item for item in items if all(item in run for run in runs.values())]
    among = f"mean over {count(len(common), 'item')} in common" if any(items) else "one score a seed"
    notes.append(f"{metric}: {among}, {'more' if is_up else 'less'} is better")
    for (system, seed), run in runs.items():
        if missing := [item for item in items if item not in run]:
            lacks = f"{system} with seed {seed} lacks {count(len(missing), 'item')}"
            notes.append(f"{metric}: {lacks} ({name_some(missing)}); left out of all")
    if not common:
        raise DataError("\n".join([f"{metric}: no item has a score of every system and seed", *notes]))
    return common
