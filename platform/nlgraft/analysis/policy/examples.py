"""Segments in which the outputs of two cells differ most, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nlgraft.analysis.data.trials import TrialResult
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.basics.wording import grouped
from nlgraft.evaluation.metric_config import SCORED
from nlgraft.evaluation.sufficient import aggregate

NUM_EXAMPLES = 10


@dataclass(frozen=True)
class Example:
    """One segment: a line, or a document where lines belong to one.

    Attributes:
        number: Its place in the test set, from 1.
        source: Its first source; empty if that is not stored.
        reference: Human text.
        outputs: Of the cell and of the baseline.
        scores: Of these outputs, by the main metric on this segment alone.
    """

    number: int
    source: str
    reference: str
    outputs: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class Examples:
    """The segments in which a cell and the baseline differ most.

    Attributes:
        label: The cell.
        seed: The first seed that finished in both cells; the outputs are those of its trials.
        examples: Largest difference first, at most `NUM_EXAMPLES`.
        why_none: Reason why there are none; empty if there are.
    """

    label: str
    seed: int | None = None
    examples: tuple[Example, ...] = ()
    why_none: str = ""


def examples_of(result: RecordedResults, most: int | None = None) -> list[Examples]:
    """Choose the examples of every cell, or of the first ``most`` cells, against the baseline."""
    return [_examples(result, cell.label) for cell in result.cells[1:][:most]]


def _examples(result: RecordedResults, label: str) -> Examples:
    metric = result.main_metric
    split, _, name = metric.partition("/")
    cells = (result.cell(label), result.baseline)
    seeds = [seed for seed in cells[0].measured(metric) if seed in cells[1].measured(metric)]
    if not seeds:
        return Examples(label, why_none="no seed has finished in both cells")
    pair = [next(trial for trial in cell.trials if trial.seed == seeds[0]) for cell in cells]
    texts = [trial.read_texts(split) or ([], []) for trial in pair]
    mine, base = (_joined(trial, split, both[0]) for trial, both in zip(pair, texts, strict=True))
    references = _joined(pair[0], split, texts[0][1])
    rows = [trial.segments[metric] for trial in pair if metric in trial.segments]
    if len(rows) < len(pair) or not mine or not base or name not in SCORED:
        return Examples(label, seeds[0], why_none=f"no outputs are stored with {metric} line by line")
    scores = [aggregate(name, statistics) for statistics in rows]
    sources = _joined(pair[0], split, pair[0].read_stream(split, "source 0") or [])
    if not len(scores[0]) == len(scores[1]) == len(mine) == len(base):
        return Examples(label, seeds[0], why_none=f"{metric} has other segments than the outputs")
    order = np.argsort(-np.abs(scores[0] - scores[1]), kind="stable")
    examples = tuple(
        Example(
            int(index) + 1,
            sources[index] if len(sources) == len(mine) else "",
            references[index],
            (mine[index], base[index]),
            (float(scores[0][index]), float(scores[1][index])),
        )
        for index in order[:NUM_EXAMPLES]
        if scores[0][index] != scores[1][index]
    )
    return Examples(label, seeds[0], examples, "" if examples else f"every segment has the same {metric}")


def _joined(
    trial: TrialResult,
    split: str,
    lines: Sequence[str],
) -> list[str]:
    """Join the lines of each document, in the order of `data.trials.by_document`."""
    documents = trial.read_stream(split, "document") if trial.num_documents else None
    if documents is None or len(documents) != len(lines):
        return list(lines)
    lines_by_name = grouped(zip(documents, lines, strict=True))
    return [" ".join(lines_by_name[name]) for name in sorted(lines_by_name)]
