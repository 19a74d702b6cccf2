"""Comparison of any systems by their output alone: files of hypotheses, several seeds each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import Comparison, Standing, rounded
from nlgraft.analysis.estimates.resampling import holm
from nlgraft.basics.errors import DataError
from nlgraft.evaluation.scores import Score, evaluate_text
from nlgraft.text.files import has_text, read_lines

_MAX_CHARS = 100_000


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
        values = [rounded(value) for value in self.values]
        compared = None if self.comparison is None else self.comparison.to_json()
        named = {"system": self.name, "metric": self.metric, "signature": self.signature}
        return {**named, "values": values, "comparison": compared}


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    reference: str,
    metrics: Sequence[str] = ("bleu",),
    *,
    samples: int = 1000,
    alpha: float = 0.05,
) -> list[SystemScores]:
    """Compare every system with the first one, paired by segment and by the order of the seeds.

    Seeds are drawn independently of each other, so any order pairs them. All comparisons are one family.

    Args:
        systems: Files of hypotheses by system, one for each seed.
        reference: File of references.
        metrics: Names of text metrics.
        samples: Resamples.
        alpha: Level, and one minus the confidence of intervals.

    Raises:
        DataError: A file is unreadable or has another number of lines, or there is nothing to compare.
    """
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
    scores = []
    comparer = Comparer(samples=samples, alpha=alpha)
    for metric in metrics:
        scored = {
            name: [_evaluated(texts, references, metric) for texts in seeds] for name, seeds in lines.items()
        }
        (first, base), *others = scored.items()
        scores.append(_scores(first, metric, base))
        for name, trials in others:
            comparison = comparer.compare(metric, name, _measured(trials), first, _measured(base))
            scores.append(replace(_scores(name, metric, trials), comparison=comparison))
    return _judged(scores, alpha)


def _evaluated(hypotheses: list[str], references: list[str], metric: str) -> tuple[Score, Measured]:
    evaluation = evaluate_text(hypotheses, references, [metric])
    score = evaluation.scores[metric]
    return score, Measured(score.value, evaluation.statistics[metric], score.signature)


def _measured(trials: Sequence[tuple[Score, Measured]]) -> dict[int, Measured]:
    return {seed: measured for seed, (_, measured) in enumerate(trials, start=1)}


def _scores(name: str, metric: str, trials: Sequence[tuple[Score, Measured]]) -> SystemScores:
    values = tuple(score.value for score, _ in trials)
    score = trials[0][0]
    return SystemScores(name, metric, values, score.signature, score.direction == "maximize")


def _judged(scores: list[SystemScores], alpha: float) -> list[SystemScores]:
    """Correct the p-values after Holm and write the verdicts, as for the cells of a study."""
    family = [system.comparison for system in scores if system.comparison is not None]
    adjusted = holm([compared.p for compared in family])
    num_open = sum(p is not None and p > alpha for p in adjusted)
    level, size = alpha / max(1, num_open), (len(family), sum(compared.p is not None for compared in family))
    corrected = iter(zip(family, adjusted, strict=True))
    judged = []
    for system in scores:
        if system.comparison is None:
            judged.append(system)
            continue
        comparison, p = next(corrected)
        comparison = replace(comparison, p_holm=p, level=level, family=size)
        standing: Standing = "open"
        if comparison.is_significant(alpha, is_corrected=True):
            standing = "better" if ((comparison.difference or 0.0) > 0) == system.is_up else "worse"
        judged.append(replace(system, comparison=replace(comparison, standing=standing)))
    return judged
