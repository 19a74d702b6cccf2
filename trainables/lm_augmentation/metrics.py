"""Metrics that a trial of language model augmentation reports."""

from __future__ import annotations

from nlgraft.stages.metrics import (
    NATS_PER_CHAR,
    extract_metrics,
    language_model_metrics,
    output_metrics,
    text_metrics,
    training_metrics,
)

METRICS = {
    **training_metrics(),
    **NATS_PER_CHAR,
    **text_metrics(),
    **output_metrics(),
    **extract_metrics(),
    **language_model_metrics("source_lm"),
    **language_model_metrics("target_lm"),
}
"""Metrics by name; arms without a language model lack its metrics."""
