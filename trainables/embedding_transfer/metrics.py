"""Metrics that a trial of embedding transfer reports."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.stages.metrics import (
    NATS_PER_CHAR,
    output_metrics,
    saved_metrics,
    text_metrics,
    training_metrics,
)
from nlgraft.study.data.metric import Metric
from trainables.embedding_transfer.masked_lm_metrics import MASKED_LM_METRICS

METRICS: Mapping[str, Metric] = {
    **training_metrics(),
    **NATS_PER_CHAR,
    **text_metrics(),
    **output_metrics(),
    **saved_metrics(),
    **training_metrics("upstream"),
    **text_metrics(("bleu",), ("dev",), "upstream"),
    "generator/dev_loss": Metric(
        direction="minimize",
        unit="nats per token",
        split="dev",
        description="L_p + lambda L_d of the generator on split and merged dev text of domain A.",
    ),
    "generator/parameters": Metric(
        direction="minimize", unit="parameters", split=None, description="0, d or 6d (section 3.2)."
    ),
    "transfer/copied": Metric(
        direction="maximize",
        unit="share of rows",
        split=None,
        description="New rows that are the row of the same token or of the special token of the same role.",
    ),
    "transfer/drawn": Metric(
        direction="minimize", unit="share of rows", split=None, description="New rows drawn at random."
    ),
    **MASKED_LM_METRICS,
}
"""Metrics by name; arms that lack a stage lack its metrics."""
