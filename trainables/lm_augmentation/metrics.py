"""Metrics that a trial of language model augmentation reports."""

from __future__ import annotations

from nlgraft.stages.metrics import (
    EXTRACTS,
    LANGUAGE_MODEL,
    NATS_PER_CHAR,
    OUTPUT,
    TEXT,
    TRAINING,
    prefixed,
)

METRICS = {
    **TRAINING,
    **NATS_PER_CHAR,
    **TEXT,
    **OUTPUT,
    **EXTRACTS,
    **prefixed("source_lm", LANGUAGE_MODEL),
    **prefixed("target_lm", LANGUAGE_MODEL),
}
"""Metrics by name; an arm without a language model lacks its metrics."""
