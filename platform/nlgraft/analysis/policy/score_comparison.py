"""Comparison of systems by scores that others computed, paired by item and by seed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nlgraft.analysis.data.ledger import Segments
from nlgraft.analysis.data.score_tables import ScoreTable
from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.policy.hypotheses import System, SystemScores, compare_measured
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import count
from nlgraft.pipeline.store import ArtifactStore

_LESS_IS_BETTER = re.compile(
    r"(^|[^a-z])(loss|ter|ppl|perplexity|error|[cw]er|nll|bits_per_byte|bpb|ma?e|r?mse|brier|ece)([^a-z]|$)",
    re.IGNORECASE,
)
"""Words in the names of metrics of which less is better."""
_NAMED = 3


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
        DataError: There is no such metric or baseline, only one system, or nothing that can be paired.
    """
    frame = pd.DataFrame(table.scores)
    names = list(frame["metric"].unique())
    if not metrics and len(names) > 1:
        raise DataError(f"{len(names)} metrics: choose by --metric. {nearest('', names)}")
    rows_of = {
        metric: frame[(frame["metric"] == metric) | frame["metric"].str.endswith(f"/{metric}")]
        for metric in metrics or names
    }
    if unknown := [metric for metric, rows in rows_of.items() if rows.empty]:
        raise DataError("\n".join(f"no metric {metric!r}. {nearest(metric, names)}" for metric in unknown))
    scores = {metric: _by_item(rows) for metric, rows in rows_of.items()}
    main, *_ = scores.values()
    systems, seeds = (list(main.columns.unique(level)) for level in ("system", "seed"))
    if baseline is not None and baseline not in systems:
        raise DataError(f"no system {baseline!r}. {nearest(baseline, systems)}")
    for metric, by_item in scores.items():
        if without := [system for system in systems if system not in by_item.columns.unique("system")]:
            raise DataError(f"{metric}: no score of {', '.join(without)}")
    first = baseline or systems[0]
    systems.sort(key=lambda system: system != first)
    lacking = {seed: [system for system in systems if (system, seed) not in main] for seed in seeds}
    seeds.sort(key=lambda seed: len(lacking[seed]))
    is_up = {
        metric: not is_lower_better
        and table.is_up.get(rows["metric"].iloc[0], not _LESS_IS_BETTER.search(metric))
        for metric, rows in rows_of.items()
    }
    num_common = sum(not without for without in lacking.values())
    counted = f", counted as 1 to {len(seeds)}: {', '.join(seeds)}" if seeds[0] != "1" else ""
    notes = [
        f"{count(len(systems), 'system')}, {count(num_common, 'seed')} in common{counted}",
        *(f"seed {seed}: not of {', '.join(without)}" for seed, without in lacking.items() if without),
        *(note for metric, by_item in scores.items() for note in _pairing(metric, by_item, is_up[metric])),
        *table.notes,
    ]
    paired = []
    for system in systems:
        measured = {
            metric: {
                number: _measured(by_item.dropna()[system, seed])
                for number, seed in enumerate(seeds, 1)
                if (system, seed) in by_item
            }
            for metric, by_item in scores.items()
        }
        digests = [_digest(system, main[system, seed]) for seed in seeds if (system, seed) in main]
        paired.append(System(system, measured, digests))
    segments = Segments.of(sorted(filter(None, main.index)) or [name])
    return compare_measured(paired, is_up, segments, name, store, scored_as="item"), notes


def _by_item(rows: pd.DataFrame) -> pd.DataFrame:
    """Tabulate scores: a row an item, a column a system and seed, in the order of the files."""
    by_item = rows.pivot(index="item", columns=["system", "seed"], values="value")
    return by_item.loc[rows["item"].unique(), list(rows.groupby(["system", "seed"], sort=False).groups)]


def _pairing(metric: str, by_item: pd.DataFrame, is_up: bool) -> list[str]:
    """Say which items are paired, and which are missing where."""
    num_common = len(by_item.dropna())
    notes = []
    for (system, seed), scores in by_item.items():
        if missing := list(by_item.index[scores.isna()]):
            first = ", ".join(missing[:_NAMED])
            lacks = f"{system} with seed {seed} lacks {count(len(missing), 'item')} ({first}"
            notes.append(f"{metric}: {lacks}{', ...' * (len(missing) > _NAMED)}); left out of all")
    if not num_common:
        raise DataError("\n".join([f"{metric}: no item has a score of every system and seed", *notes]))
    among = f"mean over {count(num_common, 'item')} in common" if by_item.index.any() else "one score a seed"
    return [f"{metric}: {among}, {'more' if is_up else 'less'} is better", *notes]


def _measured(scores: pd.Series[float]) -> Measured:
    values = scores.to_numpy()
    rows = np.column_stack([values, np.ones_like(values)])
    return Measured(float(values.mean()), rows if scores.index.any() else None)


def _digest(system: str, scores: pd.Series[float]) -> str:
    by_item = sorted(scores.dropna().items())
    # One number of a run may well be that of another system.
    return Segments.of([*map(repr, by_item), *([] if scores.index.any() else [system])]).digest
