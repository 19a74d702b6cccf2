"""Metrics that a trial of embedding transfer reports."""

from __future__ import annotations

from nlgraft.stages.metrics import (
    EXCHANGE,
    MASKED,
    MASKED_TEST,
    NATS_PER_CHAR,
    OUTPUT,
    SAVED,
    TEXT,
    TRAINING,
    fixed,
    less,
    masked_at,
    prefixed,
)

REPORT_STEPS = (0, 100, 500)
"""Steps of continued masked-LM training after which the loss is reported, provided that an evaluation falls
on them; step 0 is directly after the exchange."""
METRICS = {
    **MASKED,
    **MASKED_TEST,
    **masked_at(REPORT_STEPS),
    **TRAINING,
    **NATS_PER_CHAR,
    **TEXT,
    **OUTPUT,
    **SAVED,
    **prefixed("upstream", {**MASKED, **TRAINING, "dev/bleu": TEXT["dev/bleu"]}),
    "generator/dev_loss": less(
        unit="nats per token",
        split="dev",
        description="L_p + lambda L_d of the generator on split and merged dev text of domain A.",
    ),
    "generator/parameters": fixed(
        "minimize", "parameters", "Trained parameters of a generator: 0, d or 6d (section 3.2)."
    ),
    **EXCHANGE,
}
"""Metrics by name; an arm without a stage lacks the metrics of that stage."""
