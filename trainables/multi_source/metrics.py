"""Metrics that a trial of multi-source generation reports."""

from __future__ import annotations

from nlgraft.stages.metrics import (
    DOCUMENTS,
    MASKED,
    NATS_PER_CHAR,
    OUTPUT,
    START,
    TEXT,
    TRAINING,
    prefixed,
)
from trainables.multi_source.config import MAX_FOREIGN

METRICS = {
    **TRAINING,
    **START,
    **NATS_PER_CHAR,
    **TEXT,
    **DOCUMENTS,
    **OUTPUT,
    **prefixed("upstream", {**TRAINING, "dev/mlm_unknown": MASKED["dev/mlm_unknown"]}),
    **prefixed("single_source", {**TRAINING, **START}),
    **{
        name: metric
        for source in range(MAX_FOREIGN)
        for name, metric in prefixed(f"random_source_{source}", TEXT).items()
    },
}
"""Metrics by name; an arm without a stage lacks the metrics of that stage."""
