"""Scores: values that know their number of segments, their direction and how they were computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nlgraft.basics.wording import grouped
from nlgraft.evaluation.metric_config import SCORED, Direction, scored_name
from nlgraft.evaluation.scripts import TextTokenizers, choose_tokenizers
from nlgraft.evaluation.sufficient import Statistics, aggregate, segment_rows


@dataclass(frozen=True)
class Score:
    """One measured number.

    Attributes:
        value: The number.
        n: Number of segments, decisions or repetitions.
        direction: Which way is better.
        signature: Pins how it was computed; two scores can be compared only when these agree.
    """

    value: float
    n: int
    direction: Direction
    signature: str

    def to_json(self) -> dict[str, float | int | str]:
        """Convert the score to its entry in ``metrics.json``."""
        return dict(vars(self))


@dataclass(frozen=True)
class Evaluation:
    """The scores of one split with the statistics they came from.

    Attributes:
        scores: By metric name.
        statistics: By metric name, each [N, k]; N may differ (documents, tokens of classes).
    """

    scores: Mapping[str, Score]
    statistics: Mapping[str, Statistics]

    @staticmethod
    def of(statistics: Mapping[str, Statistics], signatures: str | Mapping[str, str]) -> Evaluation:
        """Score the statistics of segments, by metric name, each [N, k]; one signature may serve all.

        Raises:
            DataError: There is no such metric.
        """
        if isinstance(signatures, str):
            signatures = dict.fromkeys(statistics, signatures)
        scores = {}
        for name, rows in statistics.items():
            value = float(aggregate(name, np.asarray(rows, dtype=np.float64).sum(0)))
            # A variant of a metric, such as ``bleu.short``, has its direction.
            scores[name] = Score(value, len(rows), SCORED[scored_name(name)].direction, signatures[name])
        return Evaluation(scores, statistics)

    def __or__(self, other: Evaluation) -> Evaluation:
        return Evaluation({**self.scores, **other.scores}, {**self.statistics, **other.statistics})


def evaluate_text(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    *,
    tokenizers: TextTokenizers | None = None,
    normalization: str = "identity",
) -> Evaluation:
    """Compare detokenised hypotheses with one reference each under several text metrics.

    Args:
        hypotheses: System outputs.
        references: Human texts.
        metrics: Names of text metrics.
        tokenizers: Tokenizers of BLEU and ROUGE; None: chosen by the script of the references.
        normalization: Unicode normalisation already applied to both sides, for the signatures.

    Raises:
        DataError: The two sides differ in length, are empty, or a metric is unknown or not for texts.
    """
    statistics, signatures = {}, {}
    chosen = tokenizers or choose_tokenizers(references)
    for metric in metrics:
        rows, signature = segment_rows(metric, hypotheses, references, tokenizers=chosen)
        if normalization != "identity":
            signature = f"{signature}|norm:{normalization}"
        statistics[metric], signatures[metric] = rows, signature
    return Evaluation.of(statistics, signatures)


def evaluate_documents(
    hypotheses: Sequence[str],
    references: Sequence[str],
    documents: Sequence[str | int],
    *,
    tokenizers: TextTokenizers | None = None,
    normalization: str = "identity",
) -> Evaluation:
    """Compute document-level BLEU: the sentences of a document are joined to one line first.

    N-grams then cross sentence boundaries. The resampled unit is the document.

    Args:
        hypotheses: Translated sentences.
        references: One human sentence for each.
        documents: Document of each sentence; the sentences of a document stand in their order.
        tokenizers: As in ``evaluate_text``.
        normalization: As in ``evaluate_text``.

    Returns:
        ``doc_bleu`` with statistics [D, 10], D the number of documents.

    Raises:
        DataError: The sides differ in length or are empty.

    Source: Liu et al. (2020), mBART, section 4.2 (d-BLEU).
    """
    sentences = zip(hypotheses, references, strict=True)
    pairs_of = grouped(zip(documents, sentences, strict=True))
    outputs, targets = (
        [" ".join(pair[side] for pair in pairs) for pairs in pairs_of.values()] for side in (0, 1)
    )
    # Chosen by all sentences, as for other scores of the split.
    tokenizers = tokenizers or choose_tokenizers(references)
    of_text = evaluate_text(outputs, targets, ("bleu",), tokenizers=tokenizers, normalization=normalization)
    signature = f"unit:document|{of_text.scores['bleu'].signature}"
    return Evaluation.of({"doc_bleu": of_text.statistics["bleu"]}, signature)
