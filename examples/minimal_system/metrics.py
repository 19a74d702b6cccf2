"""Metrics of the example."""

from __future__ import annotations

from nlgraft.stages.metrics import NATS_PER_CHAR, OUTPUT, TEXT, TRAINING

METRICS = {**TRAINING, **NATS_PER_CHAR, **TEXT, **OUTPUT}
"""Metrics by name."""
