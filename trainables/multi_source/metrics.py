"""Metrics that a trial of multi-source generation reports."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.stages.metrics import (
    NATS_PER_CHAR,
    document_metrics,
    masked_metrics,
    output_metrics,
    start_metrics,
    text_metrics,
    training_metrics,
)
from nlgraft.study.data.metric import Metric
from trainables.multi_source.config import MAX_FOREIGN

METRICS: Mapping[str, Metric] = {
    **training_metrics(),
    **start_metrics(),
    **NATS_PER_CHAR,
    **text_metrics(),
    **document_metrics(),
    **output_metrics(),
    **training_metrics("upstream"),
    "upstream/dev_mlm_unknown": masked_metrics(("dev",), "upstream")["upstream/dev_mlm_unknown"],
    **training_metrics("single_source"),
    **start_metrics("single_source"),
    **{
        name: metric
        for source in range(MAX_FOREIGN)
        for name, metric in text_metrics(prefix=f"random_source_{source}").items()
    },
}
"""Metrics by name; arms that lack a stage lack its metrics."""
