"""Metrics that a trial of PrLM fusion reports."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.stages.metrics import (
    NATS_PER_CHAR,
    extract_metrics,
    output_metrics,
    text_metrics,
    training_metrics,
)
from nlgraft.study.data.metric import Metric

_PRETRAINED = {
    "bert": ("BERT", "nats per masked token"),
    "gpt": ("GPT", "nats per token"),
    "electra": ("ELECTRA, generator and weighted discriminator", "nats per masked token"),
    "distilbert": ("DistilBERT, all of its terms", "nats per masked token"),
}
METRICS: Mapping[str, Metric] = {
    **training_metrics(),
    **NATS_PER_CHAR,
    **text_metrics(),
    **output_metrics(),
    **extract_metrics(),
    **{
        f"{kind}/dev_loss": Metric(
            direction="minimize",
            unit=unit,
            split="dev",
            description=f"Mean loss of a pretrained {name}; of the last one where a trial has several.",
        )
        for kind, (name, unit) in _PRETRAINED.items()
    },
}
"""Metrics by name; arms that lack a stage lack its metrics."""
