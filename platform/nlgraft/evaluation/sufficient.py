"""Per-segment sufficient statistics, and the metrics as functions of their sums.

A corpus metric that depends on the segments only through a sum is recomputed for any resampling of the
segments by adding rows, so a bootstrap of a thousand samples is cheap. Every metric of nlgraft is such a
function: ``segment_rows`` makes the rows, ``aggregate`` turns sums of rows into values.

N is the number of segments, k the number of statistics of one segment, ``...`` any leading shape (for
example bootstrap samples). Sums, not means, go into ``aggregate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError, nearest
from nlgraft.evaluation.metric_config import scored_name
from nlgraft.evaluation.overlap import (
    RowsFunction,
    bleu_rows,
    chrf_rows,
    meteor_rows,
    rouge_rows,
    ter_rows,
)
from nlgraft.evaluation.scripts import DEFAULT_TOKENIZERS, TextTokenizers

Statistics = NDArray[np.float64]
Rows = tuple[Statistics, str]

NUM_ECE_BINS = 20
"""Equal-width confidence bins of the inference ECE (Wang et al. 2020 use 20)."""

ROUGE_KINDS = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL", "rouge_lsum": "rougeLsum"}
"""Kinds of ROUGE by metric, as rouge-score calls them."""

_LOG_OF_ZERO = -9999999999.0
"""sacrebleu's value of log 0: its exponential is exactly 0."""
_MANY = 4096


@dataclass(frozen=True)
class StatisticMetric:
    """A metric that is a function of summed per-segment statistics.

    Attributes:
        value: Maps sums [..., k] to values [...]; its docstring names the k numbers of a segment.
        rows: Maps hypotheses and references to statistics [N, k] and a signature; None where the statistics
            come from a model or a classifier and not from two texts.
    """

    value: Callable[[Statistics], Statistics]
    rows: RowsFunction | None = None


def _elementwise(function: Callable[[float], float], values: Statistics) -> Statistics:
    """Apply a libm function: unlike numpy's it gives the same bits as sacrebleu and on every processor."""
    return np.asarray(np.frompyfunc(function, 1, 1)(values), dtype=np.float64)


def _log(values: Statistics) -> Statistics:
    """Natural logarithm, `_LOG_OF_ZERO` of 0; of thousands of values, which are resamples, numpy's."""
    if values.size > _MANY:
        return np.log(values, out=np.full_like(values, _LOG_OF_ZERO), where=values > 0)
    return _elementwise(lambda value: math.log(value) if value else _LOG_OF_ZERO, values)


def _exp(values: Statistics) -> Statistics:
    """Exponential; infinite for the loss of a training that diverges."""
    if values.size > _MANY:
        return np.exp(values)
    return _elementwise(lambda value: math.exp(value) if value < 709 else math.inf, values)


def _ratio(numerator: Statistics, denominator: Statistics) -> Statistics:
    """Divide where the denominator is positive, else 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _bleu(sums: Statistics) -> Statistics:
    """Compute corpus BLEU-4 with exponential smoothing, in points.

    The columns are hypothesis length, reference length, 4 matches and 4 totals: sums [..., 10] to [...].

    Source: Papineni et al. (2002); smoothing "exp" of Chen and Cherry (2014) as in sacrebleu.
    """
    hypothesis_length, reference_length = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2:6], sums[..., 6:10]
    # sacrebleu stops at the first order without n-grams; the orders after it count as precision 0
    is_reached = np.logical_and.accumulate(totals > 0, axis=-1)
    is_smoothed = is_reached & (matches == 0)
    smoothing = np.exp2(np.cumsum(is_smoothed, axis=-1))
    precision = np.where(is_smoothed, _ratio(np.full_like(totals, 100.0), smoothing * totals), 0.0)
    precision = np.where(is_reached & (matches > 0), _ratio(100.0 * matches, totals), precision)
    logs = _log(precision)
    mean_log = (logs[..., 0] + logs[..., 1] + logs[..., 2] + logs[..., 3]) / 4
    is_short = (hypothesis_length < reference_length) & (hypothesis_length > 0)
    excess = 1 - _ratio(reference_length, np.where(is_short, hypothesis_length, 1.0))
    brevity = np.where(is_short, _exp(np.where(is_short, excess, 0.0)), 1.0)
    brevity = np.where((hypothesis_length == 0) & (reference_length > 0), 0.0, brevity)
    return np.where(matches.sum(-1) > 0, brevity * _exp(mean_log), 0.0)


def _chrf(sums: Statistics) -> Statistics:
    """Compute corpus chrF2 in points; orders absent from either side do not count.

    The columns are hypothesis count, reference count and matches of each order: sums [..., 3 * orders].

    Source: Popović (2015), as in sacrebleu (beta 2, effective order).
    """
    beta_squared = 4
    precision_sum = np.zeros(sums.shape[:-1])
    recall_sum = np.zeros(sums.shape[:-1])
    orders = np.zeros(sums.shape[:-1])
    for order in range(sums.shape[-1] // 3):
        hypothesis, reference, matches = (sums[..., 3 * order + column] for column in range(3))
        is_present = (hypothesis > 0) & (reference > 0)
        precision_sum += np.where(is_present, _ratio(matches, hypothesis), 0.0)
        recall_sum += np.where(is_present, _ratio(matches, reference), 0.0)
        orders += is_present
    precision, recall = _ratio(precision_sum, orders), _ratio(recall_sum, orders)
    numerator = (1 + beta_squared) * precision * recall
    return 100 * _ratio(numerator, beta_squared * precision + recall)


def _ter(sums: Statistics) -> Statistics:
    """Compute corpus TER in percent: edits over reference words; 100 if only the reference is empty."""
    edits, reference_length = sums[..., 0], sums[..., 1]
    return 100 * np.where(reference_length > 0, _ratio(edits, reference_length), (edits > 0).astype(float))


def _mean(sums: Statistics) -> Statistics:
    """Divide the first column by the second."""
    return _ratio(sums[..., 0], sums[..., 1])


def _bits(sums: Statistics) -> Statistics:
    """Divide the first column, in nats, by the second, and convert to bits."""
    return _mean(sums) / math.log(2)


def _perplexity(sums: Statistics) -> Statistics:
    """Raise e to the first column over the second."""
    return _exp(_mean(sums))


def _percentage(sums: Statistics) -> Statistics:
    """Divide the first column by the second, times 100."""
    return 100 * _mean(sums)


def _confusion(sums: Statistics) -> Statistics:
    """Shape summed one-hot (true, predicted) pairs [..., C*C] into confusion matrices [..., C, C]."""
    classes = math.isqrt(sums.shape[-1])
    return sums.reshape(*sums.shape[:-1], classes, classes)


def _macro_f1(sums: Statistics) -> Statistics:
    """Average F1 over the classes that occur as truth or as prediction, in points (as scikit-learn)."""
    confusion = _confusion(sums)
    true, predicted = confusion.sum(-1), confusion.sum(-2)
    f1 = _ratio(2 * np.diagonal(confusion, axis1=-2, axis2=-1), true + predicted)
    return 100 * _ratio(f1.sum(-1), ((true + predicted) > 0).sum(-1).astype(float))


def _mcc(sums: Statistics) -> Statistics:
    """Compute Matthews' correlation for any number of classes, in points; 0 when either side is constant.

    Source: Gorodkin (2004), eq. 8, as scikit-learn's ``matthews_corrcoef``.
    """
    confusion = _confusion(sums)
    true, predicted = confusion.sum(-1), confusion.sum(-2)
    correct = np.diagonal(confusion, axis1=-2, axis2=-1).sum(-1)
    total = true.sum(-1)
    covariance = correct * total - (true * predicted).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (true**2).sum(-1))
    return 100 * _ratio(covariance, np.sqrt(spread))


def _ece(sums: Statistics) -> Statistics:
    """Compute the expected calibration error, ``sum_b |correct_b - confidence_b| / N``, in points.

    The columns are, for each bin, the number of tokens, the sum of their confidences and the number of right
    ones, flattened: sums [..., 3 * bins].

    Source: Wang et al. (2020), On the Inference Calibration of Neural Machine Translation, eq. 2.
    """
    bins = sums.reshape(*sums.shape[:-1], -1, 3)
    gap = np.abs(bins[..., 2] - bins[..., 1]).sum(-1)
    return 100 * _ratio(gap, bins[..., 0].sum(-1))


STATISTIC_METRICS: Mapping[str, StatisticMetric] = {
    "bleu": StatisticMetric(_bleu, bleu_rows("13a")),
    "bleu_zh": StatisticMetric(_bleu, bleu_rows("zh")),
    "chrf": StatisticMetric(_chrf, chrf_rows(0)),
    "chrfpp": StatisticMetric(_chrf, chrf_rows(2)),
    "ter": StatisticMetric(_ter, ter_rows),
    "rouge1": StatisticMetric(_percentage, rouge_rows("rouge1", "english")),
    "rouge2": StatisticMetric(_percentage, rouge_rows("rouge2", "english")),
    "rouge_l": StatisticMetric(_percentage, rouge_rows("rougeL", "english")),
    "rouge_lsum": StatisticMetric(_percentage, rouge_rows("rougeLsum", "english")),
    "meteor": StatisticMetric(_percentage, meteor_rows),
    "doc_bleu": StatisticMetric(_bleu),
    "learned": StatisticMetric(_mean),
    "item": StatisticMetric(_mean),
    "loss": StatisticMetric(_mean),
    "bits_per_byte": StatisticMetric(_bits),
    "mlm_loss_per_char": StatisticMetric(_mean),
    "perplexity": StatisticMetric(_perplexity),
    "accuracy": StatisticMetric(_percentage),
    "macro_f1": StatisticMetric(_macro_f1),
    "mcc": StatisticMetric(_mcc),
    "ece": StatisticMetric(_ece),
    "hypothesis_length": StatisticMetric(_mean),
    "reference_length": StatisticMetric(_mean),
}
"""Every metric that can be resampled, by its name without the split; `SCORED` has their meanings."""


def find_metric(name: str) -> StatisticMetric:
    """Find a metric by its name; see `nlgraft.evaluation.metric_config.scored_name`."""
    return STATISTIC_METRICS[scored_name(name)]


def segment_rows(
    metric: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenizers: TextTokenizers = DEFAULT_TOKENIZERS,
) -> Rows:
    """Compute the statistics of every segment and the signature.

    Args:
        metric: Name of a text metric.
        hypotheses: System outputs, detokenised.
        references: One human text for each.
        tokenizers: Tokenizers of BLEU and ROUGE; other metrics have their own.

    Returns:
        Statistics [N, k] and the signature.

    Raises:
        DataError: The two sides differ in length, are empty, or the metric does not compare texts.
    """
    text_metrics = {name: known.rows for name, known in STATISTIC_METRICS.items() if known.rows}
    rows = text_metrics.get(metric)
    if rows is None:
        raise DataError(f"'{metric}' does not compare two texts. {nearest(metric, sorted(text_metrics))}")
    if len(hypotheses) != len(references):
        raise DataError(
            f"{metric}: {len(hypotheses)} hypotheses but {len(references)} references; give one for each"
        )
    if not hypotheses:
        raise DataError(f"{metric}: no segments; a corpus score needs at least one")
    # Only these metrics depend on a tokenizer that the study or the script decides.
    if metric == "bleu":
        rows = bleu_rows(tokenizers.bleu)
    elif metric in ROUGE_KINDS:
        rows = rouge_rows(ROUGE_KINDS[metric], tokenizers.rouge)
    return rows(hypotheses, references)


def aggregate(metric: str, sums: Statistics) -> Statistics:
    """Turn sums of statistics into metric values.

    Args:
        metric: Name of the metric, a variant allowed.
        sums: Statistics summed over segments, [..., k].

    Returns:
        Values [...]; equal to sacrebleu's for BLEU, chrF and TER.

    Raises:
        DataError: There is no such metric.
    """
    return find_metric(metric).value(np.asarray(sums, dtype=np.float64))
