"""Scores of trivial outputs: the floor below which no cell has learned anything.

For text, two kinds are tried: the most frequent reference for every line, and a copy of each source; for
classes, the most frequent class for every line. The best of them counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import cast, get_args

import numpy as np

from nlgraft.analysis.data.trials import Array, CellResult, TrialResult
from nlgraft.evaluation.metric_config import SCORED, BleuTokenizer, RougeTokenizer
from nlgraft.evaluation.overlap import ROUGE_SIGNATURES
from nlgraft.evaluation.scripts import TextTokenizers
from nlgraft.evaluation.sufficient import STATISTIC_METRICS, aggregate, segment_rows

NEAR = 1.0
"""Points of 100 by which a cell must beat a trivial output to have learned anything."""
_OF_CLASSES = ("accuracy", "macro_f1", "mcc")


@dataclass(frozen=True)
class Trivial:
    """A trivial output: what it is, and its score."""

    output: str
    value: float


def trivial_output(cells: Sequence[CellResult], metric: str) -> Trivial | None:
    """Find the best trivial output on the first finished replicate; all are scored on the same lines.

    Args:
        cells: The cells.
        metric: A metric on a split, in points of 100.

    Returns:
        None for a metric that compares neither texts nor classes, or where the store has none of them.
    """
    trials = (trial for cell in cells for trial in cell.trials if trial.measured(metric) is not None)
    trial = next(trials, None)
    split, _, name = metric.partition("/")
    scored = SCORED.get(name)
    if trial is None or scored is None:
        return None
    texts = trial.read_texts(split)
    outputs: list[Trivial] = []
    if name in _OF_CLASSES:
        outputs += _of_classes(trial, split, name)
    elif STATISTIC_METRICS[name].rows is not None and texts is not None:
        streams = (trial.read_stream(split, f"source {number}") for number in count())
        sources = takewhile(lambda source: source is not None, streams)
        outputs += trivial_texts(name, texts[1], sources, _tokenizers(trial, metric))
    best = max if scored.direction == "maximize" else min
    return best(outputs, key=lambda output: output.value) if outputs else None


def has_learned(value: float, trivial: Trivial, metric: str) -> bool:
    """True if a score is better than a trivial output's by more than `NEAR`."""
    gain = value - trivial.value
    return (gain if SCORED[metric.partition("/")[2]].direction == "maximize" else -gain) > NEAR


def _of_classes(
    trial: TrialResult,
    split: str,
    name: str,
) -> Iterator[Trivial]:
    pairs = trial.segments.get(f"{split}/mcc", trial.segments.get(f"{split}/macro_f1"))
    if pairs is None:
        return
    # The statistics of these metrics are the cells of the confusion matrix.
    num_classes = round(pairs.shape[1] ** 0.5)
    truth = pairs.sum(axis=0).reshape(num_classes, num_classes).sum(axis=1)
    predicted = np.zeros((num_classes, num_classes))
    predicted[:, truth.argmax()] = truth
    sums: Array = predicted.ravel() if name != "accuracy" else np.array([truth.max(), truth.sum()])
    yield Trivial("the most frequent class for every line", float(aggregate(name, sums)))


def trivial_texts(
    name: str,
    references: Sequence[str],
    sources: Iterable[Sequence[str] | None],
    tokenizers: TextTokenizers,
) -> Iterator[Trivial]:
    """Score trivial outputs of a text by a metric: its most frequent line, and copies of the sources."""

    def scored(what: str, lines: Sequence[str]) -> Trivial:
        rows, _ = segment_rows(name, lines, references, tokenizers=tokenizers)
        return Trivial(what, float(aggregate(name, rows.sum(axis=0))))

    frequent = Counter(references).most_common(1)[0][0]
    yield scored("the most frequent reference for every line", [frequent] * len(references))
    for number, source in enumerate(sources):
        if source is None or len(source) != len(references):
            break
        yield scored(f"source {number}, copied", source)


def _tokenizers(trial: TrialResult, metric: str) -> TextTokenizers:
    """Read from the signature how the words of the text were found."""
    measured = trial.measured(metric)
    signature = (measured.signature or "") if measured is not None else ""
    name = next((part[4:] for part in signature.split("|") if part.startswith("tok:")), "")
    rouge = next((tokenizer for tokenizer, how in ROUGE_SIGNATURES.items() if how in signature), "english")
    bleu = name if name in get_args(BleuTokenizer) else "13a"
    return TextTokenizers(cast("BleuTokenizer", bleu), cast("RougeTokenizer", rouge))
