"""Metrics of the example."""

from __future__ import annotations

from nlgraft.stages.metrics import NATS_PER_CHAR, output_metrics, text_metrics, training_metrics

METRICS = {**training_metrics(), **NATS_PER_CHAR, **text_metrics(), **output_metrics()}
"""Metrics by name."""
