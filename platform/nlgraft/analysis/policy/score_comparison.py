"""Comparison of systems by scores that others computed, paired by item and by seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from nlgraft.analysis.data.ledger import Segments
from nlgraft.analysis.data.score_tables import ScoreTable, endings
from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.policy.hypotheses import System, SystemScores, compare_measured
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import count, name_some
from nlgraft.pipeline.store import ArtifactStore

_LESS_IS_BETTER = re.compile(
    r"(^|[^a-z])(loss|ter|ppl|perplexity|error|[cw]er|nll|bits_per_byte|bpb|ma?e|r?mse|brier|ece)([^a-z]|$)",
    re.IGNORECASE,
)
"""Words in the names of metrics of which less is better."""

Runs = dict[tuple[str, str], dict[str, float]]
"""Scores by item, by system and seed."""


def compare_scores(
    table: ScoreTable,
    name: str,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    store: ArtifactStore | None = None,
    *,
    is_lower_better: bool = False,
) -> tuple[list[SystemScores], list[str]]:
    """Compare every system of a table with the baseline; a system's score is its mean over the items.

    Seeds count in the order of the table, those that all systems have first. In a ledger a system is known
    again by the scores of its first seed, and items by their names.

    Args:
        table: The scores.
        name: Name of the comparison in the ledger.
        metrics: The metrics, the first of which decides; may be left out if there is one. ``acc`` stands for
            all ``TASK/acc`` of the table.
        baseline: The system that the others are compared with; the first of the table if left out.
        store: See `nlgraft.analysis.policy.hypotheses.compare_systems`.
        is_lower_better: Less is better, whatever the metrics' names say.

    Returns:
        The comparisons, and how the scores were paired.

    Raises:
        DataError: A score cannot be read, there is no such metric or baseline, only one system, or nothing
            that can be paired.
    """
    names = table.check(metrics)
    runs_of: dict[str, Runs] = {metric: {} for metric in metrics or names}
    for score in table.scores:
        for metric in endings(score.metric) & {*runs_of}:
            run = runs_of[metric].setdefault((score.system, score.seed), {})
            if score.item in run:
                raise DataError(
                    f"{score.where}: several metrics end in /{metric}; name one of them by --metric"
                )
            run[score.item] = score.value
    if unknown := [metric for metric, runs in runs_of.items() if not runs]:
        raise DataError("\n".join(f"no metric {metric!r}. {nearest(metric, names)}" for metric in unknown))
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
        for system in systems:
            measured[system][metric] = {
                number: _measured([runs[system, seed][item] for item in items], has_items=any(items))
                for number, seed in enumerate(seeds, 1)
                if (system, seed) in runs
            }
    paired = [
        System(
            system,
            measured[system],
            [_digest(system, main[system, seed]) for seed in seeds if (system, seed) in main],
        )
        for system in systems
    ]
    all_items = sorted({item for run in main.values() for item in run if item})
    segments = Segments.of(all_items or [name])
    compared = compare_measured(
        paired, is_up, segments, name, store, scored_as="item", name_of=lambda number: seeds[number - 1]
    )
    return compared, [*notes, *table.notes]


def _common_items(metric: str, runs: Runs, is_up: bool, notes: list[str]) -> list[str]:
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


def _measured(values: Sequence[float], *, has_items: bool) -> Measured:
    rows = np.column_stack([values, np.ones(len(values))])
    return Measured(float(np.mean(values)), rows if has_items else None)


def _digest(system: str, run: Mapping[str, float]) -> str:
    # One number of a run may well be that of another system.
    return Segments.of([*map(repr, sorted(run.items())), *([] if any(run) else [system])]).digest
