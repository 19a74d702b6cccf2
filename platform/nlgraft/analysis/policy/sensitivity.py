"""Sensitivity of the verdicts: does each stand under other choices that could have been made?

Three choices are varied, one at a time: the metric; for BLEU its tokenizer, from the stored hypotheses; and
the checkpoint, on the dev curves, since only one was tested. Nothing is run. In addition
the range of the difference is given when each seed is left out once. That is no verdict: with fewer seeds one
could be lost for lack of power alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Literal

from nlgraft.analysis.data.trials import Measured, TrialResult, by_document
from nlgraft.analysis.estimates.comparison import Standing
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.evaluation.metric_config import BleuTokenizer
from nlgraft.evaluation.overlap import RowsFunction, bleu_rows, chrf_rows
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.study.data.system import CURVE

Standings = dict[str, Standing]
"""Verdicts by the cells' labels."""
Choice = Literal["metric", "tokenizer", "checkpoint"]

_BLEU = ("bleu", "bleu_zh")
_TOKENIZERS: tuple[BleuTokenizer, ...] = ("13a", "intl", "char", "none")
_UNSPACED = ("zh", "ja-mecab", "ko-mecab", "flores200", "char")
"""Tokenizers of text whose words no spaces separate; of the others only ``char`` fits it."""
MANY_LINES = 30_000
"""Lines of output that are scored again for a report, which takes some seconds."""
_ON_CHRF = "on chrF"
_FEW_SEEDS = 3


@dataclass(frozen=True)
class Sensitivity:
    """How the verdict on one cell depends on one choice.

    Attributes:
        label: Label of the cell.
        standing: The verdict on the main metric.
        choice: What is varied.
        others: The verdict by alternative.
    """

    label: str
    standing: Standing
    choice: Choice
    others: Standings

    @property
    def changes(self) -> Standings:
        """The alternatives whose verdict is another."""
        return {name: other for name, other in self.others.items() if other != self.standing}


@dataclass(frozen=True)
class WithoutSeeds:
    """How the difference of one cell from the baseline changes when one seed is left out.

    Attributes:
        label: Label of the cell.
        low: Smallest difference without one seed.
        high: Largest one.
    """

    label: str
    low: float
    high: float

    @property
    def has_one_sign(self) -> bool:
        """True if all of these differences are on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Sensitivities:
    """The verdicts of a study under other choices.

    Attributes:
        rows: By cell and choice; none for a choice without alternatives.
        without_seeds: By cell, where three seeds or more have finished beside the baseline's.
        missing: Choices that could not be varied, and why.
    """

    rows: tuple[Sensitivity, ...] = ()
    without_seeds: tuple[WithoutSeeds, ...] = ()
    missing: tuple[str, ...] = ()


@lru_cache(maxsize=1)  # a report asks once for each format, and scoring takes seconds
def sensitivities(result: ComparedResults, max_lines: float = MANY_LINES) -> Sensitivities:
    """Examine the verdict on each cell against the baseline; empty before the main metric is known.

    Args:
        result: The result.
        max_lines: Tokenizers are left out where outputs have more lines, each of which is scored again.
    """
    main = result.main_metric
    if main not in result.metrics:
        return Sensitivities()
    missing: list[str] = []
    alone = result.alone()
    alone.prior_of = lambda metric, labels: None  # nothing tells the noise of other scores
    by_choice: dict[Choice, dict[str, Standings]] = {
        "metric": {f"on {name}": _standings(alone, name) for name in _other_metrics(result)},
        "tokenizer": dict(_under_tokenizers(result, missing, max_lines)),
        "checkpoint": dict(_at_checkpoints(result, missing)),
    }
    without_seeds = tuple(_without_each_seed(result))
    if not without_seeds:
        missing.append(f"Seeds are left out from {_FEW_SEEDS} common seeds on.")
    base = result.baseline.measured(main)
    judged = {cell.cell.label for cell in result.cells[1:] if base.keys() & cell.measured(main).keys()}
    stands: Standings = {
        label: standing for label, standing in _standings(result, main).items() if label in judged
    }
    unadjusted = _standings(alone, main)
    withheld = [label for label, standing in stands.items() if standing != unadjusted[label]]
    if withheld:
        missing.append(
            f"Not examined, since ledger or earlier studies decide otherwise: {', '.join(withheld)}."
        )
    rows = [
        Sensitivity(
            label,
            standing,
            choice,
            {name: _as_asked(result, name, standing, standings[label]) for name, standings in others.items()},
        )
        for label, standing in stands.items()
        for choice, others in by_choice.items()
        if others and label not in withheld
    ]
    return Sensitivities(tuple(rows), without_seeds, tuple(missing))


def _standings(result: ComparedResults, metric: str) -> Standings:
    return {
        cell.cell.label: result.standing(result.compare(cell.cell, metric=metric))
        for cell in result.cells[1:]
    }


def _as_asked(result: ComparedResults, alternative: str, standing: Standing, other: Standing) -> Standing:
    """Leave *equal* unchanged where an alternative has no margin, so that nobody asked for equality there."""
    first, second, *_ = alternative.split()
    has_margin = result.margin(second if first == "on" else result.main_metric) is not None
    return standing if standing == "equal" and other == "open" and not has_margin else other


def _other_metrics(result: ComparedResults) -> list[str]:
    """List the other metrics of quality on the split of the main metric."""
    split = result.metrics[result.main_metric].split
    return [
        name
        for name, metric in result.metrics.items()
        if metric.split == split and name != result.main_metric and not (metric.is_time or metric.is_fixed)
        if not (metric.is_derived or name.endswith("_length"))
    ]


def _with_scores(
    result: ComparedResults, metric: str, score: Callable[[TrialResult], Measured | None]
) -> ComparedResults | None:
    """Give the finished replicates other scores of a metric, beside those that are fixed.

    What config and data determine does not change with the scores, and counts of tokens among it say which
    cells may be compared.

    Returns:
        Results corrected and tested as the study's own; None unless every replicate that has the main metric
        gets a score.
    """
    cells = []
    for cell in result.cells:
        trials = []
        for trial in cell.trials:
            if trial.record is None or trial.measured(result.main_metric) is None:
                continue
            measured = score(trial)
            if measured is None:
                return None
            fixed = [name for name, definition in result.system.metrics.items() if definition.is_fixed]
            metrics = {name: trial.record.metrics[name] for name in fixed if name in trial.record.metrics}
            signatures = {} if measured.signature is None else {metric: measured.signature}
            record = replace(trial.record, metrics={**metrics, metric: measured.value}, signatures=signatures)
            segments = {} if measured.segments is None else {metric: measured.segments}
            trials.append(replace(trial, record=record, segments=segments, derived={}))
        cells.append(replace(cell, trials=tuple(trials)))
    return replace(result, cells=tuple(cells), store=None)


def _under_tokenizers(
    result: ComparedResults, missing: list[str], max_lines: float
) -> Iterator[tuple[str, Standings]]:
    """Judge the cells by BLEU under the other tokenizers that fit the text, and by chrF."""
    main = result.main_metric
    split, _, name = main.partition("/")
    if name not in _BLEU:
        missing.append(f"Tokenizers are those of BLEU; the main metric is {main}.")
        return
    scores = [score for cell in result.cells for score in cell.measured(main).values()]
    num_lines = sum(len(score.segments) for score in scores if score.segments is not None)
    if num_lines > max_lines:
        missing.append(f"Other tokenizers: {num_lines:,} segments to score again; nlgraft paper does.")
        return
    for label, rows in _alternatives(result).items():
        metric = f"{split}/chrf" if label == _ON_CHRF else main
        view = _with_scores(result, metric, partial(_rescored, metric=metric, rows=rows))
        if view is None:
            missing.append("No other tokenizer: the store lacks hypotheses of some replicates.")
            return
        yield label, _standings(view, metric)


def _rescored(trial: TrialResult, metric: str, rows: RowsFunction) -> Measured | None:
    split, _, name = metric.partition("/")
    texts = trial.read_texts(split)
    if texts is None:
        return None
    statistics, signature = rows(*texts)
    value = float(aggregate(name, statistics.sum(axis=0)))
    return Measured(value, by_document(statistics, trial.read_stream(split, "document")), signature)


def _alternatives(result: ComparedResults) -> dict[str, RowsFunction]:
    main = result.main_metric
    split = main.partition("/")[0]
    used = {
        part.removeprefix("tok:")
        for cell in result.cells
        for trial in cell.measured(main).values()
        for part in (trial.signature or "").split("|")
        if part.startswith("tok:")
    }
    fitting: tuple[BleuTokenizer, ...] = ("char",) if used & set(_UNSPACED) else _TOKENIZERS
    alternatives = {f"with tok:{name}": bleu_rows(name) for name in fitting if name not in used}
    # a chrF that was scored is among the other metrics; one that the system does not know has no direction
    is_new = f"{split}/chrf" in result.system.metrics and f"{split}/chrf" not in result.metrics
    return alternatives | {_ON_CHRF: chrf_rows(0)} if is_new else alternatives


def _at_checkpoints(result: ComparedResults, missing: list[str]) -> Iterator[tuple[str, Standings]]:
    """Judge the cells on the dev curves at their best and at their last step."""
    for name in dict.fromkeys((result.study.objective.metric, CURVE)):
        metric = result.system.metrics.get(name)
        if metric is None or metric.split != "dev":
            continue
        best = min if metric.direction == "minimize" else max
        at_best = _with_scores(result, name, partial(_at_step, name=name, choose=best))
        at_last = _with_scores(result, name, partial(_at_step, name=name, choose=itemgetter(-1)))
        if at_best is not None and at_last is not None:
            yield f"on {name} at its best", _standings(at_best, name)
            yield f"on {name} at the last step", _standings(at_last, name)
            return
    missing.append("No other checkpoint: some replicates have no dev curve.")


def _at_step(trial: TrialResult, name: str, choose: Callable[[list[float]], float]) -> Measured | None:
    """Choose among the values of a curve by ascending step."""
    values = trial.curve(name)
    return Measured(choose([values[step] for step in sorted(values)])) if len(values) > 1 else None


def _without_each_seed(result: ComparedResults) -> Iterator[WithoutSeeds]:
    """Compute the mean difference of each cell from the baseline without each of the common seeds."""
    main = result.main_metric
    base = result.baseline.measured(main)
    for cell in result.cells[1:]:
        gaps = [score.value - base[seed].value for seed, score in cell.measured(main).items() if seed in base]
        if len(gaps) >= _FEW_SEEDS:
            means = [(sum(gaps) - gap) / (len(gaps) - 1) for gap in gaps]
            yield WithoutSeeds(cell.cell.label, min(means), max(means))
