"""Metrics that a trial of embedding transfer reports."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.stages.metrics import (
    NATS_PER_CHAR,
    exchange_metrics,
    masked_metrics,
    masked_step_metrics,
    output_metrics,
    saved_metrics,
    text_metrics,
    training_metrics,
)
from nlgraft.study.data.metric import Metric

REPORT_STEPS = (0, 100, 500)
"""Steps of continued masked-LM training after which the loss is reported, where it is evaluated then: 0 is
right after the exchange."""
METRICS: Mapping[str, Metric] = {
    **masked_metrics(),
    **masked_metrics(("dev",), "upstream"),
    **masked_step_metrics(REPORT_STEPS),
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
        direction="minimize",
        unit="parameters",
        split=None,
        is_fixed=True,
        description="0, d or 6d (section 3.2).",
    ),
    **exchange_metrics(),
}
"""Metrics by name; arms that lack a stage lack its metrics."""
